import itertools
import sys

import pytest
import torch
from tests.contracts.cases import draw_inputs, draw_mask, relative_change
from torch import Generator, Tensor

from teka import Grid
from teka.functional import Clipped, attention
from teka.functional.backend.rings import ring_sums, rings

GRIDS = [
    Grid((11,)),
    Grid((5, 7)),
    Grid((3, 5, 2)),
    Grid((2, 3, 1, 4)),
    Grid((11,), periodic=True),
    Grid((7, 8), periodic=True),
    Grid((7, 3), periodic=(True, False)),
    Grid((7, 2, 9), periodic=(True, False, True)),
]
MAX_DISTANCE = 4


def noise(grid: Grid, seed: int = 0) -> Tensor:
    generator = Generator().manual_seed(seed)
    return torch.randn(2, 3, grid.num_tokens, 4, dtype=torch.float64, generator=generator)


def brute_force(tokens: Tensor, distance: int, grid: Grid) -> Tensor:
    """R_r(i) by looking at every pair of cells."""
    cells = list(itertools.product(*(range(side) for side in grid.shape)))
    total = torch.zeros_like(tokens)
    for (i, cell), (j, other) in itertools.product(enumerate(cells), repeat=2):
        apart = 0
        for axis, side in enumerate(grid.shape):
            step = abs(cell[axis] - other[axis])
            apart += min(step, side - step) if grid.axis_periodic(axis) else step
        if apart == distance:
            total[:, :, i] += tokens[:, :, j]
    return total


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_ring_sums_are_those_of_brute_force(grid: Grid):
    tokens = noise(grid)
    for distance, found in enumerate(ring_sums(tokens, MAX_DISTANCE, grid)):
        assert relative_change(found, brute_force(tokens, distance, grid)) < 1e-12


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_a_ring_sum_is_its_own_adjoint(grid: Grid):
    tokens, others = noise(grid, seed=1), noise(grid, seed=2)
    pairs = zip(ring_sums(tokens, MAX_DISTANCE, grid), ring_sums(others, MAX_DISTANCE, grid), strict=True)
    for of_tokens, of_others in pairs:
        assert float((of_tokens * others).sum()) == pytest.approx(float((tokens * of_others).sum()), abs=1e-9)


def test_a_single_token_spreads_to_the_cells_of_each_ring():
    tokens = torch.zeros(1, 1, 49, 1)
    tokens[0, 0, 24] = 1  # the middle of 7 × 7
    counts = [int(ring.sum()) for ring in ring_sums(tokens, 4, Grid((7, 7)))]
    assert counts == [1, 4, 8, 12]


def test_one_ring_is_the_tokens_themselves():
    tokens = noise(Grid((5, 7)))
    (found,) = ring_sums(tokens, 1, Grid((5, 7)))
    assert torch.equal(found, tokens)


def run(kernel: str) -> list[Tensor]:
    """The output and the gradients of query, key, value and embeddings."""
    embedding = torch.randn(4, 5, dtype=torch.float64, generator=Generator().manual_seed(0)).requires_grad_()
    inputs = [tensor.requires_grad_() for tensor in draw_inputs(35)]
    query, key, value = inputs
    output = attention(
        query,
        key,
        value,
        kernel=kernel,
        relative=Clipped(embedding),
        grid=Grid((5, 7)),
        key_mask=draw_mask(2, 35),
        backend="rings",
    )
    return [output, *torch.autograd.grad(output.sin().sum(), [*inputs, embedding])]


@pytest.mark.parametrize("elements", [1, 2000, 5000])
def test_chunks_of_features_change_neither_values_nor_gradients(elements: int, monkeypatch: pytest.MonkeyPatch):
    whole = run("squared_relu")
    monkeypatch.setattr(sys.modules[rings.__module__], "CHUNK_ELEMENTS", elements)
    for found, expected in zip(run("squared_relu"), whole, strict=True):
        assert relative_change(found, expected) < 1e-12


def test_a_ring_without_kept_keys_cannot_push_the_others_out_of_range():
    # The only kept key is in ring 0 of its own token; ring 3 has an enormous weight and nothing in it nearby.
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
        relative=Clipped(embedding),
        grid=Grid((7,)),
        key_mask=mask,
        backend="rings",
    )
    assert torch.equal(output, torch.ones_like(output))
