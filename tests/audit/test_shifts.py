import inspect
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from teka.audit import axis_shifts, square_shifts
from teka.audit.shifts import parse_shifts, shift_order
from tests.raising import raises_for


def test_axis_shifts_are_the_lines_through_zero():
    assert axis_shifts(1) == ((-1, 0), (0, 0), (1, 0), (0, -1), (0, 1))


def test_square_shifts_are_all_pairs_in_row_major_order():
    assert square_shifts(1) == (
        (-1, -1),
        (-1, 0),
        (-1, 1),
        (0, -1),
        (0, 0),
        (0, 1),
        (1, -1),
        (1, 0),
        (1, 1),
    )


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 4), st.integers(1, 3))
def test_the_sets_have_the_stated_sizes_without_repeats(max_shift, num_axes):
    lines = axis_shifts(max_shift, num_axes)
    square = square_shifts(max_shift, num_axes)
    assert len(lines) == len(set(lines)) == 2 * max_shift * num_axes + 1
    assert len(square) == len(set(square)) == (2 * max_shift + 1) ** num_axes
    assert set(lines) == {shift for shift in square if sum(map(bool, shift)) <= 1}


def test_a_negative_reach_or_no_axis_is_refused():
    for make in [axis_shifts, square_shifts]:
        with raises_for(make.__name__, ValueError, match=r"max_shift must be .*got -1"):
            make(-1)
        with raises_for(make.__name__, ValueError, match=r"num_axes must be .*got 0"):
            make(1, 0)


def test_ints_and_tuples_become_one_step_for_each_axis_and_repeats_count_once():
    assert parse_shifts((5, 7), [3, (0, 3), (-5, 2), [1, 0]]) == ((0, 3), (-5, 2), (1, 0))


def test_fractions_stay_and_whole_numbers_of_any_kind_are_ints():
    numbers = np.arange(-3, 3)
    assert parse_shifts((5, 7), [numbers[0], (numbers[5], 1)]) == ((0, -3), (2, 1))
    steps = parse_shifts((5, 7), [0.5, (0, 0.5), (1.0, np.float32(-2.25)), (1, -2.25)])
    assert steps == ((0, 0.5), (1, -2.25))
    assert type(steps[1][0]) is int


def test_a_shift_may_be_as_long_as_the_canvas_but_not_longer():
    assert parse_shifts((5, 7), [(-5, 7), (-5, 6.75)]) == ((-5, 7), (-5, 6.75))
    for shift in ((6, 0), (5.25, 0)):
        with raises_for(
            shift, ValueError, match=rf"shifts must be .*\(5, 7\), got \({shift[0]}, 0\)"
        ):
            parse_shifts((5, 7), [shift])


def test_an_empty_set_is_refused():
    with pytest.raises(ValueError, match="at least one shift"):
        parse_shifts((5, 7), [])


def test_a_shift_needs_a_finite_number_for_each_axis():
    for shift in [(0.5,), (1, 2, 3), (0.0, float("nan")), (0.0, float("inf")), ("a", "b")]:
        # Past the annotations, as a caller without a type checker would come.
        with raises_for(shift, ValueError, match=r"shifts must be .*a finite number"):
            inspect.unwrap(parse_shifts)((5, 7), [shift])


SHIFTS = st.lists(st.tuples(*[st.integers(-11, 11)] * 2), min_size=1, max_size=40, unique=True)


def ordered(shifts):
    return [shifts[index] for index in shift_order(shifts)]


@given(SHIFTS)
def test_the_order_is_a_permutation(shifts):
    assert sorted(shift_order(shifts)) == list(range(len(shifts)))


@given(SHIFTS)
def test_the_zero_shift_comes_first(shifts):
    assert ordered([*(shift for shift in shifts if any(shift)), (0, 0)])[0] == (0, 0)


def test_the_first_shifts_of_a_square_are_a_coarser_square():
    for step, number in [(8, 9), (4, 25), (2, 81), (1, 289)]:
        steps = range(-8, 9, step)
        assert sorted(ordered(square_shifts(8))[:number]) == sorted(
            itertools.product(steps, steps)
        ), (step, number)


def test_shifts_with_the_largest_power_of_two_come_after_zero():
    assert set(ordered(square_shifts(5))[1:9]) == {*itertools.product((-4, 0, 4), repeat=2)} - {
        (0, 0)
    }


def test_shifts_along_the_axes_go_from_the_ends_inwards():
    assert ordered(axis_shifts(4)) == [
        *[(0, 0), (-4, 0), (4, 0), (0, -4), (0, 4)],
        *[(-2, 0), (2, 0), (0, -2), (0, 2)],
        *[(-3, 0), (3, 0), (0, -3), (0, 3), (-1, 0), (1, 0), (0, -1), (0, 1)],
    ]


def test_shifts_to_one_side_and_by_fractions_are_ordered_too():
    assert ordered([(0.5,), (1.0,), (1.5,), (2.0,), (0.0,)]) == [
        (0.0,),
        (2.0,),
        (1.0,),
        (1.5,),
        (0.5,),
    ]
