import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from teka.audit import axis_shifts, square_shifts
from teka.audit.measure.shift_order import shift_order

SHIFTS = st.lists(st.tuples(*[st.integers(-11, 11)] * 2), min_size=1, max_size=40, unique=True)


def ordered(shifts):
    return [shifts[index] for index in shift_order(shifts)]


@given(SHIFTS)
def test_the_order_is_a_permutation(shifts):
    assert sorted(shift_order(shifts)) == list(range(len(shifts)))


@given(SHIFTS)
def test_the_zero_shift_comes_first(shifts):
    assert ordered([*(shift for shift in shifts if any(shift)), (0, 0)])[0] == (0, 0)


@pytest.mark.parametrize(("step", "number"), [(8, 9), (4, 25), (2, 81), (1, 289)])
def test_the_first_shifts_of_a_square_are_a_coarser_square(step, number):
    steps = range(-8, 9, step)
    assert sorted(ordered(square_shifts(8))[:number]) == sorted(itertools.product(steps, steps))


def test_the_far_corners_come_after_zero():
    assert set(ordered(square_shifts(5))[1:5]) == {(-5, -5), (-5, 5), (5, -5), (5, 5)}


def test_shifts_along_the_axes_go_from_the_ends_inwards():
    assert ordered(axis_shifts(4)) == [
        *[(0, 0), (-4, 0), (4, 0), (0, -4), (0, 4)],
        *[(-2, 0), (2, 0), (0, -2), (0, 2)],
        *[(-3, 0), (3, 0), (0, -3), (0, 3), (-1, 0), (1, 0), (0, -1), (0, 1)],
    ]


def test_shifts_to_one_side_and_by_fractions_are_ordered_too():
    assert ordered([(0.5,), (1.0,), (1.5,), (2.0,), (0.0,)]) == [(0.0,), (2.0,), (1.0,), (1.5,), (0.5,)]
