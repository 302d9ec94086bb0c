"""Intervals for averages over seeds and images."""

import math
import sys
from collections.abc import Sequence
from statistics import NormalDist

import torch

from teka.audit.statistics.estimate import BootstrapSettings, Curve, student_quantile
from teka.audit.statistics.intervals import BOOTSTRAP, MINIMUM_IMAGES, NO_INTERVAL, WILSON_IMAGES, wilson_of_mean
from teka.audit.statistics.seed_values import SeedValues

MINIMUM_SEEDS = 3
"""With two seeds the quantile of Student's t is 12.7: an interval that says nothing."""

SEEDS_AND_IMAGES = "bootstrap over seeds and images"


def two_level_curve(
    seeds: Sequence[SeedValues],
    num_images: int,
    settings: BootstrapSettings,
    *,
    largest: float = sys.float_info.max,
    known: int | None = None,
) -> Curve:
    """Averages over seeds, with intervals for other seeds and other images, and a band for all rows together.

    The seeds' models answered the same images, so seeds and images cross: a resample draws images once for all seeds.
    With θ_k the value of seed k and θ their average, the variance is A + B: A = Σ_k (θ_k − θ)² / (K (K − 1)) from the
    seeds, B that of θ over resamples of the images. Intervals are θ ± t √(A + B), with Student's t at
    (K − 1) (1 + B / A)² degrees of freedom. A band takes the quantile of the largest studentised deviation over the
    rows, of Σ_k g_k (θ_k − θ) / √(K (K − 1)) with normal g_k plus the deviation of a resample of the images, times t
    over the normal quantile z. With fewer than `MINIMUM_SEEDS` seeds A counts as 0. Where nothing varies, ends of
    numbers within [0, 1] are Wilson's, with an image as one trial.

    Source: Owen, "The pigeonhole bootstrap", Annals of Applied Statistics 1 (2007), 386–411, for crossed levels;
    Satterthwaite, "An approximate distribution of estimates of variance components", Biometrics Bulletin 2 (1946),
    110–114, for the degrees of freedom.

    Args:
        seeds: Values and draws of each seed, over the same resamples of the images.
        num_images: Number of images N.
        settings: Confidence of each interval and of the band, number of draws and their seed.
        largest: What the values cannot exceed: 1 for shares. They are never negative.
        known: A row whose value is known by definition.
    """
    values = torch.stack([seed.values for seed in seeds])
    mean = values.mean(dim=0)
    if num_images < MINIMUM_IMAGES and largest > 1:
        ends = tuple(mean.tolist())
        return Curve(ends, ends, ends, ends, ends, NO_INTERVAL)
    deviation = torch.stack([seed.draws for seed in seeds]).mean(dim=0) - mean
    from_images = deviation.square().mean(dim=0)
    from_seeds = torch.zeros_like(mean)
    num_seeds = len(seeds)
    if num_seeds >= MINIMUM_SEEDS:
        apart = (values - mean) / math.sqrt(num_seeds * (num_seeds - 1))
        from_seeds = apart.square().sum(dim=0)
        generator = torch.Generator().manual_seed(settings.seed)
        deviation = deviation + torch.randn(len(deviation), num_seeds, generator=generator, dtype=torch.float64) @ apart
    error = (from_images + from_seeds).sqrt()
    # Deviations of rounding are none.
    error = torch.where(error > 1e-9 * mean.abs(), error, 0.0)
    normal = NormalDist().inv_cdf((1 + settings.confidence) / 2)
    student = torch.full_like(mean, normal)
    for row in from_seeds.nonzero().flatten().tolist():
        degrees = (num_seeds - 1) * (1 + (from_images[row] / from_seeds[row]).item()) ** 2
        student[row] = student_quantile((1 + settings.confidence) / 2, degrees)
    largest_deviation = torch.where(error > 0, deviation.abs() / error, 0.0).amax(dim=1)
    rank = min(math.ceil(settings.confidence * (len(deviation) + 1)), len(deviation))
    critical = max(normal, largest_deviation.kthvalue(rank).values.item())
    ends = []
    for half in (student * error, student * error * critical / normal):
        ends += [(mean - half).clamp(min=0.0), (mean + half).clamp(max=largest)]
    if largest == 1:
        for row in (error == 0).nonzero().flatten().tolist():
            if row != known:
                ends[0][row], ends[1][row] = wilson_of_mean(mean[row].item(), num_images, settings.confidence)
                confidence = 2 * NormalDist().cdf(critical) - 1
                ends[2][row], ends[3][row] = wilson_of_mean(mean[row].item(), num_images, confidence)
    method = SEEDS_AND_IMAGES if num_seeds >= MINIMUM_SEEDS else BOOTSTRAP
    if largest == 1 and not bool(error.any()):
        method = WILSON_IMAGES
    return Curve(*(tuple(end.tolist()) for end in (mean, *ends)), method=method)
