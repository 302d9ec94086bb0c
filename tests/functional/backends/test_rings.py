import pytest
import torch
from torch import Tensor

from teka import Grid
from teka.functional import ClippedDistanceBias, attention
from teka.functional.backends import feature_chunks
from teka.functional.backends.costs import Cost, rings_cost
from teka.functional.backends.rings import ring_sums
from tests.contracts.cases import build_relative, draw_inputs, draw_mask, relative_error
from tests.functional.backends.ring_cases import (
    GRIDS,
    MAX_DISTANCE,
    manhattan_distances,
    random_cells,
    ring_members,
)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("max_distance", [1, 2, MAX_DISTANCE])
def test_ring_sums_equal_the_sums_over_all_pairs(grid: Grid, max_distance: int):
    cells = random_cells(grid, 4)
    sums = ring_sums(cells.unflatten(2, grid.shape), max_distance, grid)
    assert len(sums) == max_distance + 1
    for ring, members in zip(sums, ring_members(grid, max_distance), strict=True):
        assert relative_error(ring.flatten(2, -2), members @ cells) < 1e-12


def test_cell_is_counted_once_in_every_ring():
    cells = torch.zeros(1, 1, 7, 7, 1)
    cells[0, 0, 3, 3] = 1
    sums = ring_sums(cells, 4, Grid((7, 7)))
    assert [int(ring.sum()) for ring in sums] == [1, 4, 8, 12, 24]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_a_huge_near_value_does_not_change_the_sum_of_distant_cells(grid: Grid):
    cells = torch.ones(1, 1, grid.num_tokens, 1, dtype=torch.float64)
    counts = ring_sums(cells.unflatten(2, grid.shape), MAX_DISTANCE, grid)[-1].flatten()
    cells[:, :, 0] = 1e30
    sums = ring_sums(cells.unflatten(2, grid.shape), MAX_DISTANCE, grid)[-1].flatten()
    is_near = manhattan_distances(grid)[:, 0] < MAX_DISTANCE
    assert torch.equal(sums[is_near], counts[is_near])


def attend_with_gradients(kernel: str) -> list[Tensor]:
    """Return the output and the gradients of query, key, value and embeddings."""
    embedding = torch.randn(
        4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    inputs = [tensor.requires_grad_() for tensor in draw_inputs(35)]
    query, key, value = inputs
    output = attention(
        query,
        key,
        value,
        kernel=kernel,
        relative=ClippedDistanceBias(embedding),
        grid=Grid((5, 7)),
        key_mask=draw_mask(2, 35),
        backend="rings",
    )
    return [output, *torch.autograd.grad(output.sin().sum(), [*inputs, embedding])]


@pytest.mark.parametrize("num_elements", [1, 2000, 5000])
def test_feature_chunks_change_neither_values_nor_gradients(
    num_elements: int, monkeypatch: pytest.MonkeyPatch
):
    expected_results = attend_with_gradients("squared_relu")
    monkeypatch.setattr(feature_chunks, "CHUNK_ELEMENTS", num_elements)
    for result, expected in zip(
        attend_with_gradients("squared_relu"), expected_results, strict=True
    ):
        assert relative_error(result, expected) < 1e-12


def test_ring_without_kept_keys_does_not_overflow_other_rings():
    # Only token 3 is kept. Ring 3 has a huge weight but no kept keys for nearby queries.
    embedding = torch.zeros(4, 5)
    embedding[3] = 1e4
    query, key, value = torch.ones(1, 1, 7, 5), torch.ones(1, 1, 7, 5), torch.ones(1, 1, 7, 2)
    mask = torch.zeros(1, 7, dtype=torch.bool)
    mask[0, 3] = True
    output = attention(
        query,
        key,
        value,
        kernel="constant",
        relative=ClippedDistanceBias(embedding),
        grid=Grid((7,)),
        key_mask=mask,
        backend="rings",
    )
    assert torch.equal(output, torch.ones_like(output))


@pytest.mark.parametrize("num_features", [1, 32])
def test_rings_cost_is_linear_in_tokens_and_grows_with_rings_and_axes(num_features: int):
    cost = rings_cost(Grid((8, 8)), num_features, 32, 6)
    assert rings_cost(Grid((16, 8)), num_features, 32, 6) == Cost(
        2 * cost.multiply_adds, 2 * cost.bytes
    )
    assert rings_cost(Grid((8, 8)), num_features, 32, 7).multiply_adds > cost.multiply_adds
    assert rings_cost(Grid((4, 4, 4)), num_features, 32, 6).multiply_adds > cost.multiply_adds


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("kernel", ["squared_relu", "positive", "constant", "taylor2"])
def test_signed_offsets_on_a_line_equal_dense(kernel: str, is_masked: bool):
    relative = build_relative("shaw", heads=3, dim=5, num_axes=1, max_distance=3)
    mask = draw_mask(2, 23) if is_masked else None
    results = []
    for backend in ("dense", "rings"):
        leaves = [tensor.requires_grad_() for tensor in draw_inputs(23)]
        options = {"kernel": kernel, "relative": relative, "grid": Grid(23), "key_mask": mask}
        output = attention(*leaves, **options, backend=backend)
        gradients = torch.autograd.grad(output.sin().sum(), leaves, materialize_grads=True)
        results.append([output, *gradients])
    for dense, rings in zip(*results, strict=True):
        assert relative_error(rings, dense) < 1e-10
