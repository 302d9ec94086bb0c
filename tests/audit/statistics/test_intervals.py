import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from teka.audit import wilson_interval
from teka.audit.statistics.intervals import (
    BAND,
    BOOTSTRAP,
    MAX_FACTOR,
    NO_INTERVAL,
    NO_SPREAD,
    WILSON_IMAGES,
    BootstrapAverage,
    ImageBootstrap,
    estimate_difference_curve,
    estimate_extreme,
    estimate_mean_curve,
    estimate_share,
    estimate_share_curve,
)
from tests.raising import raises_for

NUM_RESAMPLES = 200
TRIALS = 150


# R. G. Newcombe, "Two-sided confidence intervals for the single proportion", Statistics in Medicine
# 17 (1998), table I, method 3.
def test_wilson_intervals_equal_published_values():
    for successes, trials, lower, upper in [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ]:
        ends = wilson_interval(successes, trials)
        assert ends == pytest.approx((lower, upper), abs=5e-5), (successes, trials)


def test_wilson_interval_without_success_or_failure_has_a_closed_form():
    square = 1.959963984540054**2
    lower, upper = wilson_interval(0, 10)
    assert lower == 0.0
    assert upper == pytest.approx(square / (10 + square), abs=1e-14)
    lower, upper = wilson_interval(10, 10)
    assert lower == pytest.approx(10 / (10 + square), abs=1e-14)
    assert upper == 1.0


counts = st.integers(1, 10**7).flatmap(
    lambda trials: st.tuples(st.integers(0, trials), st.just(trials))
)


@settings(max_examples=100, deadline=None)
@given(counts, st.floats(0.01, 0.9999))
def test_wilson_ends_solve_the_score_test_equation(count, confidence):
    successes, trials = count
    share = successes / trials
    ends = wilson_interval(successes, trials, confidence)
    assert 0.0 <= ends[0] <= share <= ends[1] <= 1.0
    quantile = NormalDist().inv_cdf((1 + confidence) / 2)
    for end in ends:
        distance = quantile * math.sqrt(end * (1 - end) / trials)
        assert abs(share - end) == pytest.approx(distance, abs=1e-8)
    mirrored = wilson_interval(trials - successes, trials, confidence)
    assert mirrored == pytest.approx((1 - ends[1], 1 - ends[0]), abs=1e-14)


def test_wilson_interval_broadcasts_arrays():
    lower, upper = wilson_interval(np.array([[0], [3], [5]]), np.array([5, 7]))
    assert lower.shape == upper.shape == (3, 2)
    assert (lower[1, 1], upper[1, 1]) == wilson_interval(3, 7)


def test_invalid_counts_and_confidences_are_errors():
    for successes, trials, confidence, argument in [
        (-1, 5, 0.95, "successes"),
        (6, 5, 0.95, "successes"),
        (0, 0, 0.95, "trials"),
        (np.array([1, 9]), 5, 0.95, "successes"),
        ("nothing", 5, 0.95, "successes"),
        (1, range(3), 0.95, "trials"),
        (1, 5, 0.0, "confidence"),
        (1, 5, 1.0, "confidence"),
        (1, 5, math.nan, "confidence"),
    ]:
        with raises_for((successes, trials, confidence), ValueError, match=f"^{argument} "):
            wilson_interval(successes, trials, confidence)


def test_bootstrap_equals_scipy():
    values = np.random.default_rng(0).exponential(size=60)
    bootstrap = ImageBootstrap(60, num_resamples=20_000)
    ends = bootstrap.percentile_interval(values.mean(), bootstrap.resample_means(values))
    expected = stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", rng=1
    ).confidence_interval
    assert ends == pytest.approx((expected.low, expected.high), abs=0.01)


def test_all_rows_use_the_same_resamples():
    values = np.random.default_rng(0).random((3, 40))
    bootstrap = ImageBootstrap(40, num_resamples=NUM_RESAMPLES)
    np.testing.assert_allclose(
        bootstrap.resample_means(values)[:, 1], bootstrap.resample_means(values[1])
    )
    np.testing.assert_allclose(bootstrap.resample_means(np.ones(40)), 1.0, rtol=0, atol=0)


