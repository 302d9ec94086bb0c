import sys

import pytest

from teka.audit import Estimate
from teka.audit.statistics.estimate import (
    BootstrapSettings,
    Curve,
    mean_over_seeds,
    scipy_special,
    student_quantile,
)
from teka.codec import decode, encode

# Abramowitz and Stegun, Table 26.10, of two-sided confidence.
TABLE = {(1, 0.95): 12.706, (2, 0.95): 4.303, (3, 0.95): 3.182, (29, 0.95): 2.045, (7, 0.99): 3.499}


@pytest.mark.parametrize(("degrees", "confidence"), TABLE)
def test_the_quantile_is_that_of_the_published_table(degrees, confidence):
    assert student_quantile((1 + confidence) / 2, degrees) == pytest.approx(TABLE[degrees, confidence], abs=6e-4)


def test_a_mean_over_seeds_has_students_interval():
    found = mean_over_seeds([0.5, 0.7])
    half = 0.1 * student_quantile(0.975, 1)
    assert (found.value, found.half_width) == pytest.approx((0.6, half))
    assert (found.lower, found.upper) == pytest.approx((0.6 - half, 0.6 + half))


def test_one_seed_has_a_mean_but_no_interval():
    found = mean_over_seeds([0.3])
    assert (found.value, found.lower, found.upper, found.half_width) == (0.3, 0.3, 0.3, None)


def test_what_has_no_mean_over_seeds_is_refused():
    with pytest.raises(ValueError, match=r"values is \[\], expected one value or more"):
        mean_over_seeds([])


@pytest.mark.parametrize("confidence", [0.0, 1.0, -0.5, 95.0])
def test_a_confidence_outside_zero_and_one_is_refused(confidence):
    for make in (lambda: BootstrapSettings(confidence=confidence), lambda: mean_over_seeds([1.0], confidence)):
        with pytest.raises(ValueError, match=r"^confidence is"):
            make()


def test_each_end_of_an_interval_needs_a_resample_beyond_it():
    assert BootstrapSettings(0.95, 40).num_resamples == 40
    with pytest.raises(ValueError, match=r"^num_resamples is 39, .* = 40$"):
        BootstrapSettings(0.95, 39)
    with pytest.raises(ValueError, match=r"= 200$"):
        BootstrapSettings(0.99, 199)


def test_estimates_and_curves_are_written_and_read():
    for saved in (mean_over_seeds([0.5, 0.7]), Curve((1.0,), (0.5,), (2.0,), (0.2,), (3.0,), "wilson")):
        assert decode(type(saved), encode(saved)) == saved
    assert Estimate(0.5, 0.5, 0.5, 0.95, "none, fewer than 10 images").half_width is None


def test_without_scipy_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(ImportError, match=r"pip install teka\[audit\]"):
        scipy_special()
