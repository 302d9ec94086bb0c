import pytest

from teka.cli.audit_options import ShiftOptions


@pytest.mark.parametrize(
    ("name", "largest", "step", "expected"),
    [
        ("dx", 1, 1, ((0, -1), (0, 0), (0, 1))),
        ("dy", 1, 0.5, ((-1, 0), (-0.5, 0), (0, 0), (0.5, 0), (1, 0))),
        ("square", 0, 1, ((0, 0),)),
    ],
)
def test_make_shifts_returns_the_shifts_of_a_set(name, largest, step, expected):
    shifts = ShiftOptions(shifts=name, max_shift=largest, step=step).list_shifts()
    assert shifts is not None
    assert set(shifts) == set(expected)
    assert len(shifts) == len(expected)


@pytest.mark.parametrize(
    ("name", "largest", "step", "message"),
    [
        # A square of ±157 has 99,225 shifts, a square of ±158 has 100,489.
        (
            "square",
            158,
            1,
            "max_shift must be from 0 to 157 for the shifts 'square' in steps of 1, got 158",
        ),
        (
            "axes",
            501,
            1,
            "max_shift must be from 0 to 500 for the shifts 'axes' in steps of 1, got 501",
        ),
        (
            "square",
            8,
            0.001,
            "max_shift must be from 0 to 0.157 for the shifts 'square' in steps of 0.001, got 8",
        ),
    ],
)
def test_too_many_shifts_are_an_error_with_the_largest_max_shift(name, largest, step, message):
    with pytest.raises(ValueError, match=message):
        ShiftOptions(shifts=name, max_shift=largest, step=step).list_shifts()


def test_make_shifts_returns_the_number_of_shifts_of_a_set():
    assert len(ShiftOptions(shifts="square", max_shift=3, step=1).list_shifts() or ()) == 49
    assert len(ShiftOptions(shifts="axes", max_shift=3, step=1).list_shifts() or ()) == 13
    assert ShiftOptions(shifts="square", max_shift=None, step=1).list_shifts() is None
