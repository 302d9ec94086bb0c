import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from teka.audit import wilson_interval
from teka.audit.statistics.bootstrap import ImageAverage, ImageResamples, average
from teka.audit.statistics.estimate import BootstrapSettings
from teka.audit.statistics.intervals import (
    BOOTSTRAP,
    NO_INTERVAL,
    NO_SPREAD,
    WILSON_IMAGES,
    estimate_magnitudes,
    estimate_mean_share,
    exact_interval,
    extreme_of,
    magnitude_curve,
    share_curve,
    two_level_curve,
    wilson_of_mean,
)
from tests.raising import raises_for


# R. G. Newcombe, "Two-sided confidence intervals for the single proportion", Statistics in Medicine 17 (1998), table I,
# method 3.
def test_the_published_intervals_come_out():
    for successes, trials, lower, upper in [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ]:
        assert wilson_interval(successes, trials) == pytest.approx((lower, upper), abs=5e-5), (
            successes,
            trials,
            lower,
            upper,
        )


def test_no_success_and_no_failure_give_closed_forms():
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
def test_both_ends_solve_the_equation_of_the_score_test(count, confidence):
    successes, trials = count
    share = successes / trials
    ends = wilson_interval(successes, trials, confidence)
    assert 0.0 <= ends[0] <= share <= ends[1] <= 1.0
    quantile = torch.special.ndtri(torch.tensor((1 + confidence) / 2, dtype=torch.float64)).item()
    for end in ends:
        assert abs(share - end) == pytest.approx(
            quantile * math.sqrt(end * (1 - end) / trials), abs=1e-8
        )


@settings(max_examples=50, deadline=None)
@given(counts)
def test_failures_mirror_successes(count):
    successes, trials = count
    lower, upper = wilson_interval(successes, trials)
    assert wilson_interval(trials - successes, trials) == pytest.approx(
        (1 - upper, 1 - lower), abs=1e-14
    )


def test_tensors_are_taken_entry_by_entry_and_broadcast():
    successes = torch.tensor([[0], [3], [5]])
    trials = torch.tensor([5, 7])
    lower, upper = wilson_interval(successes, trials)
    assert lower.shape == upper.shape == (3, 2)
    assert lower.dtype == upper.dtype == torch.float64
    for row, success in enumerate((0, 3, 5)):
        for column, trial in enumerate((5, 7)):
            assert (lower[row, column].item(), upper[row, column].item()) == wilson_interval(
                success, trial
            )


def test_counts_and_confidences_that_make_no_sense_are_refused():
    for successes, trials, confidence, argument in [
        (-1, 5, 0.95, "successes"),
        (6, 5, 0.95, "successes"),
        (0, 0, 0.95, "trials"),
        (torch.tensor([1, 9]), 5, 0.95, "successes"),
        (torch.tensor([1, 2]), torch.tensor([5, 6, 7]), 0.95, "trials"),
        (1, 5, 0.0, "confidence"),
        (1, 5, 1.0, "confidence"),
        (1, 5, math.nan, "confidence"),
    ]:
        with raises_for(
            (successes, trials, confidence, argument), ValueError, match=f"^{argument} "
        ):
            wilson_interval(successes, trials, confidence)


