import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from teka import Grid
from teka.audit import axis_shifts, square_shifts
from teka.audit.shifts import check_shift, check_shifts


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


def test_an_empty_set_is_refused():
    with pytest.raises(ValueError, match="at least one shift"):
        check_shifts(Grid((5, 7)), [])
