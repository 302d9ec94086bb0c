import torch

from teka.audit.statistics.estimate import BootstrapSettings
from teka.audit.statistics.image_average import average
from teka.audit.statistics.logarithmic_t import critical_values
from teka.audit.statistics.resampling import ImageResamples


def lognormal(rows, num_images, width=0.5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (width * torch.randn(rows, num_images, dtype=torch.float64, generator=generator)).exp()


def test_draws_are_studentised_by_the_error_within_each_resample():
    values = lognormal(1, 12)
    resamples = ImageResamples(12, BootstrapSettings(num_resamples=199))
    drawn = [values[0].repeat_interleave(counts.long()) for counts in resamples.counts]
    log_ratio = torch.stack([(draw.mean() / values.mean()).log() for draw in drawn])
    # The error with N − 1 in the denominator, relative to the mean.
    relative = torch.stack([draw.std() / 12**0.5 / draw.mean() for draw in drawn])
    expected = (log_ratio / relative).abs().sort().values[190 - 1]  # the 0.95 · 200th of 199
    alone, together = critical_values(average(values, resamples), resamples, 0.95)
    torch.testing.assert_close(alone, expected[None], rtol=1e-5, atol=0)
    assert together == alone.item()


def test_the_value_for_all_rows_is_at_least_that_of_each():
    resamples = ImageResamples(40, BootstrapSettings(num_resamples=400))
    alone, together = critical_values(average(lognormal(7, 40), resamples), resamples, 0.95)
    assert together > alone.max().item()
    # Rows in proportion go together.
    rows = lognormal(1, 40) * torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    alone, together = critical_values(average(rows, resamples), resamples, 0.95)
    torch.testing.assert_close(alone, torch.full((2,), together, dtype=torch.float64), rtol=1e-5, atol=0)


def test_neither_the_scale_nor_zeros_break_it():
    values = lognormal(1, 30)
    resamples = ImageResamples(30, BootstrapSettings(num_resamples=200))
    alone, _ = critical_values(average(values, resamples), resamples, 0.9)
    tiny, _ = critical_values(average(1e-80 * values, resamples), resamples, 0.9)
    torch.testing.assert_close(tiny, alone, rtol=1e-4, atol=0)
    rows = torch.zeros(2, 30, dtype=torch.float64)
    rows[1, 3] = 1.0
    alone, together = critical_values(average(rows, resamples), resamples, 0.9)
    assert alone[0] == 0
    assert 0 < together < float("inf")
