import inspect
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from teka.audit import axis_shifts, square_shifts
from teka.audit.shifts import parse_shifts, shift_order
from tests.raising import raises_for


def test_axis_shifts_have_at_most_one_nonzero_step():
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
def test_shift_sets_have_the_documented_sizes_without_repeats(max_shift, num_axes):
    lines = axis_shifts(max_shift, num_axes)
    square = square_shifts(max_shift, num_axes)
    assert len(lines) == len(set(lines)) == 2 * max_shift * num_axes + 1
    assert len(square) == len(set(square)) == (2 * max_shift + 1) ** num_axes
    assert set(lines) == {shift for shift in square if sum(map(bool, shift)) <= 1}


def test_negative_max_shift_or_zero_axes_are_errors():
    for make in [axis_shifts, square_shifts]:
        with raises_for(make.__name__, ValueError, match=r"max_shift must be .*got -1"):
            make(-1)
        with raises_for(make.__name__, ValueError, match=r"num_axes must be .*got 0"):
            make(1, 0)


def test_shifts_become_tuples_without_repeats():
    assert parse_shifts((5, 7), [3, (0, 3), (-5, 2), [1, 0]]) == ((0, 3), (-5, 2), (1, 0))


def test_whole_numbers_become_ints_and_fractions_stay():
    numbers = np.arange(-3, 3)
    assert parse_shifts((5, 7), [numbers[0], (numbers[5], 1)]) == ((0, -3), (2, 1))
    steps = parse_shifts((5, 7), [0.5, (0, 0.5), (1.0, np.float32(-2.25)), (1, -2.25)])
    assert steps == ((0, 0.5), (1, -2.25))
    assert type(steps[1][0]) is int


def test_shift_longer_than_the_canvas_is_an_error():
    assert parse_shifts((5, 7), [(-5, 7), (-5, 6.75)]) == ((-5, 7), (-5, 6.75))
    for shift in ((6, 0), (5.25, 0)):
        with raises_for(
            shift, ValueError, match=rf"shifts must be .*\(5, 7\), got \({shift[0]}, 0\)"
        ):
            parse_shifts((5, 7), [shift])


def test_empty_set_of_shifts_is_an_error():
    with pytest.raises(ValueError, match="at least one shift"):
        parse_shifts((5, 7), [])


def test_shift_needs_a_finite_number_for_each_axis():
    for shift in [(0.5,), (1, 2, 3), (0.0, float("nan")), (0.0, float("inf")), ("a", "b")]:
        # A caller without a type checker can pass these values.
        with raises_for(shift, ValueError, match=r"shifts must be .*a finite number"):
            inspect.unwrap(parse_shifts)((5, 7), [shift])


SHIFTS = st.lists(st.tuples(*[st.integers(-11, 11)] * 2), min_size=1, max_size=40, unique=True)


def ordered(shifts):
    return [shifts[index] for index in shift_order(shifts)]


@given(SHIFTS)
def test_measuring_order_is_a_permutation(shifts):
    assert sorted(shift_order(shifts)) == list(range(len(shifts)))


@given(SHIFTS)
def test_measuring_order_starts_with_the_zero_shift(shifts):
    assert ordered([*(shift for shift in shifts if any(shift)), (0, 0)])[0] == (0, 0)


def test_measuring_order_of_a_square_starts_with_a_coarser_square():
    for step, number in [(8, 9), (4, 25), (2, 81), (1, 289)]:
        steps = range(-8, 9, step)
        assert sorted(ordered(square_shifts(8))[:number]) == sorted(
            itertools.product(steps, steps)
        ), (step, number)


def test_measuring_order_puts_large_powers_of_two_first():
    assert set(ordered(square_shifts(5))[1:9]) == {*itertools.product((-4, 0, 4), repeat=2)} - {
        (0, 0)
    }


def test_measuring_order_along_the_axes_starts_at_the_ends():
    assert ordered(axis_shifts(4)) == [
        *[(0, 0), (-4, 0), (4, 0), (0, -4), (0, 4)],
        *[(-2, 0), (2, 0), (0, -2), (0, 2)],
        *[(-3, 0), (3, 0), (0, -3), (0, 3), (-1, 0), (1, 0), (0, -1), (0, 1)],
    ]


def test_measuring_order_of_one_sided_and_fractional_shifts():
    assert ordered([(0.5,), (1.0,), (1.5,), (2.0,), (0.0,)]) == [
        (0.0,),
        (2.0,),
        (1.0,),
        (1.5,),
        (0.5,),
    ]
