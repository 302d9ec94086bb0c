import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from teka import Grid
from teka.functional import Fourier
from teka.functional.positions import Positions
from tests.contracts.cases import relative_error, with_leaves


def build(num_axes: int = 2) -> Fourier:
    return Fourier.make_random_example(
        torch.Generator().manual_seed(1), heads=3, dim=5, num_axes=num_axes, kernel="softmax"
    )


def draw_points(*size: int, seed: int = 0) -> Tensor:
    return 3 * torch.randn(
        *size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def product_of_position_features(relative: Fourier, query: Tensor, key: Tensor) -> Tensor:
    left, right = relative.position_features(
        Positions(points=query, key=Positions(points=key)), query
    )
    product = left @ right.transpose(-2, -1)
    return product if query.ndim == 3 else product[0]


def test_log_kernel_equals_formula():
    relative, offsets = build(), draw_points(11, 2)
    actual = relative.log_weight_at(offsets)
    assert actual.shape == (3, 11)
    for head in range(3):
        for pair, (down, right) in enumerate(offsets.tolist()):
            total = float(relative.constant_weight[head])
            for wave in range(4):
                omega = relative.frequency[head, wave].tolist()
                angle = omega[0] * down + omega[1] * right + float(relative.phase[head, wave])
                total += float(relative.amplitude[head, wave]) * (1 + math.cos(angle))
            assert float(actual[head, pair]) == pytest.approx(math.log(total), abs=1e-12)


@pytest.mark.parametrize("num_axes", [1, 2, 3])
@pytest.mark.parametrize("batch", [(), (4,)])
def test_product_of_position_features_is_the_kernel(num_axes: int, batch: tuple[int, ...]):
    relative = build(num_axes)
    query, key = draw_points(*batch, 7, num_axes), draw_points(*batch, 5, num_axes, seed=1)
    query_waves, key_waves = relative.position_features(
        Positions(points=query, key=Positions(points=key)), query
    )
    assert query_waves.shape == (*(batch or (1,)), 3, 7, 9)
    assert key_waves.shape == (*(batch or (1,)), 3, 5, 9)
    expected = relative.log_weight_at(query[..., :, None, :] - key[..., None, :, :]).exp()
    expected = expected.movedim(0, -3)
    assert relative_error(product_of_position_features(relative, query, key), expected) < 1e-12


@given(shift=st.floats(-1e3, 1e3))
def test_shift_of_all_positions(shift: float):
    relative, query, key = build(), draw_points(7, 2), draw_points(5, 2, seed=1)
    assert (
        relative_error(
            product_of_position_features(relative, query + shift, key + shift),
            product_of_position_features(relative, query, key),
        )
        < 1e-11
    )


@pytest.mark.parametrize("shift", [1e3, 2.0**20])
def test_float32_is_accurate_at_large_coordinates(shift: float):
    relative, positions = build(), Grid((5, 7), 0.5).positions(dtype=torch.float32)
    assert product_of_position_features(relative, positions, positions).dtype == torch.float32
    reference = product_of_position_features(
        relative, positions.double(), positions.double()
    ).float()
    assert (
        relative_error(
            product_of_position_features(relative, positions + shift, positions + shift), reference
        )
        < 1e-5
    )


@given(turns=st.tuples(st.integers(-3, 3), st.integers(-3, 3)), spacing=st.floats(0.2, 3))
def test_kernel_is_periodic_on_a_torus(turns: tuple[int, int], spacing: float):
    grid_positions = Positions(Grid((5, 7), spacing, periodic=True))
    relative, offsets = build().adapt_to_positions(grid_positions), draw_points(11, 2)
    moved = offsets + spacing * torch.tensor([5.0 * turns[0], 7.0 * turns[1]], dtype=torch.float64)
    assert torch.allclose(relative.log_weight_at(moved), relative.log_weight_at(offsets), atol=1e-9)
    assert (
        relative_error(
            product_of_position_features(relative, moved, offsets),
            product_of_position_features(relative, offsets, offsets),
        )
        < 1e-10
    )


def test_frequencies_are_rounded_on_a_torus():
    bare = Positions(points=draw_points(7, 2))
    assert torch.equal(build().adapt_to_positions(bare).frequency, build().frequency)
    grid_positions = Positions(Grid((50, 7), periodic=(True, False)))
    change = build().adapt_to_positions(grid_positions).frequency - build().frequency
    assert 0 < float(change[..., 0].abs().max()) <= math.pi / 50 + 1e-12
    assert torch.count_nonzero(change[..., 1]) == 0


def test_logarithm_is_accurate_near_zero():
    ones = torch.ones(1, 1, dtype=torch.float64)
    relative = Fourier(torch.zeros(1, dtype=torch.float64), ones, ones[..., None], 0 * ones)
    near = torch.tensor([[math.pi - 1e-6]], dtype=torch.float64)
    assert float(relative.log_weight_at(near)) == pytest.approx(math.log(0.5e-12), abs=1e-9)


@pytest.mark.parametrize("periodic", [False, True])
def test_parameters_have_gradients(periodic: bool):
    grid_positions = Positions(Grid((5, 7), periodic=periodic))
    for evaluate in (
        lambda relative: relative.log_weight_at(draw_points(11, 2)),
        lambda relative: product_of_position_features(relative, *TWO),
    ):
        relative, leaves = with_leaves(build())
        evaluate(relative.adapt_to_positions(grid_positions)).square().sum().backward()
        assert set(leaves) == {"constant_weight", "amplitude", "frequency", "phase"}
        for leaf in leaves.values():
            assert leaf.grad is not None
            # Frequencies that are rounded for a periodic grid have no gradient.
            rounded = periodic and leaf is leaves["frequency"]
            assert torch.count_nonzero(leaf.grad) == (0 if rounded else leaf.numel())


TWO = (draw_points(7, 2), draw_points(5, 2, seed=1))

SIZES = {"constant_weight": (3,), "amplitude": (3, 4), "frequency": (3, 4, 2), "phase": (3, 4)}


@pytest.mark.parametrize(
    ("changed", "size", "message"),
    [
        ("constant_weight", (2,), r"amplitude must have shape \(2, waves\), got \(3, 4\)"),
        ("amplitude", (3, 5), r"frequency must have shape \(3, 5, axes\), got \(3, 4, 2\)"),
        ("frequency", (3, 4), r"frequency must have shape \(3, 4, axes\), got \(3, 4\)"),
        ("phase", (4,), r"phase must have shape \(3, 4\), got \(4,\)"),
        ("phase", (3, 4, 1), r"phase must have shape \(3, 4\), got \(3, 4, 1\)"),
    ],
)
def test_inconsistent_shapes_raise(
    changed: str, size: tuple[int, ...], message: str, unchecked_annotations: None
):
    with pytest.raises(ValueError, match=message):
        Fourier(**{name: torch.ones(shape) for name, shape in (SIZES | {changed: size}).items()})


@pytest.mark.parametrize("argument", ["constant_weight", "amplitude"])
def test_negative_weight_raises(argument: str):
    values = {name: torch.ones(right) for name, right in SIZES.items()}
    values[argument][-1] = -0.5
    with pytest.raises(
        ValueError, match=rf"the smallest element of {argument} must be at least 0.*got -0.5"
    ):
        Fourier(**values)


def test_head_without_weights_raises():
    weights = {"constant_weight": torch.tensor([1.0, 0.0]), "amplitude": torch.zeros(2, 3)}
    with pytest.raises(ValueError, match="at least one weight above 0 in every head"):
        Fourier(**weights, frequency=torch.ones(2, 3, 1), phase=torch.zeros(2, 3))
