import pytest
from scipy import stats

from teka.audit.statistics.student import student_quantile


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 9, 30, 200, 201, 999, 10**9])
@pytest.mark.parametrize("probability", [0.6, 0.975, 0.9995])
def test_it_is_that_of_scipy(degrees, probability):
    assert student_quantile(probability, degrees) == pytest.approx(stats.t.ppf(probability, degrees), rel=1e-7)
