import pytest

from teka.experiments.bench import budget as budget_module
from teka.experiments.bench.budget import Budget, Pace


@pytest.fixture
def at(monkeypatch):
    """Set the clock."""

    def set_clock(seconds: float) -> None:
        monkeypatch.setattr(budget_module.time, "perf_counter", lambda: seconds)

    return set_clock


def test_a_warm_up_leaves_time_for_all_rounds_that_count(at):
    at(100.0)
    pace = Pace(share_end=110.0, budget_end=200.0)
    assert pace.allows_warmup(2.5, repeats=3)
    assert not pace.allows_warmup(2.6, repeats=3)


def test_three_rounds_may_take_more_than_the_share_and_the_others_not(at):
    at(100.0)
    pace = Pace(share_end=101.0, budget_end=200.0)
    assert [pace.allows_round(done, 5.0) for done in range(5)] == [True, True, True, False, False]
    assert pace.allows_round(3, 1.0)


def test_one_round_always_runs_and_more_only_within_the_budget(at):
    at(100.0)
    pace = Pace(share_end=99.0, budget_end=104.0)
    assert [pace.allows_round(done, 5.0) for done in range(3)] == [True, False, False]


def test_what_is_left_is_shared_by_the_roots_of_the_sizes(at):
    budget = Budget(800.0, start=1000.0)
    at(1100.0)
    assert budget.left() == 700.0
    pace = budget.pace((256, 1024, 4096))  # roots as 1 to 2 to 4
    assert (pace.share_end, pace.budget_end) == (pytest.approx(1200.0), pytest.approx(1800.0))
    at(2000.0)
    assert budget.left() == 0.0


def test_the_last_size_may_take_all_that_is_left(at):
    at(10.0)
    pace = Budget(60.0, start=0.0).pace((4096,))
    assert pace.share_end == pace.budget_end == 60.0
