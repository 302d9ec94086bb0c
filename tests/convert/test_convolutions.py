"""Checks, low-rank approximations and error bounds of convolutions."""

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
    HARD_PRECISION,
    check_supported_convolution,
    compute_kernel_radius,
    factor_matrices,
    off_center_weight,
    split_weight_by_offset,
)
from tests.convert.convolutions import draw_convolution, draw_images, largest_difference


class Doubled(nn.Conv2d):
    """Convolution that uses its weights in another way than its base class."""


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
            "padding_mode must be one of 'circular', 'zeros', got 'reflect'",
        ),
        (nn.Conv1d(3, 3, 3), r"padding must be 'same', or \(1,\) for this kernel.*got \(0,\)"),
        (nn.Conv1d(3, 3, 3, padding="valid"), "padding must be 'same'.*got 'valid'"),
        (
            nn.Conv2d(3, 3, 5, padding=2, dilation=2),
            r"padding must be 'same', or \(4, 4\).*got \(2, 2\)",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_unsupported_modules_are_an_error(module: nn.Module, message: str):
    with pytest.raises(ValueError, match=message):
        check_supported_convolution(module)


def test_rank_of_a_grouped_convolution_is_an_error():
    with pytest.raises(ValueError, match=r"groups must be 1.*got 2"):
        low_rank_convolution(nn.Conv2d(4, 4, 3, padding=1, groups=2), 1)


def test_window_reach_depends_on_kernel_size_and_dilation():
    assert compute_kernel_radius(draw_convolution(3, (1, 3, 7), dilation=(5, 2, 1))) == (0, 2, 3)


def test_offset_matrices_are_in_row_major_order():
    convolution = draw_convolution(2, (3, 5))
    matrices = split_weight_by_offset(convolution)
    assert matrices.shape == (15, 4, 3)
    assert torch.equal(matrices[1 * 5 + 4], convolution.weight[:, :, 1, 4])


def test_product_of_the_factors_is_the_matrices():
    matrices = split_weight_by_offset(draw_convolution(2, 3, (6, 3)))
    for products in (matrices, matrices.mT):
        values, outputs = factor_matrices(products, 3)
        assert values.shape[1] == outputs.shape[2] == 3
        assert torch.equal(outputs @ values, products)


def test_factors_of_a_low_rank_matrix_have_equal_norms():
    generator = torch.Generator().manual_seed(0)
    left, right = (
        torch.randn(*shape, dtype=torch.float64, generator=generator)
        for shape in ((9, 7, 2), (9, 2, 5))
    )
    values, outputs = factor_matrices(left @ right, 2)
    assert largest_difference(outputs @ values, left @ right) < 1e-13
    assert torch.allclose(values.flatten(1).norm(dim=1), outputs.flatten(1).norm(dim=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rank", [1, 3, 5])
def test_nearest_convolution_fits_heads_of_its_rank_and_has_the_predicted_error(
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


def test_gradient_descent_finds_no_closer_rank_one_convolution():
    convolution = draw_convolution(1, 3, (4, 5))
    _, error = low_rank_convolution(convolution, 1)
    matrices = split_weight_by_offset(convolution)
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


def test_low_rank_convolution_keeps_its_argument_and_full_ranks():
    convolution, images = draw_convolution(2, 3), draw_images(2)
    before = convolution.weight.detach().clone()
    nearest, error = low_rank_convolution(convolution, 3)
    assert error == 0.0
    low_rank_convolution(convolution, 1)
    assert torch.equal(convolution.weight, before)
    with torch.no_grad():
        assert largest_difference(nearest(images), convolution(images)) < 1e-14


def test_zero_weights_have_no_error():
    convolution = draw_convolution(1, 3)
    torch.nn.init.zeros_(convolution.weight)
    assert low_rank_convolution(convolution, 1)[1] == 0.0
    assert attention_from_convolution(convolution, dim_head=1).attention.dim_head == 1


def test_a_rank_below_one_is_an_error():
    with pytest.raises(ValueError, match=r"rank must be at least 1.*got 0"):
        low_rank_convolution(draw_convolution(1, 3), 0)


@given(precision=st.floats(0.05, 20), num_axes=st.integers(1, 3))
def test_bound_of_the_off_center_weight_holds_and_is_tight(precision: float, num_axes: int):
    cells = torch.arange(-400, 401, dtype=torch.float64)
    exact = 1 - float(torch.exp(-precision * cells.square()).sum()) ** -num_axes
    bound = off_center_weight(precision, num_axes)
    assert exact <= bound + 1e-15
    if precision >= 1:
        assert bound - exact <= 4 * num_axes * math.exp(-2 * precision) + 1e-15


def test_hard_heads_have_no_off_center_weight():
    assert off_center_weight(math.inf, 2) == 0.0
    for dtype in (torch.float32, torch.float64):
        assert torch.exp(torch.tensor(-HARD_PRECISION, dtype=dtype)) == 0


@given(tolerance=st.floats(1e-100, 1.0), num_axes=st.integers(1, 3))
def test_precision_for_tolerance_is_the_smallest_sufficient_one(tolerance: float, num_axes: int):
    precision = precision_for_tolerance(tolerance, num_axes)
    assert 2 * off_center_weight(precision, num_axes) == pytest.approx(tolerance, rel=1e-12)
    assert 2 * off_center_weight(0.999 * precision, num_axes) > tolerance


def test_inputs_of_opposite_signs_approach_the_error_bound():
    # The input is 1 at the offset of the head and −1 elsewhere, so stray weight counts twice.
    convolution = draw_convolution(1, 1, (1, 1), bias=False)
    grid, precision = Grid(41), 8.0
    tokens = -torch.ones(1, 41, 1, dtype=torch.float64)
    tokens[:, 20] = 1
    with torch.no_grad():
        found = attention_from_convolution(convolution, precision=precision)(tokens, grid)[0, 20]
        error = float((found - convolution.weight[0, 0]).abs())
    bound = conversion_error_bound(convolution, precision=precision, largest_input=1.0)
    assert 0.998 * bound < error <= bound


def test_rounding_term_of_the_bound_depends_on_the_dtype():
    for dtype in (torch.float32, torch.float64):
        convolution = draw_convolution(2, 3, dtype=dtype)
        floor = conversion_error_bound(convolution, precision=math.inf, largest_input=1.0)
        assert 10 < floor / torch.finfo(dtype).eps < 1000
        assert conversion_error_bound(convolution, precision=900.0, largest_input=1.0) == floor


@pytest.mark.parametrize("largest_input", [-1.0, math.inf, math.nan])
def test_invalid_largest_input_is_an_error(largest_input: float):
    with pytest.raises(ValueError, match="largest_input must be"):
        conversion_error_bound(draw_convolution(1, 3), precision=1.0, largest_input=largest_input)


@pytest.mark.parametrize("tolerance", [0.0, 1.1, math.nan])
def test_a_tolerance_out_of_range_is_an_error(tolerance: float):
    with pytest.raises(ValueError, match="tolerance must be"):
        precision_for_tolerance(tolerance, 1)


def test_a_precision_that_is_not_positive_is_an_error(unchecked_annotations: None):
    with pytest.raises(ValueError, match=r"precision must be a positive number.*got -1.0"):
        off_center_weight(-1.0, 1)
    with pytest.raises(ValueError, match=r"^precision must be a positive number"):
        off_center_weight(torch.ones(2), 1)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("num_axes", [0, 1.5, (1.0,)])
def test_invalid_number_of_axes_is_an_error(num_axes, unchecked_annotations: None):
    for function, number in ((precision_for_tolerance, 0.1), (off_center_weight, 1.0)):
        with pytest.raises(ValueError, match="num_axes must be"):
            function(number, num_axes)


@pytest.mark.parametrize("number", ["a", math.nan, -1.0])
def test_invalid_precision_or_largest_input_is_an_error(number, unchecked_annotations: None):
    for argument in ("precision", "largest_input"):
        arguments = {"precision": 1.0, "largest_input": 1.0, argument: number}
        with pytest.raises(ValueError, match=f"{argument} must be"):
            conversion_error_bound(draw_convolution(2, 3), **arguments)
    with pytest.raises(ValueError, match=r"tolerance must be a number from"):
        precision_for_tolerance(number, 1)
