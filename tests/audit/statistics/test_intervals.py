import itertools

import pytest
import torch

from teka.audit import wilson_interval
from teka.audit.statistics.estimate import BootstrapSettings
from teka.audit.statistics.image_average import average
from teka.audit.statistics.intervals import (
    BOOTSTRAP,
    NO_INTERVAL,
    WILSON_IMAGES,
    estimate_magnitude,
    estimate_mean_share,
    estimate_share,
    highest_of,
    lowest_of,
    magnitude_curve,
    share_curve,
    wilson_of_mean,
)
from teka.audit.statistics.resampling import ImageResamples

FEW = BootstrapSettings(num_resamples=200)
TRIALS = 150


def correlated(shifts, images, correlation, generator):
    """Standard normal values of images at shifts; those of one image depend on each other, as answers do."""
    common = torch.randn(1, images, generator=generator, dtype=torch.float64)
    own = torch.randn(shifts, images, generator=generator, dtype=torch.float64)
    return correlation**0.5 * common + (1 - correlation) ** 0.5 * own


def holds(lower, upper, truth):
    return all(low <= truth <= high for low, high in zip(lower, upper, strict=True))


@pytest.mark.parametrize(("images", "share", "correlation"), [(60, 0.8, 0.5), (200, 0.99, 0.0)])
def test_the_band_covers_all_shares_together_and_the_lowest_while_the_intervals_do_not(images, share, correlation):
    generator = torch.Generator().manual_seed(0)
    threshold = torch.special.ndtri(torch.tensor(share, dtype=torch.float64))
    band = alone = lowest = 0
    for trial in range(TRIALS):
        outcomes = correlated(25, images, correlation, generator) < threshold
        curve = share_curve(outcomes, BootstrapSettings(num_resamples=200, seed=trial))
        band += holds(curve.band_lower, curve.band_upper, share)
        alone += holds(curve.lower, curve.upper, share)
        minimum = lowest_of(curve, 0.95)
        lowest += minimum.lower <= share <= minimum.upper
    # Three standard deviations of a share of 0.95 in 150 trials are 0.053.
    assert band / TRIALS > 0.897
    assert lowest / TRIALS > 0.897
    assert alone / TRIALS < 0.85


def test_the_band_of_skewed_magnitudes_covers_all_shifts_together():
    generator = torch.Generator().manual_seed(1)
    truth = torch.tensor(0.5).exp().item()
    band = interval = 0
    for trial in range(TRIALS):
        values = correlated(15, 100, 0.5, generator).exp()
        resamples = ImageResamples(100, BootstrapSettings(num_resamples=200, seed=trial))
        curve = magnitude_curve(average(values, resamples), resamples, 0.95)
        band += holds(curve.band_lower, curve.band_upper, truth)
        interval += curve.lower[0] <= truth <= curve.upper[0]
    assert band / TRIALS > 0.87
    assert interval / TRIALS > 0.87


def test_a_mean_over_images_covers_where_image_shift_pairs_would_not():
    generator = torch.Generator().manual_seed(2)
    images, pairs = 0, 0
    for _ in range(TRIALS):
        # Half of the images are stable at nearly all shifts, half at hardly any: the mean is one half.
        stable = torch.rand(80, generator=generator) < 0.5
        agrees = torch.rand(24, 80, generator=generator) < torch.where(stable, 0.98, 0.02)
        shares = agrees.double().mean(dim=0)[None]
        number = estimate_mean_share(average(shares, ImageResamples(80, FEW)), 0.95)
        images += number.lower <= 0.5 <= number.upper
        lower, upper = wilson_interval(int(agrees.sum()), agrees.numel())
        pairs += lower <= 0.5 <= upper
    assert images / TRIALS > 0.88
    assert pairs / TRIALS < 0.5


def test_a_share_known_by_definition_has_no_interval_and_others_at_one_do():
    curve = share_curve(torch.ones(3, 40, dtype=torch.bool), FEW, known=1)
    assert curve.lower[1] == curve.band_lower[1] == 1.0
    assert curve.lower[0] == wilson_interval(40, 40)[0]
    assert 0.8 < curve.band_lower[0] < curve.lower[0] < 1.0
    assert curve.upper == curve.band_upper == (1.0,) * 3


def test_bands_contain_intervals_which_contain_values():
    generator = torch.Generator().manual_seed(3)
    normal = correlated(11, 37, 0.3, generator)
    resamples = ImageResamples(37, FEW)
    for curve in (share_curve(normal < 1, FEW), magnitude_curve(average(normal.exp(), resamples), resamples, 0.95)):
        rows = (curve.band_lower, curve.lower, curve.values, curve.upper, curve.band_upper)
        for below, above in itertools.pairwise(rows):
            assert all(low <= high for low, high in zip(below, above, strict=True))
        assert all(band < end for band, end in zip(curve.band_lower, curve.lower, strict=True))


def test_a_power_is_taken_of_values_and_ends_alike():
    resamples = ImageResamples(30, FEW)
    squares = average(correlated(2, 30, 0.5, torch.Generator().manual_seed(4)).exp(), resamples)
    whole, root = (magnitude_curve(squares, resamples, 0.9, power=power) for power in (1.0, 0.5))
    for name in ("values", "lower", "upper", "band_lower", "band_upper"):
        assert getattr(root, name) == pytest.approx([value**0.5 for value in getattr(whole, name)])


def test_magnitudes_stay_below_what_they_cannot_exceed():
    values = torch.zeros(1, 20, dtype=torch.float64)
    values[0, 0] = 0.9
    resamples = ImageResamples(20, FEW)
    curve = magnitude_curve(average(values, resamples), resamples, 0.95, largest=0.1)
    assert curve.upper == curve.band_upper == (0.1,)


def test_few_images_have_no_bootstrap_but_shares_have_wilson():
    resamples = ImageResamples(9, FEW)
    magnitudes = average(torch.rand(1, 9, dtype=torch.float64), resamples)
    number = estimate_magnitude(magnitudes, 0.95)
    assert (number.lower, number.upper, number.method) == (number.value, number.value, NO_INTERVAL)
    curve = magnitude_curve(magnitudes, resamples, 0.95)
    assert curve.lower == curve.band_upper == curve.values
    assert curve.method == highest_of(curve, 0.95).method == NO_INTERVAL
    share = estimate_mean_share(magnitudes, 0.95)
    assert share.method == WILSON_IMAGES
    assert share.lower < share.value < share.upper


def test_a_mean_share_needs_ten_images_apart_from_the_rest_for_the_bootstrap():
    for apart, method in ((9, WILSON_IMAGES), (10, BOOTSTRAP)):
        shares = torch.ones(1, 500, dtype=torch.float64)
        shares[0, :apart] = torch.linspace(0, 0.5, apart, dtype=torch.float64)
        assert estimate_mean_share(average(shares, ImageResamples(500, FEW)), 0.95).method == method


def test_wilson_of_a_mean_is_that_of_a_whole_count_or_of_the_counts_around():
    assert wilson_of_mean(0.3, 10, 0.95) == wilson_interval(3, 10)
    assert wilson_of_mean(0.1 + 0.2, 10, 0.95) == wilson_interval(3, 10)
    assert wilson_of_mean(0.35, 10, 0.95) == (wilson_interval(3, 10)[0], wilson_interval(4, 10)[1])


def test_one_share_has_wilson():
    number = estimate_share(torch.tensor([True, True, False, True, False]), 0.9)
    assert (number.lower, number.upper) == wilson_interval(3, 5, 0.9)
    assert (number.value, number.method) == (0.6, "wilson")
