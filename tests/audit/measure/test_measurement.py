import pytest

from teka.audit.measure.measurement import Deadline


def test_the_time_left_is_that_of_the_rest_at_the_pace_so_far():
    told = []
    deadline = Deadline(progress=lambda *numbers: told.append(numbers))
    before = deadline.seconds
    deadline.report(asked=10, done=30, total=50)
    done, total, left = told[0]
    assert (done, total) == (30, 50)
    assert 2 * before <= left <= 2 * deadline.seconds


def test_the_time_left_is_never_more_than_the_budget():
    told = []
    deadline = Deadline(3.0, lambda *numbers: told.append(numbers))
    deadline.report(asked=1, done=1, total=10**15)
    assert 0 <= told[0][2] <= 3.0


def test_without_a_budget_the_time_never_ends():
    assert not Deadline().passed


def test_a_budget_ends():
    assert Deadline(1e-9).passed
    assert not Deadline(1e9).passed


@pytest.mark.parametrize("budget", [0, -1.0, float("nan")])
def test_a_budget_that_is_not_positive_is_refused(budget):
    with pytest.raises(ValueError, match="budget_seconds is"):
        Deadline(budget)