def test_constant_rows_get_the_critical_value_of_independent_rows():
    bootstrap = ImageBootstrap(40, num_resamples=NUM_RESAMPLES)
    for num_rows in (1, 25):
        critical = bootstrap.critical_value(np.zeros((200, num_rows)))
        # P[all of n independent |z| ≤ c] = 0.95
        assert (2 * stats.norm.cdf(critical) - 1) ** num_rows == pytest.approx(0.95)


def correlated_values(shifts, images, correlation, random):
    """Return standard normal values of images at shifts, correlated within each image."""
    common, own = random.standard_normal((1, images)), random.standard_normal((shifts, images))
    return correlation**0.5 * common + (1 - correlation) ** 0.5 * own


def average_estimate(values, bootstrap):
    means = values.mean(axis=1)
    return BootstrapAverage(means, bootstrap.resample_means(values), values - means[:, None])


def covers(lower, upper, truth):
    return all(low <= truth <= high for low, high in zip(lower, upper, strict=True))


@pytest.mark.parametrize(("images", "share", "correlation"), [(60, 0.8, 0.5), (200, 0.99, 0.0)])
def test_band_covers_the_shares_of_all_shifts_unlike_intervals(images, share, correlation):
    random = np.random.default_rng(0)
    band = alone = lowest = 0
    for seed in range(TRIALS):
        outcomes = correlated_values(25, images, correlation, random) < NormalDist().inv_cdf(share)
        bootstrap = ImageBootstrap(images, num_resamples=NUM_RESAMPLES, seed=seed)
        curve = estimate_share_curve(outcomes, bootstrap)
        band += covers(curve.band_lower, curve.band_upper, share)
        alone += covers(curve.lower, curve.upper, share)
        minimum = estimate_extreme(curve, "lowest", 0.95)
        lowest += minimum.lower <= share <= minimum.upper
    # Three standard deviations of a share of 0.95 in 150 trials are 0.053.
    assert band / TRIALS > 0.897
    assert lowest / TRIALS > 0.897
    assert alone / TRIALS < 0.85


def test_band_and_interval_of_skewed_averages_cover():
    random = np.random.default_rng(1)
    band = interval = 0
    for seed in range(TRIALS):
        values = np.exp(correlated_values(15, 100, 0.5, random))
        bootstrap = ImageBootstrap(100, num_resamples=NUM_RESAMPLES, seed=seed)
        curve = estimate_mean_curve(average_estimate(values, bootstrap), bootstrap)
        band += covers(curve.band_lower, curve.band_upper, math.exp(0.5))
        interval += curve.lower[0] <= math.exp(0.5) <= curve.upper[0]
    assert band / TRIALS > 0.9
    assert interval / TRIALS > 0.9


def test_intervals_of_averages_are_bounded_if_one_image_dominates():
    values = 1 + 0.001 * np.random.default_rng(0).random((5, 12))
    values[:, 0] = 1000.0
    bootstrap = ImageBootstrap(12, num_resamples=NUM_RESAMPLES)
    curve = estimate_mean_curve(average_estimate(values, bootstrap), bootstrap)
    means = np.array(curve.values)
    for lower, upper in ((curve.lower, curve.upper), (curve.band_lower, curve.band_upper)):
        # Without the bound, the ends differ by a factor of more than 10^50.
        np.testing.assert_allclose(lower, means / MAX_FACTOR)
        np.testing.assert_allclose(upper, means * MAX_FACTOR)


def test_interval_of_a_mean_covers_with_correlated_shifts():
    random = np.random.default_rng(2)
    images = pairs = 0
    for _ in range(TRIALS):
        # Half of the images are stable at nearly all shifts and half at few shifts, so the mean is ½.
        stable = random.random(80) < 0.5
        agrees = random.random((24, 80)) < np.where(stable, 0.98, 0.02)
        number = estimate_share(
            agrees.mean(axis=0), ImageBootstrap(80, num_resamples=NUM_RESAMPLES)
        )
        images += number.lower <= 0.5 <= number.upper
        lower, upper = wilson_interval(int(agrees.sum()), agrees.size)
        pairs += lower <= 0.5 <= upper
    assert images / TRIALS > 0.88
    assert pairs / TRIALS < 0.5


