import inspect

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from teka import Grid
from teka.audit import axis_shifts, square_shifts
from teka.audit.shifts import check_shift, check_shifts, check_subpixel_shift, check_subpixel_shifts


def test_axis_shifts_are_the_lines_through_zero():
    assert axis_shifts(1) == ((-1, 0), (0, 0), (1, 0), (0, -1), (0, 1))


def test_square_shifts_are_all_pairs_in_row_major_order():
    assert square_shifts(1) == ((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 0), (0, 1), (1, -1), (1, 0), (1, 1))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 4), st.integers(1, 3))
def test_the_sets_have_the_stated_sizes_without_repeats(max_shift, num_axes):
    lines = axis_shifts(max_shift, num_axes)
    square = square_shifts(max_shift, num_axes)
    assert len(lines) == len(set(lines)) == 2 * max_shift * num_axes + 1
    assert len(square) == len(set(square)) == (2 * max_shift + 1) ** num_axes
    assert set(lines) == {shift for shift in square if sum(map(bool, shift)) <= 1}


@pytest.mark.parametrize("make", [axis_shifts, square_shifts])
def test_a_negative_reach_or_no_axis_is_refused(make):
    with pytest.raises(ValueError, match="max_shift is -1"):
        make(-1)
    with pytest.raises(ValueError, match="num_axes is 0"):
        make(1, 0)


def test_ints_and_tuples_become_one_step_for_each_axis_and_repeats_count_once():
    assert check_shifts(Grid((5, 7)), [3, (0, 3), (-5, 2), [1, 0]]) == ((0, 3), (-5, 2), (1, 0))


def test_numpy_integers_are_integers():
    numbers = np.arange(-3, 3)
    assert check_shifts(Grid((5, 7)), [numbers[0], (numbers[5], 1)]) == ((0, -3), (2, 1))


def test_a_shift_may_be_as_long_as_the_canvas_but_not_longer():
    assert check_shift(Grid((5, 7)), (-5, 7)) == (-5, 7)
    with pytest.raises(ValueError, match=r"shift is \(6, 0\).*\(5, 7\)"):
        check_shift(Grid((5, 7)), (6, 0))


def test_a_shift_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match="shift is"):
        check_shift(Grid((5, 7)), (1, 2, 3))


@pytest.mark.parametrize("check", [check_shifts, check_subpixel_shifts])
def test_an_empty_set_is_refused(check):
    with pytest.raises(ValueError, match="at least one shift"):
        check(Grid((5, 7)), [])


def test_sub_pixel_shifts_keep_fractions_and_whole_ones_are_ints():
    steps = check_subpixel_shifts(Grid((5, 7)), [0.5, (0, 0.5), (1.0, np.float32(-2.25)), (1, -2.25)])
    assert steps == ((0, 0.5), (1, -2.25))
    assert type(steps[1][0]) is int


@pytest.mark.parametrize("shift", [(0.5,), (1, 2, 3), (0.0, float("nan")), (0.0, float("inf")), ("a", "b")])
def test_a_sub_pixel_shift_needs_a_finite_number_for_each_axis(shift):
    # Past the annotations, as a caller without a type checker would come.
    with pytest.raises(ValueError, match=r"shift is .*a finite number for each of the 2 axes"):
        inspect.unwrap(check_subpixel_shift)(Grid((5, 7)), shift)


def test_a_sub_pixel_shift_may_be_as_long_as_the_canvas_but_not_longer():
    assert check_subpixel_shift(Grid((5, 7)), (-5, 6.75)) == (-5, 6.75)
    with pytest.raises(ValueError, match=r"shift is \(5.25, 0\).*\(5, 7\)"):
        check_subpixel_shift(Grid((5, 7)), (5.25, 0))
