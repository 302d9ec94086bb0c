import torch

from teka.audit.statistics.estimate import BootstrapSettings
from teka.audit.statistics.image_average import average, average_ratio, square_root
from teka.audit.statistics.resampling import ImageResamples

NUM_IMAGES = 17
RESAMPLES = ImageResamples(NUM_IMAGES, BootstrapSettings(num_resamples=61))
INDICES = [torch.arange(NUM_IMAGES).repeat_interleave(counts.long()) for counts in RESAMPLES.counts]


def tables(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(2, 5, NUM_IMAGES, dtype=torch.float64, generator=generator) + 0.1


def test_draws_are_what_the_resampled_images_give():
    first, second = tables()
    mean, ratio = average(first, RESAMPLES), average_ratio(first, second, RESAMPLES)
    for row, drawn in enumerate(INDICES):
        torch.testing.assert_close(mean.draws[row], first[:, drawn].mean(dim=1), rtol=1e-6, atol=0)
        expected = first[:, drawn].sum(dim=1) / second[:, drawn].sum(dim=1)
        torch.testing.assert_close(ratio.draws[row], expected, rtol=1e-6, atol=0)
        torch.testing.assert_close(square_root(ratio).draws[row], expected.sqrt(), rtol=1e-6, atol=0)


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
            (average_ratio(first, second, RESAMPLES), (weights * first).sum(dim=1) / (weights * second).sum(dim=1)),
            (
                square_root(average_ratio(first, second, RESAMPLES)),
                ((weights * first).sum(dim=1) / (weights * second).sum(dim=1)).sqrt(),
            ),
        ):
            slope = (value - statistic.values) / step * NUM_IMAGES
            torch.testing.assert_close(slope, statistic.influence[:, image], rtol=1e-4, atol=1e-6)


def test_the_standard_error_of_a_mean_is_its_deviation_over_root_n():
    first, _ = tables(2)
    torch.testing.assert_close(average(first, RESAMPLES).standard_error, first.std(dim=1) / NUM_IMAGES**0.5)


def test_sums_and_differences_of_averages_are_averages_of_sums_and_differences():
    first, second = tables(3)
    weights = torch.tensor([[0.5, 0.5, 0, 0, 0], [0, 0, 1, -2, 1.0]], dtype=torch.float64)
    pairs = (
        (average(first, RESAMPLES).combine(weights), average(weights @ first, RESAMPLES)),
        (average(first, RESAMPLES).less(average(second, RESAMPLES)), average(first - second, RESAMPLES)),
    )
    for made, expected in pairs:
        torch.testing.assert_close(made.values, expected.values)
        torch.testing.assert_close(made.influence, expected.influence)
        torch.testing.assert_close(made.draws, expected.draws, rtol=1e-5, atol=1e-7)


def test_what_does_not_differ_between_images_has_no_spread_at_all():
    constant = torch.full((1, NUM_IMAGES), 0.1, dtype=torch.float64)
    for statistic in (average(constant, RESAMPLES), average_ratio(constant, 3 * constant, RESAMPLES)):
        assert not statistic.influence.any()
        assert statistic.standard_error.item() == 0
        assert torch.equal(statistic.draws, statistic.values.expand(61, 1))


def test_a_resample_that_does_not_define_the_ratio_counts_as_the_ratio():
    numerator = torch.zeros(1, NUM_IMAGES, dtype=torch.float64)
    denominator = numerator.clone()
    numerator[0, 4], denominator[0, 4] = 3.0, 4.0
    draws = average_ratio(numerator, denominator, RESAMPLES).draws
    assert any(4 not in drawn for drawn in INDICES)
    torch.testing.assert_close(draws, torch.full_like(draws, 0.75))


def test_tiny_values_keep_their_relative_spread():
    first, _ = tables(4)
    draws = average(first * 1e-60, RESAMPLES).draws
    torch.testing.assert_close(draws * 1e60, average(first, RESAMPLES).draws)