def test_share_of_one_has_an_interval_unless_it_is_by_definition():
    curve = estimate_share_curve(
        np.ones((3, 40), dtype=bool), ImageBootstrap(40, num_resamples=NUM_RESAMPLES), known=1
    )
    assert curve.lower[1] == curve.band_lower[1] == 1.0
    assert curve.lower[0] == wilson_interval(40, 40)[0]
    assert 0.8 < curve.band_lower[0] < curve.lower[0] < 1.0
    assert curve.upper == curve.band_upper == (1.0,) * 3


def test_bands_contain_intervals_which_contain_values():
    normal = correlated_values(11, 37, 0.3, np.random.default_rng(3))
    bootstrap = ImageBootstrap(37, num_resamples=NUM_RESAMPLES)
    values = np.exp(normal)
    shares = 1 / (1 + values)
    for curve in (
        estimate_share_curve(normal < 1, bootstrap),
        estimate_mean_curve(average_estimate(values, bootstrap), bootstrap),
        estimate_mean_curve(average_estimate(shares, bootstrap), bootstrap, is_share=True),
        estimate_difference_curve(normal, ImageBootstrap(39, num_resamples=NUM_RESAMPLES)),
    ):
        rows = (curve.band_lower, curve.lower, curve.values, curve.upper, curve.band_upper)
        for below, above in itertools.pairwise(rows):
            assert all(low <= high for low, high in zip(below, above, strict=True))


def test_few_images_have_wilson_intervals_of_shares_only():
    bootstrap = ImageBootstrap(9, num_resamples=NUM_RESAMPLES)
    values = np.random.default_rng(0).random((1, 9))
    curve = estimate_mean_curve(average_estimate(values, bootstrap), bootstrap)
    assert curve.lower == curve.band_upper == curve.values
    assert curve.method == estimate_extreme(curve, "highest", 0.95).method == NO_INTERVAL
    share = estimate_share(values[0], bootstrap)
    assert share.method == WILSON_IMAGES
    assert share.lower < share.value < share.upper


def test_equal_images_have_an_interval_of_shares_only():
    bootstrap = ImageBootstrap(40, num_resamples=NUM_RESAMPLES)
    values = np.full((1, 40), 0.107)
    curve = estimate_mean_curve(average_estimate(values, bootstrap), bootstrap)
    assert estimate_extreme(curve, "highest", 0.95).method == NO_SPREAD
    share = estimate_share(values[0], bootstrap)
    assert share.lower < share.value < share.upper


def test_bootstrap_of_a_mean_share_needs_ten_different_images():
    for num_different, method in ((9, WILSON_IMAGES), (10, BOOTSTRAP)):
        shares = np.ones(500)
        shares[:num_different] = np.linspace(0, 0.5, num_different)
        assert (
            estimate_share(shares, ImageBootstrap(500, num_resamples=NUM_RESAMPLES)).method
            == method
        )


def test_wilson_of_a_mean_share_rounds_the_number_of_successes_outward():
    bootstrap = ImageBootstrap(10, num_resamples=NUM_RESAMPLES)
    whole = estimate_share(np.array([0.1 + 0.2] * 10), bootstrap)
    assert (whole.lower, whole.upper) == wilson_interval(3, 10)
    between = estimate_share(np.array([0.35] * 10), bootstrap)
    assert (between.lower, between.upper) == (wilson_interval(3, 10)[0], wilson_interval(4, 10)[1])


def test_extreme_has_the_ends_of_the_band():
    outcomes = np.random.default_rng(0).random((5, 60)) < 0.8
    curve = estimate_share_curve(outcomes, ImageBootstrap(60, num_resamples=NUM_RESAMPLES))
    lowest = estimate_extreme(curve, "lowest", 0.95)
    assert (lowest.value, lowest.lower) == (min(curve.values), min(curve.band_lower))
    assert (lowest.upper, lowest.method) == (min(curve.band_upper), BAND)
