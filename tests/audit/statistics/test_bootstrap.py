from statistics import NormalDist

import numpy
import pytest
import torch
from scipy import stats

from teka.audit.statistics.bootstrap import (
    ImageResamples,
    average,
    bca_interval,
    logarithmic_critical_values,
    simultaneous_critical_value,
)
from teka.audit.statistics.estimate import BootstrapSettings

NUM_IMAGES = 17
RESAMPLES = ImageResamples(NUM_IMAGES, BootstrapSettings(num_resamples=61))
INDICES = [torch.arange(NUM_IMAGES).repeat_interleave(counts.long()) for counts in RESAMPLES.counts]


def tables(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(2, 5, NUM_IMAGES, dtype=torch.float64, generator=generator) + 0.1


def test_draws_are_what_the_resampled_images_give():
    first, second = tables()
    mean, ratio = average(first, RESAMPLES), average(first, RESAMPLES, second)
    for row, drawn in enumerate(INDICES):
        torch.testing.assert_close(mean.draws[row], first[:, drawn].mean(dim=1), rtol=1e-6, atol=0)
        expected = first[:, drawn].sum(dim=1) / second[:, drawn].sum(dim=1)
        torch.testing.assert_close(ratio.draws[row], expected, rtol=1e-6, atol=0)
        torch.testing.assert_close(
            ratio.square_root().draws[row], expected.sqrt(), rtol=1e-6, atol=0
        )


def test_influence_is_the_derivative_by_the_weight_of_an_image():
    first, second = tables(1)
    step = 1e-6
    for image in (0, 5, 16):
        weights = torch.ones(NUM_IMAGES, dtype=torch.float64)
        weights[image] += step
        # The weights' mean is 1 again.
        weights /= weights.mean()
        for statistic, value in (
            (average(first, RESAMPLES), (weights * first).mean(dim=1)),
            (
                average(first, RESAMPLES, second),
                (weights * first).sum(dim=1) / (weights * second).sum(dim=1),
            ),
            (
                average(first, RESAMPLES, second).square_root(),
                ((weights * first).sum(dim=1) / (weights * second).sum(dim=1)).sqrt(),
            ),
        ):
            slope = (value - statistic.values) / step * NUM_IMAGES
            torch.testing.assert_close(slope, statistic.influence[:, image], rtol=1e-4, atol=1e-6)


def test_the_standard_error_of_a_mean_is_its_deviation_over_root_n():
    first, _ = tables(2)
    torch.testing.assert_close(
        average(first, RESAMPLES).standard_error, first.std(dim=1) / NUM_IMAGES**0.5
    )


def test_sums_of_averages_are_averages_of_sums():
    first, _ = tables(3)
    weights = torch.tensor([[0.5, 0.5, 0, 0, 0], [0, 0, 1, -2, 1.0]], dtype=torch.float64)
    made, expected = average(first, RESAMPLES).combine(weights), average(weights @ first, RESAMPLES)
    torch.testing.assert_close(made.values, expected.values)
    torch.testing.assert_close(made.influence, expected.influence)
    torch.testing.assert_close(made.draws, expected.draws, rtol=1e-5, atol=1e-7)


def test_what_does_not_differ_between_images_has_no_spread_at_all():
    constant = torch.full((1, NUM_IMAGES), 0.1, dtype=torch.float64)
    for statistic in (average(constant, RESAMPLES), average(constant, RESAMPLES, 3 * constant)):
        assert not statistic.influence.any()
        assert statistic.standard_error.item() == 0
        assert torch.equal(statistic.draws, statistic.values.expand(61, 1))


def test_a_resample_that_does_not_define_the_ratio_counts_as_the_ratio():
    numerator = torch.zeros(1, NUM_IMAGES, dtype=torch.float64)
    denominator = numerator.clone()
    numerator[0, 4], denominator[0, 4] = 3.0, 4.0
    draws = average(numerator, RESAMPLES, denominator).draws
    assert any(4 not in drawn for drawn in INDICES)
    torch.testing.assert_close(draws, torch.full_like(draws, 0.75))


def test_tiny_values_keep_their_relative_spread():
    first, _ = tables(4)
    draws = average(first * 1e-60, RESAMPLES).draws
    torch.testing.assert_close(draws * 1e60, average(first, RESAMPLES).draws)


def test_each_resample_draws_as_many_images_as_there_are():
    counts = ImageResamples(13, BootstrapSettings(num_resamples=301)).counts
    assert counts.shape == (301, 13)
    assert counts.sum(dim=1).unique().tolist() == [13]
    # Each image is drawn once on average, with variance 1 − 1/N.
    assert abs(counts.double().mean(dim=0) - 1).max() < 5 * (301**-0.5)
    assert abs(counts.double().var().item() - 12 / 13) < 0.1


def test_means_count_each_image_as_often_as_it_was_drawn():
    resamples = ImageResamples(7, BootstrapSettings(num_resamples=150))
    values = torch.randn(3, 7, dtype=torch.float64)
    means = resamples.means(values)
    for index in (0, 127, 128, 149):
        drawn = torch.arange(7).repeat_interleave(resamples.counts[index].long())
        torch.testing.assert_close(means[index], values[:, drawn].mean(dim=1))


def test_the_seed_fixes_the_draws():
    first, same, other = (
        ImageResamples(11, BootstrapSettings(num_resamples=40, seed=seed)).counts
        for seed in (3, 3, 4)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def skewed(rows, num_images, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, num_images, dtype=torch.float64, generator=generator).exp()


def test_it_agrees_with_that_of_scipy_up_to_the_draws():
    for confidence in [0.8, 0.95]:
        values = skewed(1, 41)
        lower, upper = bca_interval(
            average(values, ImageResamples(41, BootstrapSettings(num_resamples=20000))), confidence
        )
        reference = stats.bootstrap(
            (values[0].numpy(),),
            numpy.mean,
            n_resamples=20000,
            confidence_level=confidence,
            rng=numpy.random.default_rng(1),
        ).confidence_interval
        spread = values.std().item() / 41**0.5
        assert abs(lower.item() - reference.low) < 0.06 * spread, confidence
        assert abs(upper.item() - reference.high) < 0.06 * spread, confidence


def test_it_moves_and_stretches_with_the_values():
    tied = torch.ones(1, 28, dtype=torch.float64)
    tied[:, ::2] = -1  # many draws of which are their mean
    for values in (skewed(2, 29), tied):
        resamples = ImageResamples(values.shape[1], BootstrapSettings(num_resamples=200))
        ends = torch.stack(bca_interval(average(values, resamples), 0.9))
        moved = torch.stack(bca_interval(average(5 * values - 3, resamples), 0.9))
        torch.testing.assert_close(moved, 5 * ends - 3, rtol=1e-5, atol=1e-5)
        # Mirrored values mirror the interval: the upper end is as far as the lower one was.
        mirrored = torch.stack(bca_interval(average(-values, resamples), 0.9))
        torch.testing.assert_close(mirrored, -ends.flip(0), rtol=1e-5, atol=1e-5)


def test_a_long_tail_to_the_right_moves_both_ends_to_the_right_of_the_plain_quantiles():
    statistic = average(skewed(1, 50), ImageResamples(50, BootstrapSettings(num_resamples=5000)))
    lower, upper = bca_interval(statistic, 0.95)
    assert lower > statistic.draws.quantile(0.025)
    assert upper > statistic.draws.quantile(0.975)


def test_the_ends_stay_within_the_draws_however_skewed():
    values = torch.zeros(1, 60, dtype=torch.float64)
    values[0, 0] = 1.0
    statistic = average(values, ImageResamples(60, BootstrapSettings(0.999, 2000)))
    lower, upper = bca_interval(statistic, 0.999)
    assert statistic.draws.min() <= lower <= upper <= statistic.draws.max()


def test_draws_are_studentised_by_the_error_within_each_resample():
    values = skewed(1, 12)
    resamples = ImageResamples(12, BootstrapSettings(num_resamples=199))
    drawn = [values[0].repeat_interleave(counts.long()) for counts in resamples.counts]
    log_ratio = torch.stack([(draw.mean() / values.mean()).log() for draw in drawn])
    # The error with N − 1 in the denominator, relative to the mean.
    relative = torch.stack([draw.std() / 12**0.5 / draw.mean() for draw in drawn])
    expected = (log_ratio / relative).abs().sort().values[190 - 1]  # the 0.95 · 200th of 199
    alone, together = logarithmic_critical_values(average(values, resamples), resamples, 0.95)
    torch.testing.assert_close(alone, expected[None], rtol=1e-5, atol=0)
    assert together == alone.item()


def test_the_value_for_all_rows_is_at_least_that_of_each():
    resamples = ImageResamples(40, BootstrapSettings(num_resamples=400))
    alone, together = logarithmic_critical_values(
        average(skewed(7, 40), resamples), resamples, 0.95
    )
    assert together > alone.max().item()
    # Rows in proportion go together.
    rows = skewed(1, 40) * torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    alone, together = logarithmic_critical_values(average(rows, resamples), resamples, 0.95)
    torch.testing.assert_close(
        alone, torch.full((2,), together, dtype=torch.float64), rtol=1e-5, atol=0
    )


def test_neither_the_scale_nor_zeros_break_it():
    values = skewed(1, 30)
    resamples = ImageResamples(30, BootstrapSettings(num_resamples=200))
    alone, _ = logarithmic_critical_values(average(values, resamples), resamples, 0.9)
    tiny, _ = logarithmic_critical_values(average(1e-80 * values, resamples), resamples, 0.9)
    torch.testing.assert_close(tiny, alone, rtol=1e-4, atol=0)
    rows = torch.zeros(2, 30, dtype=torch.float64)
    rows[1, 3] = 1.0
    alone, together = logarithmic_critical_values(average(rows, resamples), resamples, 0.9)
    assert alone[0] == 0
    assert 0 < together < float("inf")


MANY = BootstrapSettings(num_resamples=20000)
NORMAL = NormalDist().inv_cdf(0.975)


def sidak(rows):
    return NormalDist().inv_cdf((1 + 0.95 ** (1 / rows)) / 2)


def centred(rows, images=211, seed=0):
    values = torch.randn(
        rows, images, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    return values - values.mean(dim=1, keepdim=True)


def test_one_row_has_the_normal_quantile():
    assert simultaneous_critical_value(centred(1), MANY) == pytest.approx(NORMAL, abs=0.03)


def test_independent_rows_count_as_many():
    basis = torch.linalg.qr(centred(30).T).Q.T.contiguous()
    assert simultaneous_critical_value(basis, MANY) == pytest.approx(sidak(30), abs=0.04)


def test_rows_without_spread_count_as_independent_but_for_one_that_is_known():
    rows = torch.cat([centred(1), torch.zeros(9, 211, dtype=torch.float64)])
    assert simultaneous_critical_value(rows, MANY) == pytest.approx(sidak(10), abs=0.04)
    assert simultaneous_critical_value(rows, MANY, known=9) == pytest.approx(sidak(9), abs=0.04)
    assert simultaneous_critical_value(rows[1:], MANY) == pytest.approx(sidak(9), abs=0.04)
    assert simultaneous_critical_value(rows[:2], MANY, known=1) == pytest.approx(NORMAL, abs=0.03)


def test_it_is_never_below_that_of_one_row():
    assert (
        simultaneous_critical_value(torch.zeros(1, 5, dtype=torch.float64), MANY, known=0) == NORMAL
    )
