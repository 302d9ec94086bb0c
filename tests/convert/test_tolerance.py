import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.convert.convolutions import draw_convolution

from teka import Grid
from teka.convert import attention_from_convolution, conversion_error_bound, precision_for_tolerance, stray_weight
from teka.convert.convolutions import hard_precision

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
        assert bound - (1 - exact) <= 2 * len(spacing) * math.exp(-7 * precision * min(spacing) ** 2) + 1e-15


def test_it_is_sharper_than_the_geometric_series():
    for precision in (0.5, 1.0, 3.0):
        ratio = math.exp(-precision)
        assert stray_weight(precision, (1.0, 1.0)) < (1 + 2 * ratio / (1 - ratio)) ** 2 - 1


def test_the_limit_is_0_and_reached_where_exponentials_end():
    assert stray_weight(math.inf, (1.0, 2.0)) == 0.0
    for dtype in (torch.float32, torch.float64):
        assert torch.exp(torch.tensor(-hard_precision((0.5, 2.0)) * 0.5**2, dtype=dtype)) == 0


@given(tolerance=st.floats(1e-14, 1.9), spacing=steps)
def test_the_precision_for_a_tolerance_keeps_it_and_a_smaller_one_does_not(tolerance: float, spacing: list[float]):
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
    with pytest.raises(ValueError, match="largest_input is"):
        conversion_error_bound(draw_convolution(1, 3), precision=1.0, largest_input=largest_input)


@pytest.mark.parametrize("tolerance", [0.0, 2.0, math.nan])
def test_a_tolerance_that_no_precision_or_any_keeps_is_refused(tolerance: float):
    with pytest.raises(ValueError, match="tolerance is"):
        precision_for_tolerance(tolerance, (1.0,))


def test_a_precision_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match=r"precision is -1.0, expected a positive number"):
        stray_weight(-1.0, (1.0,))
