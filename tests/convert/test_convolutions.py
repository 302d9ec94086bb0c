"""Which convolutions can be converted, ranks and tolerances."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from teka import Grid
from teka.convert import (
    attention_from_convolution,
    conversion_error_bound,
    low_rank_convolution,
    precision_for_tolerance,
)
from teka.convert.convolutions import (
    check_same_convolution,
    factor_matrices,
    hard_precision,
    offset_matrices,
    stray_weight,
    window_reach,
)
from tests.convert.convolutions import draw_convolution, draw_images, largest_difference


class Doubled(nn.Conv2d):
    """A convolution whose weights mean something else."""


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            nn.Linear(3, 3),
            "convolution must be a torch.nn.Conv1d, Conv2d or Conv3d itself.*got 'Linear'",
        ),
        (nn.ConvTranspose2d(3, 3, 3, padding=1), r"convolution must be .*got 'ConvTranspose2d'"),
        (nn.LazyConv2d(3, 3, padding=1), r"convolution must be .*got 'LazyConv2d'"),
        (Doubled(3, 3, 3, padding=1), r"convolution must be .*got 'Doubled'"),
        (nn.Conv2d(3, 3, (3, 4), padding="same"), r"kernel_size must be odd sizes.*got \(3, 4\)"),
        (
            nn.Conv1d(3, 3, 3, padding=1, dtype=torch.complex64),
            "dtype must be a real.*got torch.complex64",
        ),
        (
            nn.Conv1d(3, 3, 3, padding=1, padding_mode="reflect"),
            "padding_mode must be 'zeros' or 'circ.*got 'reflect'",
        ),
        (nn.Conv1d(3, 3, 3), r"padding must be 'same', or \(1,\) for this kernel.*got \(0,\)"),
        (nn.Conv1d(3, 3, 3, padding="valid"), "padding must be 'same'.*got 'valid'"),
        (
            nn.Conv2d(3, 3, 5, padding=2, dilation=2),
            r"padding must be 'same', or \(4, 4\).*got \(2, 2\)",
        ),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, nn.Module) else "",
)
def test_other_modules_are_refused(module: nn.Module, message: str):
    with pytest.raises(ValueError, match=message):
        check_same_convolution(module)


def test_a_rank_is_that_of_all_channels():
    with pytest.raises(ValueError, match=r"groups must be 1.*got 2"):
        low_rank_convolution(nn.Conv2d(4, 4, 3, padding=1, groups=2), 1)


def test_the_window_reaches_as_far_as_sides_and_dilation_say():
    assert window_reach(draw_convolution(3, (1, 3, 7), dilation=(5, 2, 1))) == (0, 2, 3)


def test_the_matrices_are_those_of_the_offsets_in_row_major_order():
    convolution = draw_convolution(2, (3, 5))
    matrices = offset_matrices(convolution)
    assert matrices.shape == (15, 4, 3)
    assert torch.equal(matrices[1 * 5 + 4], convolution.weight[:, :, 1, 4])


EPSILON = torch.finfo(torch.float64).eps


@pytest.mark.parametrize("dim_head", [3, 4, 5, 6])
def test_the_factors_multiply_to_the_matrices(dim_head: int):
    matrices = offset_matrices(draw_convolution(2, 3, (6, 3)))
    for one in (matrices, matrices.mT):
        values, outputs = factor_matrices(one, dim_head, epsilon=EPSILON)
        assert values.shape[1] == outputs.shape[2] <= dim_head
        assert torch.equal(outputs @ values, one)


def test_a_matrix_of_low_rank_is_parted_into_factors_of_equal_size():
    generator = torch.Generator().manual_seed(0)
    left, right = (
        torch.randn(*shape, dtype=torch.float64, generator=generator)
        for shape in ((9, 7, 2), (9, 2, 5))
    )
    values, outputs = factor_matrices(left @ right, 2, epsilon=EPSILON)
    assert largest_difference(outputs @ values, left @ right) < 1e-13
    assert torch.allclose(values.flatten(1).norm(dim=1), outputs.flatten(1).norm(dim=1))
    with pytest.raises(
        ValueError, match=r"dim_head must be at least 2, the rank of the weights at offset.*got 1"
    ):
        factor_matrices(left @ right, 1, epsilon=EPSILON)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rank", [1, 3, 5])
def test_the_nearest_convolution_fits_heads_of_its_rank_and_its_error_is_that_of_white_inputs(
    rank: int, dtype: torch.dtype
):
    convolution = draw_convolution(2, 3, (5, 7), dtype=dtype, bias=False)
    nearest, error = low_rank_convolution(convolution, rank)
    layer = attention_from_convolution(nearest, dim_head=rank)
    images, grid = (
        torch.randn(8, 5, 24, 24, dtype=dtype, generator=torch.Generator().manual_seed(0)),
        Grid((24, 24)),
    )
    with torch.no_grad():
        truth = convolution(images)
        found = grid.unflatten(layer(grid.flatten(images), grid))
        assert largest_difference(found, nearest(images)) <= 100 * torch.finfo(dtype).eps
    assert float((found - truth).norm() / truth.norm()) == pytest.approx(error, rel=0.05, abs=1e-6)


def test_no_rank_one_matrices_found_by_descent_are_nearer():
    convolution = draw_convolution(1, 3, (4, 5))
    _, error = low_rank_convolution(convolution, 1)
    matrices = offset_matrices(convolution)
    torch.manual_seed(0)
    left, right = (torch.randn(3, size, dtype=torch.float64, requires_grad=True) for size in (5, 4))
    optimizer = torch.optim.Adam([left, right], 0.05)
    distance = torch.ones(())
    for _ in range(300):
        distance = (matrices - left[:, :, None] * right[:, None]).norm() / matrices.norm()
        optimizer.zero_grad()
        distance.backward()
        optimizer.step()
        assert distance.item() >= error - 1e-12
    assert distance.item() == pytest.approx(error, abs=1e-3)


def test_the_convolution_given_stays_as_it_is_and_a_full_rank_changes_nothing():
    convolution, images = draw_convolution(2, 3), draw_images(2)
    before = convolution.weight.detach().clone()
    nearest, error = low_rank_convolution(convolution, 3)
    assert error == 0.0
    low_rank_convolution(convolution, 1)
    assert torch.equal(convolution.weight, before)
    with torch.no_grad():
        assert largest_difference(nearest(images), convolution(images)) < 1e-14


def test_weights_of_0_have_no_error():
    convolution = draw_convolution(1, 3)
    torch.nn.init.zeros_(convolution.weight)
    assert low_rank_convolution(convolution, 1)[1] == 0.0
    assert attention_from_convolution(convolution, dim_head=1).attention.dim_head == 1


def test_a_rank_below_one_is_refused():
    with pytest.raises(ValueError, match=r"rank must be at least 1.*got 0"):
        low_rank_convolution(draw_convolution(1, 3), 0)


steps = st.lists(st.floats(0.1, 3), min_size=1, max_size=3)


@given(spacing=steps, precision=st.floats(0.05, 20))
def test_it_bounds_the_weight_off_the_centre_on_any_grid_and_nearly_equals_that_on_a_large_one(
    spacing: list[float], precision: float
):
    bound, exact = stray_weight(precision, spacing), 1.0
    for step in spacing:
        cells = torch.arange(-400, 401, dtype=torch.float64)
        exact /= float(torch.exp(-precision * (step * cells).square()).sum())
    assert 1 - exact <= bound + 1e-15
    if precision * min(spacing) ** 2 >= 1:
        assert (
            bound - (1 - exact)
            <= 2 * len(spacing) * math.exp(-7 * precision * min(spacing) ** 2) + 1e-15
        )


def test_it_is_sharper_than_the_geometric_series():
    for precision in (0.5, 1.0, 3.0):
        ratio = math.exp(-precision)
        assert stray_weight(precision, (1.0, 1.0)) < (1 + 2 * ratio / (1 - ratio)) ** 2 - 1


def test_the_limit_is_0_and_reached_where_exponentials_end():
    assert stray_weight(math.inf, (1.0, 2.0)) == 0.0
    for dtype in (torch.float32, torch.float64):
        assert torch.exp(torch.tensor(-hard_precision((0.5, 2.0)) * 0.5**2, dtype=dtype)) == 0


@given(tolerance=st.floats(1e-14, 1.9), spacing=steps)
def test_the_precision_for_a_tolerance_keeps_it_and_a_smaller_one_does_not(
    tolerance: float, spacing: list[float]
):
    precision = precision_for_tolerance(tolerance, spacing)
    assert 2 * stray_weight(precision, spacing) <= tolerance
    assert 2 * stray_weight(0.999 * precision, spacing) > tolerance


def test_an_input_of_opposite_signs_comes_near_the_bound():
    # One weight, one head: the cell itself is 1 and all others −1, so that what strays counts twice.
    convolution = draw_convolution(1, 1, (1, 1), bias=False)
    grid, precision = Grid(41), 1.5
    tokens = -torch.ones(1, 41, 1, dtype=torch.float64)
    tokens[:, 20] = 1
    with torch.no_grad():
        found = attention_from_convolution(convolution, precision=precision)(tokens, grid)[0, 20]
        error = float((found - convolution.weight[0, 0]).abs())
    bound = conversion_error_bound(convolution, precision=precision, largest_input=1.0)
    assert 0.998 * bound < error <= bound


def test_the_rounding_floor_is_that_of_the_dtype():
    for dtype in (torch.float32, torch.float64):
        convolution = draw_convolution(2, 3, dtype=dtype)
        floor = conversion_error_bound(convolution, precision=math.inf, largest_input=1.0)
        assert 10 < floor / torch.finfo(dtype).eps < 1000
        assert conversion_error_bound(convolution, precision=900.0, largest_input=1.0) == floor


@pytest.mark.parametrize("largest_input", [-1.0, math.inf, math.nan])
def test_a_largest_input_that_is_none_is_refused(largest_input: float):
    with pytest.raises(ValueError, match="largest_input must be"):
        conversion_error_bound(draw_convolution(1, 3), precision=1.0, largest_input=largest_input)


@pytest.mark.parametrize("tolerance", [0.0, 2.0, math.nan])
def test_a_tolerance_that_no_precision_or_any_keeps_is_refused(tolerance: float):
    with pytest.raises(ValueError, match="tolerance must be"):
        precision_for_tolerance(tolerance, (1.0,))


def test_a_precision_that_is_not_positive_is_refused(unchecked_annotations: None):
    with pytest.raises(ValueError, match=r"precision must be a positive number.*got -1.0"):
        stray_weight(-1.0, (1.0,))
    with pytest.raises(ValueError, match=r"^precision must be a positive number"):
        stray_weight(torch.ones(2), (1.0,))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("spacing", [1.0, (), (0.0, 1.0), (-1.0,)])
def test_a_spacing_that_is_none_is_refused(spacing, unchecked_annotations: None):
    for function, number in ((precision_for_tolerance, 0.1), (stray_weight, 1.0)):
        with pytest.raises(
            ValueError, match=r"spacing must be a positive finite number for each axis"
        ):
            function(number, spacing)


@pytest.mark.parametrize("number", ["a", math.nan, -1.0])
def test_a_number_that_is_none_is_refused(number, unchecked_annotations: None):
    for argument in ("precision", "largest_input"):
        given = {"precision": 1.0, "largest_input": 1.0, argument: number}
        with pytest.raises(ValueError, match=f"{argument} must be"):
            conversion_error_bound(draw_convolution(2, 3), **given)
    with pytest.raises(ValueError, match=r"tolerance must be a number above 0"):
        precision_for_tolerance(number, (1.0,))
