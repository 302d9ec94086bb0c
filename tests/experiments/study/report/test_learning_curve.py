import pytest

from teka.experiments.study.report.learning_curve import LearningCurve

CURVE = LearningCurve((3, 7, 11), (1.0, 2.0, 5.0), (0.2, 0.6, 0.9), (2.0, 1.0, 0.5))


def test_measured_points_are_kept():
    assert [CURVE.accuracy_at_step(step) for step in CURVE.steps] == list(CURVE.accuracy)
    assert [CURVE.accuracy_at_seconds(seconds) for seconds in CURVE.process_seconds] == list(CURVE.accuracy)


def test_values_between_points_are_linear():
    assert CURVE.accuracy_at_step(4) == pytest.approx(0.3)
    assert CURVE.seconds_at_step(8) == pytest.approx(2.75)
    assert CURVE.accuracy_at_seconds(4.0) == pytest.approx(0.8)


@pytest.mark.parametrize(("step", "seconds"), [(2, 0.9), (12, 5.1)], ids=["before", "after"])
def test_nothing_is_known_outside_the_measured_points(step, seconds):
    assert CURVE.accuracy_at_step(step) is None
    assert CURVE.accuracy_at_seconds(seconds) is None


def test_points_at_the_same_time_are_no_division_by_zero():
    curve = LearningCurve((1, 2, 3), (1.0, 1.0, 2.0), (0.1, 0.2, 0.3), (1.0, 1.0, 1.0))
    assert curve.accuracy_at_seconds(1.0) == 0.1
    assert curve.accuracy_at_seconds(1.5) == pytest.approx(0.25)
