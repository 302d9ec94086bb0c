import torch

from teka.audit.statistics.estimate import BootstrapSettings
from teka.audit.statistics.resampling import ImageResamples


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
        ImageResamples(11, BootstrapSettings(num_resamples=40, seed=seed)).counts for seed in (3, 3, 4)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
