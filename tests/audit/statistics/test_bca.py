import numpy
import pytest
import torch
from scipy import stats

from teka.audit.statistics.bca import bca_interval
from teka.audit.statistics.estimate import BootstrapSettings
from teka.audit.statistics.image_average import average
from teka.audit.statistics.resampling import ImageResamples


def skewed(rows, num_images, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, num_images, dtype=torch.float64, generator=generator).exp()


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_it_agrees_with_that_of_scipy_up_to_the_draws(confidence):
    values = skewed(1, 41)
    lower, upper = bca_interval(average(values, ImageResamples(41, BootstrapSettings(num_resamples=20000))), confidence)
    reference = stats.bootstrap(
        (values[0].numpy(),),
        numpy.mean,
        n_resamples=20000,
        confidence_level=confidence,
        rng=numpy.random.default_rng(1),
    ).confidence_interval
    spread = values.std().item() / 41**0.5
    assert abs(lower.item() - reference.low) < 0.06 * spread
    assert abs(upper.item() - reference.high) < 0.06 * spread


def test_it_moves_and_stretches_with_the_values():
    values = skewed(2, 29)
    resamples = ImageResamples(29, BootstrapSettings(num_resamples=200))
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


def test_images_that_do_not_differ_leave_nothing_open():
    statistic = average(torch.full((1, 12), 0.3, dtype=torch.float64), ImageResamples(12, BootstrapSettings()))
    assert bca_interval(statistic, 0.95) == (statistic.values, statistic.values)


def test_the_ends_stay_within_the_draws_however_skewed():
    values = torch.zeros(1, 60, dtype=torch.float64)
    values[0, 0] = 1.0
    statistic = average(values, ImageResamples(60, BootstrapSettings(0.999, 2000)))
    lower, upper = bca_interval(statistic, 0.999)
    assert statistic.draws.min() <= lower <= upper <= statistic.draws.max()
