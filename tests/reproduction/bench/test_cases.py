import pytest

from reproduction.bench import cases as cases_module
from reproduction.bench.cases import Budget, extrapolate
from reproduction.bench.measure import Cost


@pytest.fixture
def at(monkeypatch):
    """Set the clock."""

    def set_clock(seconds: float) -> None:
        monkeypatch.setattr(cases_module.time, "perf_counter", lambda: seconds)

    return set_clock


def test_what_is_left_is_shared_by_the_roots_of_the_sizes(at):
    budget = Budget(800.0, start=1000.0)
    at(1100.0)
    assert budget.left() == 700.0
    assert budget.deadline((256, 1024, 4096)) == pytest.approx(1200.0)  # roots as 1 to 2 to 4
    at(2000.0)
    assert budget.left() == 0.0


def test_the_last_size_may_take_all_that_is_left(at):
    at(10.0)
    assert Budget(60.0, start=0.0).deadline((4096,)) == 60.0


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
def test_time_and_memory_go_on_as_they_last_grew_between_linear_and_quadratic(
    points, expected: float
):
    assert extrapolate(known(*points), 1024, "seconds") == pytest.approx(expected)
    assert extrapolate(known(*points), 1024, "peak_bytes") == pytest.approx(1000 * expected)
