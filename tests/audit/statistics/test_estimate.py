import sys

import pytest

from teka.audit import Estimate
from teka.audit.statistics.estimate import BootstrapSettings, Curve, mean_over_seeds, scipy_special
from teka.codec import decode, encode

# Abramowitz and Stegun, Table 26.10, of two-sided confidence.
TABLE = {(1, 0.95): 12.706, (2, 0.95): 4.303, (3, 0.95): 3.182, (29, 0.95): 2.045, (7, 0.99): 3.499}


def test_a_mean_over_seeds_has_students_interval_with_the_published_quantiles():
    for (degrees, confidence), quantile in TABLE.items():
        found = mean_over_seeds([float(value) for value in range(degrees + 1)], confidence)
        size = degrees + 1
        spread = (size * (size + 1) / 12) ** 0.5  # the standard deviation of 0 … n − 1
        half = quantile * spread / size**0.5
        assert (found.value, found.half_width) == (degrees / 2, pytest.approx(half, rel=2e-4)), (
            degrees
        )
        assert found.half_width is not None
        ends = found.value - found.half_width, found.value + found.half_width
        assert (found.lower, found.upper) == pytest.approx(ends), degrees


def test_one_seed_has_a_mean_but_no_interval():
    found = mean_over_seeds([0.3])
    assert (found.value, found.lower, found.upper, found.half_width) == (0.3, 0.3, 0.3, None)


def test_what_has_no_mean_over_seeds_is_refused():
    with pytest.raises(ValueError, match=r"values must be one value or more.*got \[\]"):
        mean_over_seeds([])


@pytest.mark.parametrize("confidence", [0.0, 1.0, -0.5, 95.0])
def test_a_confidence_outside_zero_and_one_is_refused(confidence):
    with pytest.raises(ValueError, match=r"^confidence must be"):
        BootstrapSettings(confidence=confidence)
    with pytest.raises(ValueError, match=r"^confidence must be"):
        mean_over_seeds([1.0], confidence)


def test_each_end_of_an_interval_needs_a_resample_beyond_it():
    assert BootstrapSettings(0.95, 40).num_resamples == 40
    with pytest.raises(ValueError, match=r"^num_resamples must be .* = 40.*got 39"):
        BootstrapSettings(0.95, 39)
    with pytest.raises(ValueError, match=r"= 200, got 199"):
        BootstrapSettings(0.99, 199)


def test_estimates_and_curves_are_written_and_read():
    for saved in (
        mean_over_seeds([0.5, 0.7]),
        Curve((1.0,), (0.5,), (2.0,), (0.2,), (3.0,), "wilson"),
    ):
        assert decode(type(saved), encode(saved)) == saved
    assert Estimate(0.5, 0.5, 0.5, 0.95, "none, fewer than 10 images").half_width is None


def test_without_scipy_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(ImportError, match=r"pip install teka\[audit\]"):
        scipy_special()
