import pytest
import torch
from scipy import stats

from teka.audit.statistics.estimate import BootstrapSettings
from teka.audit.statistics.intervals import NO_INTERVAL
from teka.audit.statistics.seed_values import SeedValues
from teka.audit.statistics.two_levels import two_level_curve

SETTINGS = BootstrapSettings(num_resamples=4000)


def seeds_of(values, image_deviation=0.0):
    """Seeds with the given values; images move all of them together."""
    draws = image_deviation * torch.randn(4000, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return [SeedValues(torch.tensor([value], dtype=torch.float64), value + draws) for value in values]


def test_without_any_doubt_from_images_it_is_the_interval_of_student():
    values = [0.4, 0.5, 0.45, 0.55, 0.3]
    curve = two_level_curve(seeds_of(values), 100, SETTINGS)
    lower, upper = stats.t.interval(0.95, 4, loc=0.44, scale=stats.sem(values))
    assert (curve.lower[0], curve.upper[0]) == pytest.approx((lower, upper))
    # A band of one row is its interval, up to the draws.
    assert curve.band_upper[0] - 0.44 == pytest.approx(upper - 0.44, rel=0.05)


def test_with_equal_seeds_it_is_the_normal_interval_of_the_images():
    curve = two_level_curve(seeds_of([0.5] * 4, 0.02), 100, SETTINGS)
    assert curve.upper[0] - 0.5 == pytest.approx(1.96 * 0.02, rel=0.05)


def test_both_levels_add_up_and_the_larger_one_sets_the_degrees_of_freedom():
    values = [0.48, 0.5, 0.52]
    seeds, images = stats.sem(values) ** 2, 0.03**2
    curve = two_level_curve(seeds_of(values, 0.03), 100, SETTINGS)
    degrees = int(2 * (1 + images / seeds) ** 2)
    expected = stats.t.ppf(0.975, degrees) * (seeds + images) ** 0.5
    assert curve.upper[0] - 0.5 == pytest.approx(expected, rel=0.05)


def test_ends_stay_within_the_range_of_the_number():
    curve = two_level_curve(seeds_of([0.9, 1.0, 0.7]), 100, SETTINGS, largest=1.0)
    assert curve.upper == curve.band_upper == (1.0,)
    assert two_level_curve(seeds_of([0.0, 0.1, 0.4]), 100, SETTINGS).lower == (0.0,)


def test_magnitudes_of_few_images_have_no_interval():
    curve = two_level_curve(seeds_of([0.1, 0.4, 0.3]), 9, SETTINGS)
    assert curve.method == NO_INTERVAL
    assert curve.lower == curve.upper == curve.values
