import math

import pytest

from teka.experiments.study.report.estimate import estimate, student_quantile

# Abramowitz and Stegun, Table 26.10.
TABLE = {(1, 0.95): 12.706, (2, 0.95): 4.303, (3, 0.95): 3.182, (4, 0.95): 2.776, (29, 0.95): 2.045, (7, 0.99): 3.499}


@pytest.mark.parametrize(("freedom", "confidence"), TABLE)
def test_the_quantile_is_that_of_the_published_table(freedom, confidence):
    assert student_quantile(freedom, confidence) == pytest.approx(TABLE[freedom, confidence], abs=6e-4)


def test_one_degree_of_freedom_is_cauchy_and_two_have_a_closed_form():
    assert student_quantile(1, 0.9) == pytest.approx(math.tan(0.9 * math.pi / 2), rel=1e-12)
    assert student_quantile(2, 0.9) == pytest.approx(0.9 * math.sqrt(2 / (1 - 0.9**2)), rel=1e-12)


def test_many_degrees_of_freedom_are_normal():
    assert student_quantile(100_001) == pytest.approx(1.959964, abs=1e-4)


def test_the_interval_of_two_values_is_known():
    found = estimate([0.5, 0.7])
    assert found.mean == pytest.approx(0.6)
    assert found.half_width == pytest.approx(0.1 * student_quantile(1))
    assert found.interval == pytest.approx((0.6 - 0.1 * student_quantile(1), 0.6 + 0.1 * student_quantile(1)))


def test_one_value_has_no_interval():
    assert estimate([0.3]) == (0.3, None, 1)
    assert estimate([0.3]).interval is None


@pytest.mark.parametrize(("freedom", "confidence"), [(0, 0.95), (3, 0.0), (3, 1.0)])
def test_what_has_no_quantile_is_an_error(freedom, confidence):
    with pytest.raises(ValueError, match="expected"):
        student_quantile(freedom, confidence)


def test_no_value_has_no_mean():
    with pytest.raises(ValueError, match="values is \\[\\], expected one value or more"):
        estimate([])
