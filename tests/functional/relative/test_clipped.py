import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor

from teka import Grid
from teka.functional import ClippedDistanceBias, ClippedDistanceFeatures, attention, draw_projection
from tests.contracts.cases import draw_inputs, relative_error


def embedding(max_distance: int, dim: int = 5) -> Tensor:
    return torch.randn(
        max_distance + 1, dim, dtype=torch.float64, generator=Generator().manual_seed(0)
    )


@pytest.mark.parametrize("max_distance", [1, 2, 4])
@pytest.mark.parametrize("shape", [(11,), (3, 5), (2, 3, 4)])
def test_clipped_attention_equals_formula(shape: tuple[int, ...], max_distance: int):
    grid = Grid(shape)
    query, key, value = draw_inputs(grid.num_tokens, batch=1, heads=2)
    relative = ClippedDistanceBias(embedding(max_distance))
    output = attention(
        query, key, value, kernel="constant", relative=relative, grid=grid, backend="rings"
    )
    cells = [[int(number) for number in position] for position in grid.positions().tolist()]
    for head in range(2):
        for i, cell in enumerate(cells):
            numerator, denominator = torch.zeros(4, dtype=torch.float64), 0.0
            for j, other in enumerate(cells):
                distance = sum(abs(a - b) for a, b in zip(cell, other, strict=True))
                row = relative.distance_embedding[min(distance, max_distance)]
                weight = math.exp(float(query[0, head, i] @ row) / math.sqrt(5))
                numerator += weight * value[0, head, j]
                denominator += weight
            assert relative_error(output[0, head, i], numerator / denominator) < 1e-12


def test_ring_is_clipped_manhattan_distance():
    relative = ClippedDistanceBias(embedding(3), ring_width=2.0)
    offsets = torch.tensor(
        [[0, 0], [0.6, -0.3], [1.2, 0], [-3, 2.9], [3, -3.2], [100, 0]], dtype=torch.float64
    )
    assert relative.compute_ring_indices(offsets).tolist() == [0, 0, 1, 3, 3, 3]


def test_spacing_and_ring_width_scale_together():
    query, key, value = draw_inputs(15)
    outputs = [
        attention(
            query,
            key,
            value,
            kernel="constant",
            relative=ClippedDistanceBias(embedding(3), step),
            grid=Grid((3, 5), step),
        )
        for step in (1.0, 0.25, 3.0)
    ]
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


def test_equal_offsets_are_in_the_same_ring():
    # Three cells of 0.1 are one and a half widths of 0.2: rounding must not put them now here, now
    # there.
    ring = ClippedDistanceBias(embedding(4), ring_width=0.2).compute_ring_indices(
        Grid((11,), 0.1).offsets(dtype=torch.float64)
    )
    for steps in range(11):
        assert len(set(ring.diagonal(steps).tolist())) == 1, steps


@given(shift=st.floats(-50, 50))
def test_shift_of_half_ring_distances(shift: float):
    relative, positions = (
        ClippedDistanceBias(embedding(4)),
        Grid((11,), 0.5).positions(dtype=torch.float64),
    )
    rings = [
        relative.compute_ring_indices(place[:, None] - place[None, :])
        for place in (positions, positions + shift)
    ]
    assert torch.equal(*rings)


@pytest.mark.parametrize(
    ("grid", "fits"),
    [
        (Grid((9, 11)), True),
        (Grid((2, 1)), True),
        (Grid((9, 11), 2.0), False),
        (Grid((9, 11), (1.0, 2.0)), False),
        (Grid((7, 7), periodic=True), True),  # 2 (4 − 1) < 7
        (Grid((6, 7), periodic=True), False),
        (Grid((6, 7), periodic=(False, True)), True),
    ],
)
def test_can_use_rings(grid: Grid, fits: bool):
    assert ClippedDistanceBias(embedding(4)).can_use_rings(grid) == fits


@pytest.mark.parametrize(
    ("size", "width", "message"),
    [
        ((1, 5), 1.0, r"distance_embedding must have shape \(k \+ 1, dim\).*got \(1, 5\)"),
        ((5,), 1.0, "distance_embedding must have shape"),
        ((4, 5), 0.0, "ring_width must be .*got 0.0"),
        ((4, 5), math.nan, "ring_width must be .*got nan"),
    ],
)
def test_invalid_arguments_raise(
    size: tuple[int, ...], width: float, message: str, unchecked_annotations: None
):
    with pytest.raises(ValueError, match=message):
        ClippedDistanceBias(torch.zeros(size), width)


SCALE = 0.4


def build(num_features: int, seed: int = 0) -> ClippedDistanceFeatures:
    embedding = torch.randn(4, 5, dtype=torch.float64, generator=Generator().manual_seed(0))
    projection = draw_projection(num_features, 5, generator=Generator().manual_seed(seed))
    return ClippedDistanceFeatures(embedding, projection=projection)


@pytest.mark.parametrize("backend", ["dense", "rings"])
def test_clipped_features_attention_equals_formula(backend: str):
    grid, relative = Grid((3, 5)), build(7)
    query, key, value = draw_inputs(15, batch=1, heads=2)
    output = attention(
        query,
        key,
        value,
        kernel="constant",
        relative=relative,
        grid=grid,
        backend=backend,
        scale=SCALE,
    )
    assert relative.projection is not None
    cells = grid.positions().tolist()
    for head in range(2):
        for i, cell in enumerate(cells):
            x = query[0, head, i] * SCALE**0.5
            numerator, denominator = torch.zeros(4, dtype=torch.float64), 0.0
            for j, other in enumerate(cells):
                ring = min(int(abs(cell[0] - other[0]) + abs(cell[1] - other[1])), 3)
                y = relative.distance_embedding[ring] * SCALE**0.5
                weight = sum(
                    math.exp(float(w @ x - x @ x / 2)) * math.exp(float(w @ y - y @ y / 2)) / 7
                    for w in relative.projection
                )
                numerator += weight * value[0, head, j]
                denominator += weight
            assert relative_error(output[0, head, i], numerator / denominator) < 1e-12


def test_clipped_features_converge_to_clipped():
    query = draw_inputs(6, scale=0.3)[0]
    exact = (
        ClippedDistanceBias(build(1).distance_embedding * 0.3).log_rings(query, scale=SCALE).exp()
    )
    errors = []
    for num_features in (16, 256, 4096):
        actual = []
        for seed in range(8):
            relative = build(num_features, seed)
            quiet = ClippedDistanceFeatures(
                relative.distance_embedding * 0.3, projection=relative.projection
            )
            actual.append(
                (quiet.log_rings(query, scale=SCALE).exp() - exact).square().mean().sqrt()
            )
        errors.append(float(torch.stack(actual).mean()))
    assert errors[0] > 2 * errors[1] > 4 * errors[2]


def test_clipped_features_are_finite_for_large_inputs():
    relative = build(7)
    long = ClippedDistanceFeatures(
        30 * relative.distance_embedding.float(), projection=relative.projection
    )
    assert torch.isfinite(
        long.log_rings(draw_inputs(6, scale=30.0, dtype=torch.float32)[0], scale=SCALE)
    ).all()


def test_clipped_features_need_a_projection():
    with pytest.raises(ValueError, match=r"projection must be a tensor.*got None"):
        ClippedDistanceFeatures(torch.zeros(4, 5))


def test_projection_of_another_size_raises(unchecked_annotations: None):
    with pytest.raises(
        ValueError, match=r"projection must have shape \(features, 5\).*got \(7, 4\)"
    ):
        ClippedDistanceFeatures(torch.zeros(4, 5), projection=torch.zeros(7, 4))
