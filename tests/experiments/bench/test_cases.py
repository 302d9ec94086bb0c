import math

import pytest

from teka.experiments.bench import cases as cases_module
from teka.experiments.bench.cases import Budget, extrapolate, largest_bytes
from teka.experiments.bench.measure import Cost, Deadline


@pytest.fixture
def at(monkeypatch):
    """Set the clock."""

    def set_clock(seconds: float) -> None:
        monkeypatch.setattr(cases_module.time, "perf_counter", lambda: seconds)

    return set_clock


def test_a_warm_up_leaves_time_for_all_rounds_that_count(at):
    at(100.0)
    deadline = Deadline(share_end=110.0, budget_end=200.0)
    assert deadline.allows_warmup(2.5, repeats=3)
    assert not deadline.allows_warmup(2.6, repeats=3)


def test_three_rounds_may_take_more_than_the_share_and_the_others_not(at):
    at(100.0)
    deadline = Deadline(share_end=101.0, budget_end=200.0)
    assert [deadline.allows_round(done, 5.0) for done in range(5)] == [True, True, True, False, False]
    assert deadline.allows_round(3, 1.0)


def test_one_round_always_runs_and_more_only_within_the_budget(at):
    at(100.0)
    deadline = Deadline(share_end=99.0, budget_end=104.0)
    assert [deadline.allows_round(done, 5.0) for done in range(3)] == [True, False, False]


def test_what_is_left_is_shared_by_the_roots_of_the_sizes(at):
    budget = Budget(800.0, start=1000.0)
    at(1100.0)
    assert budget.left() == 700.0
    deadline = budget.deadline((256, 1024, 4096))  # roots as 1 to 2 to 4
    assert (deadline.share_end, deadline.budget_end) == (pytest.approx(1200.0), pytest.approx(1800.0))
    at(2000.0)
    assert budget.left() == 0.0


def test_the_last_size_may_take_all_that_is_left(at):
    at(10.0)
    deadline = Budget(60.0, start=0.0).deadline((4096,))
    assert deadline.share_end == deadline.budget_end == 60.0


def known(*points: tuple[int, float]) -> dict[int, Cost]:
    return {length: Cost(value, int(1000 * value), 1) for length, value in points}


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([], 0.0),
        ([(256, 3.0)], 12.0),  # one size: in proportion
        ([(64, 1.0), (256, 8.0)], 64.0),  # growth by L^1.5 goes on
        ([(16, 1e-9), (64, 1.0), (256, 8.0)], 64.0),  # the last two count
        ([(64, 3.0), (256, 3.0)], 12.0),  # that of calling operations at first: not below L
        ([(64, 1.0), (256, 64.0)], 1024.0),  # and not above L²
    ],
)
def test_time_and_memory_go_on_as_they_last_grew_between_linear_and_quadratic(points, expected: float):
    assert extrapolate(known(*points), 1024, "seconds") == pytest.approx(expected)
    assert extrapolate(known(*points), 1024, "peak_bytes") == pytest.approx(1000 * expected)


def test_the_bound_of_memory_is_quadratic_growth_and_from_two_sizes_on_their_own_and_half_as_much_again():
    assert largest_bytes(known((256, 3.0)), 1024) == pytest.approx(48_000)
    assert largest_bytes(known((64, 9.0), (256, 3.0)), 1024) == pytest.approx(1.5 * 12_000)
    assert largest_bytes(known((64, 1.0), (256, 16.0)), 1024) == pytest.approx(1.5 * 256_000)
    assert largest_bytes({}, 1024) == math.inf