def test_it_is_that_of_scipy():
    for confidence in [0.5, 0.95, 1 - 1e-7]:
        for trials in [1, 7, 100, 10007]:
            successes = torch.tensor(sorted({0, 1, trials // 3, trials // 2, trials - 1, trials}))
            lower, upper = exact_interval(successes, trials, confidence)
            for row, count in enumerate(successes.tolist()):
                reference = stats.binomtest(count, trials).proportion_ci(confidence, method="exact")
                assert (lower[row].item(), upper[row].item()) == pytest.approx(
                    (reference.low, reference.high), abs=1e-9
                ), (trials, confidence)


def test_it_covers_no_less_often_than_it_says():
    trials, confidence = 37, 0.9
    counts = torch.arange(trials + 1)
    lower, upper = exact_interval(counts, trials, confidence)
    for share in (0.003, 0.05, 0.31, 0.5, 0.92):
        covered = (lower <= share) & (share <= upper)
        assert stats.binom.pmf(counts[covered].numpy(), trials, share).sum() >= confidence


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
def test_the_band_covers_all_shares_together_and_the_lowest_while_the_intervals_do_not(
    images, share, correlation
):
    generator = torch.Generator().manual_seed(0)
    threshold = torch.special.ndtri(torch.tensor(share, dtype=torch.float64))
    band = alone = lowest = 0
    for trial in range(TRIALS):
        outcomes = correlated(25, images, correlation, generator) < threshold
        curve = share_curve(outcomes, BootstrapSettings(num_resamples=200, seed=trial))
        band += holds(curve.band_lower, curve.band_upper, share)
        alone += holds(curve.lower, curve.upper, share)
        minimum = extreme_of(curve, "lowest", 0.95)
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
        numbers = estimate_magnitudes(average(values, resamples), resamples, 0.95)
        assert [(one.lower, one.upper) for one in numbers] == list(
            zip(curve.lower, curve.upper, strict=True)
        )
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
    for curve in (
        share_curve(normal < 1, FEW),
        magnitude_curve(average(normal.exp(), resamples), resamples, 0.95),
    ):
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
    (number,) = estimate_magnitudes(magnitudes, resamples, 0.95)
    assert (number.lower, number.upper, number.method) == (number.value, number.value, NO_INTERVAL)
    curve = magnitude_curve(magnitudes, resamples, 0.95)
    assert curve.lower == curve.band_upper == curve.values
    assert curve.method == extreme_of(curve, "highest", 0.95).method == NO_INTERVAL
    share = estimate_mean_share(magnitudes, 0.95)
    assert share.method == WILSON_IMAGES
    assert share.lower < share.value < share.upper


def test_images_that_are_all_alike_teach_nothing_of_others_and_their_magnitude_has_no_interval():
    resamples = ImageResamples(40, FEW)
    alike = average(torch.full((1, 40), 0.107, dtype=torch.float64), resamples)
    (number,) = estimate_magnitudes(alike, resamples, 0.95)
    assert (number.value, number.method, number.half_width) == (
        pytest.approx(0.107),
        NO_SPREAD,
        None,
    )
    assert extreme_of(magnitude_curve(alike, resamples, 0.95), "highest", 0.95).method == NO_SPREAD
    assert two_level_curve([alike] * 3, FEW).method == NO_SPREAD
    share = estimate_mean_share(alike, 0.95)
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


MANY = BootstrapSettings(num_resamples=4000)


def seeds_of(values, image_deviation=0.0, num_images=100):
    """Seeds with the given values; images move all of them together."""
    draws = image_deviation * torch.randn(
        4000, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    return [
        ImageAverage(
            torch.tensor([value], dtype=torch.float64), torch.zeros(1, num_images), value + draws
        )
        for value in values
    ]


def test_without_any_doubt_from_images_it_is_the_interval_of_student():
    values = [0.4, 0.5, 0.45, 0.55, 0.3]
    curve = two_level_curve(seeds_of(values), MANY)
    lower, upper = stats.t.interval(0.95, 4, loc=0.44, scale=stats.sem(values))
    assert (curve.lower[0], curve.upper[0]) == pytest.approx((lower, upper))
    # A band of one row is its interval, up to the draws.
    assert curve.band_upper[0] - 0.44 == pytest.approx(upper - 0.44, rel=0.05)


def test_with_equal_seeds_it_is_the_normal_interval_of_the_images():
    curve = two_level_curve(seeds_of([0.5] * 4, 0.02), MANY)
    assert curve.upper[0] - 0.5 == pytest.approx(1.96 * 0.02, rel=0.05)


def test_both_levels_add_up_and_the_larger_one_sets_the_degrees_of_freedom():
    values = [0.48, 0.5, 0.52]
    seeds, images = stats.sem(values) ** 2, 0.03**2
    curve = two_level_curve(seeds_of(values, 0.03), MANY)
    degrees = 2 * (1 + images / seeds) ** 2
    expected = stats.t.ppf(0.975, degrees) * (seeds + images) ** 0.5
    assert curve.upper[0] - 0.5 == pytest.approx(expected, rel=0.05)


def test_ends_stay_within_the_range_of_the_number():
    curve = two_level_curve(seeds_of([0.9, 1.0, 0.7]), MANY, largest=1.0)
    assert curve.upper == curve.band_upper == (1.0,)
    assert two_level_curve(seeds_of([0.0, 0.1, 0.4]), MANY).lower == (0.0,)


def test_magnitudes_of_few_images_have_no_interval():
    curve = two_level_curve(seeds_of([0.1, 0.4, 0.3], num_images=9), MANY)
    assert curve.method == NO_INTERVAL
    assert curve.lower == curve.upper == curve.values
