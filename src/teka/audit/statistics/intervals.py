"""Confidence intervals for shares, averages of shares, magnitudes and averages over seeds."""

import math
import sys
from collections.abc import Sequence
from statistics import NormalDist
from typing import overload

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from teka.audit.statistics.bootstrap import (
    ImageAverage,
    ImageResamples,
    bca_interval,
    logarithmic_critical_values,
    simultaneous_critical_value,
)
from teka.audit.statistics.estimate import (
    BootstrapSettings,
    Curve,
    Estimate,
    check_confidence,
    has_interval,
    scipy_special,
)
from teka.checks import FLOAT_DTYPES, INTEGER_DTYPES, check_dense, check_dtype, check_number
from teka.errors import wrong_shape, wrong_value

# Minimum number of images for a bootstrap. An average of shares also needs this many images whose
# share differs from the most common one.
MINIMUM_IMAGES = 10
# With two seeds the quantile of Student's t is 12.7, and the interval would be uselessly wide.
MINIMUM_SEEDS = 3
LARGEST = sys.float_info.max
Outcomes = Bool[Tensor, "shifts images"]
Counts = Int[Tensor, "..."]
FloatEnds = tuple[float, float]
Ends = tuple[Float[Tensor, "..."], Float[Tensor, "..."]]
NO_INTERVAL = f"none, which needs {MINIMUM_IMAGES} images or more"
NO_SPREAD = "none, all images have this value"
WILSON = "wilson"
WILSON_IMAGES = "wilson, an image one trial"
BOOTSTRAP = "bootstrap over images"


@overload
def wilson_interval(successes: int, trials: int, confidence: float = 0.95) -> FloatEnds: ...
@overload
def wilson_interval(successes: Counts, trials: int | Counts, confidence: float = 0.95) -> Ends: ...
@overload
def wilson_interval(successes: int, trials: Counts, confidence: float = 0.95) -> Ends: ...
def wilson_interval(
    successes: int | Counts, trials: int | Counts, confidence: float = 0.95
) -> FloatEnds | Ends:
    """Return Wilson's score interval for a probability, from k successes in n trials.

    The ends are the roots π of (k/n − π)² = z² π (1 − π) / n, with the normal quantile z at
    (1 + confidence) / 2. They stay within [0, 1], and the interval has a positive width also for
    k = 0 and k = n. No continuity correction is applied. Source: E. B. Wilson, "Probable
    inference, the law of succession, and statistical inference", Journal of the American
    Statistical Association 22 (1927), 209–212.

    >>> from teka.audit import wilson_interval
    >>> lower, upper = wilson_interval(9, 10)
    >>> round(lower, 3), round(upper, 3)
    (0.596, 0.982)

    Args:
        successes: Number k of successes, an int or a tensor.
        trials: Number n of trials, an int or a tensor that broadcasts with `successes`.
        confidence: Confidence level of the interval.

    Returns:
        Lower and upper end: floats if both counts are ints, else float64 tensors of the
        broadcast shape.

    Raises:
        ValueError: `trials` is below 1, `successes` is negative or larger than `trials`, the
            shapes do not broadcast, or `confidence` is not between 0 and 1.
    """
    check_confidence(confidence)
    for argument, counts in (("successes", successes), ("trials", trials)):
        if isinstance(counts, Tensor):
            check_dense(argument, counts)
            check_dtype(argument, counts, (*INTEGER_DTYPES, *FLOAT_DTYPES))
        else:
            check_number(argument, counts, "a number or a tensor of numbers")
    device = next(
        (counts.device for counts in (successes, trials) if isinstance(counts, Tensor)), None
    )
    count, total = (
        torch.as_tensor(counts, dtype=torch.float64, device=device)
        for counts in (successes, trials)
    )
    try:
        count, total = torch.broadcast_tensors(count, total)
    except RuntimeError as error:
        raise wrong_shape(
            "trials", total.shape, f"one that broadcasts with successes, {tuple(count.shape)}"
        ) from error
    if not (total >= 1).all():
        raise wrong_value("trials", trials, "at least 1")
    if not ((count >= 0) & (count <= total)).all():
        raise wrong_value("successes", successes, f"from 0 to trials, {trials!r}")
    half = NormalDist().inv_cdf((1 + confidence) / 2) ** 2 / (2 * total)
    # Compute the smaller root for successes and for failures, from the product of the roots.
    # This gives exactly 0 and 1 at the borders and avoids differences of nearly equal numbers.
    lower, mirrored = (
        share**2 / (share + half + torch.sqrt(half**2 + 2 * half * share * (1 - share)))
        for share in (count / total, (total - count) / total)
    )
    if isinstance(successes, Tensor) or isinstance(trials, Tensor):
        return lower, 1 - mirrored
    return lower.item(), (1 - mirrored).item()


def exact_interval(successes: Counts, trials: int, confidence: float) -> Ends:
    """Return the exact interval of Clopper and Pearson (1934) for a probability.

    Unlike Wilson's interval, its coverage is never below the confidence level.
    """
    tail = (1 - confidence) / 2
    ends = []
    for count in (successes.numpy(), trials - successes.numpy()):
        # P[X ≥ k] = I_π(k, n − k + 1).
        end = scipy_special().betaincinv(count.clip(min=1), trials - count + 1, tail)
        # With zero successes, no probability is too small.
        ends.append(torch.from_numpy(end).where(torch.from_numpy(count) > 0, 0.0))
    return ends[0], 1 - ends[1]


def estimate_magnitudes(
    average: ImageAverage, resamples: ImageResamples, confidence: float, largest: float = LARGEST
) -> tuple[Estimate, ...]:
    """Estimate averages above 0 that are not shares, each with its bootstrap-t interval.

    A row in which all images have the same value has no interval.
    """
    curve = magnitude_curve(average, resamples, confidence, largest=largest)
    method = BOOTSTRAP if has_interval(curve.method) else curve.method
    methods = [method if differ else NO_SPREAD for differ in average.influence.any(dim=1).tolist()]
    rows = zip(curve.values, curve.lower, curve.upper, methods, strict=True)
    return tuple(
        Estimate(value, low, high, confidence, method) for value, low, high, method in rows
    )


def estimate_mean(average: ImageAverage, confidence: float) -> Estimate:
    """Estimate an average of any sign from one row, with its BCa interval.

    There is no interval for too few images or if all images have the same value.
    """
    value = average.values.item()
    few = average.influence.shape[1] < MINIMUM_IMAGES
    if few or not average.influence.any():
        return Estimate(value, value, value, confidence, NO_INTERVAL if few else NO_SPREAD)
    lower, upper = bca_interval(average, confidence)
    return Estimate(
        value, min(value, lower.item()), max(value, upper.item()), confidence, BOOTSTRAP
    )


def estimate_mean_share(average: ImageAverage, confidence: float) -> Estimate:
    """Estimate the mean over images of shares within [0, 1], from one row.

    The interval is BCa if enough images differ from the most common share. Otherwise it is
    Wilson's with each image as one trial. This is conservative, because among variables in [0, 1]
    with a given mean, the variance is largest for zeros and ones.
    """
    value = average.values.item()
    num_images = average.influence.shape[1]
    if num_images - int(average.influence.unique(return_counts=True)[1].max()) >= MINIMUM_IMAGES:
        return estimate_mean(average, confidence)
    lower, upper = wilson_of_mean(value, num_images, confidence)
    return Estimate(value, lower, upper, confidence, WILSON_IMAGES)


def wilson_of_mean(mean: float, num_images: int, confidence: float) -> FloatEnds:
    """Return Wilson's interval for a mean within [0, 1], with each image as one trial.

    The number of successes, mean · num_images, is rounded outward.
    """
    # A rounding error of the mean must not change a whole number of successes.
    successes = round(mean * num_images, 9)
    counts = torch.tensor([math.floor(successes), math.ceil(successes)])
    lower, upper = wilson_interval(counts, num_images, confidence)
    return lower[0].item(), upper[1].item()


def share_curve(
    outcomes: Outcomes, settings: BootstrapSettings, *, known: int | None = None
) -> Curve:
    """Return the share of successful images at each shift, with intervals and a band.

    Args:
        outcomes: True where an image succeeds, with shape (shifts, images).
        settings: Confidence level and settings of the bootstrap.
        known: Shift at which all images succeed by definition, which needs no interval.
    """
    num_images = outcomes.shape[1]
    count = outcomes.sum(dim=1)
    shares = count.to(torch.float64) / num_images
    critical = simultaneous_critical_value(
        outcomes.to(torch.float64) - shares[:, None], settings, known
    )
    lower, upper = wilson_interval(count, num_images, settings.confidence)
    # The exact interval gives the band a width even where all images succeed. Its confidence is
    # that of `critical` standard errors of a normal variable.
    band_lower, band_upper = exact_interval(count, num_images, 2 * NormalDist().cdf(critical) - 1)
    band_lower, band_upper = band_lower.minimum(lower), band_upper.maximum(upper)
    if known is not None:
        lower[known] = band_lower[known] = shares[known]
    method = f"{WILSON}; band: exact at {critical:.2f} standard errors"
    return make_curve((shares, lower, upper, band_lower, band_upper), method)


def magnitude_curve(
    average: ImageAverage,
    resamples: ImageResamples,
    confidence: float,
    power: float = 1.0,
    largest: float = LARGEST,
) -> Curve:
    """Return averages over images above 0, with bootstrap-t intervals and a band.

    The ends are θ_s · exp(± c σ_s / θ_s) for the average θ_s at shift s, its standard error σ_s
    and the critical value c of bootstrap-t. All are raised to `power` and are at most `largest`.
    """
    values = average.values.pow(power)
    if average.influence.shape[1] < MINIMUM_IMAGES:
        return make_curve((values,) * 5, NO_INTERVAL)
    alone, together = logarithmic_critical_values(average, resamples, confidence)
    error = average.standard_error
    relative = power * torch.where(error > 0, error / average.values, 0.0)
    ends = [
        # The end of a very uncertain value would overflow.
        (values * (sign * critical * relative).exp()).clamp(max=largest)
        for critical in (alone, together)
        for sign in (-1, 1)
    ]
    return make_curve((values, *ends), f"{BOOTSTRAP}; band: {together:.2f} standard errors")


def mean_share_curve(lost: ImageAverage, resamples: ImageResamples, confidence: float) -> Curve:
    """Return means of shares within [0, 1], computed from their complements.

    Args:
        lost: Averages of 1 − share. Their upper ends give the lower ends of the shares.
        resamples: Bootstrap resamples of the images.
        confidence: Confidence level of the intervals.
    """
    curve = magnitude_curve(lost, resamples, confidence, largest=1.0)
    ends = (curve.values, curve.upper, curve.lower, curve.band_upper, curve.band_lower)
    return make_curve([1 - torch.tensor(end, dtype=torch.float64) for end in ends], curve.method)


def make_curve(ends: Sequence[Float[Tensor, " shifts"]], method: str) -> Curve:
    """Return a curve from tensors in the order of the fields of `Curve`."""
    values, lower, upper, band_lower, band_upper = (tuple(end.tolist()) for end in ends)
    return Curve(values, lower, upper, band_lower, band_upper, method)


def extreme_of(curve: Curve, over: str, confidence: float) -> Estimate:
    """Estimate the "lowest" share or the "highest" magnitude of a curve over all shifts.

    The interval is taken from the band, which covers the curve at all shifts together.
    """
    end = min if over == "lowest" else max
    method = BOOTSTRAP if curve.method.startswith(BOOTSTRAP) else "exact"
    value, lower, upper = end(curve.values), end(curve.band_lower), end(curve.band_upper)
    if not has_interval(curve.method):
        return Estimate(value, lower, upper, confidence, curve.method)
    method = f"{method}, simultaneous over shifts" if lower < upper else NO_SPREAD
    return Estimate(value, lower, upper, confidence, method)


def two_level_curve(
    seeds: Sequence[ImageAverage],
    settings: BootstrapSettings,
    *,
    largest: float = LARGEST,
    known: int | None = None,
) -> Curve:
    """Return averages over seeds, with intervals for other seeds and images, and a band.

    The interval is θ ± t √(A + B) for the average θ over seeds. A is its variance between seeds
    (0 for fewer than `MINIMUM_SEEDS`), B its variance over bootstrap resamples of the images,
    which are the same for all seeds, and t is Student's quantile with Satterthwaite's degrees of
    freedom. Shares without any variation have Wilson's interval with each image as one trial.

    Args:
        seeds: Averages of each seed.
        settings: Confidence level and settings of the bootstrap.
        largest: Largest possible value, 1 for shares.
        known: Row whose value is known exactly, so that it needs no interval.
    """
    num_seeds, num_images = len(seeds), seeds[0].influence.shape[1]
    values = torch.stack([seed.values for seed in seeds])
    mean = values.mean(dim=0)
    if num_images < MINIMUM_IMAGES and largest > 1:
        return make_curve((mean,) * 5, NO_INTERVAL)
    deviation = torch.stack([seed.draws for seed in seeds]).mean(dim=0) - mean
    from_images = deviation.square().mean(dim=0)
    from_seeds = torch.zeros_like(mean)
    if num_seeds >= MINIMUM_SEEDS:
        between = (values - mean) / math.sqrt(num_seeds * (num_seeds - 1))
        from_seeds = between.square().sum(dim=0)
        generator = torch.Generator().manual_seed(settings.seed)
        deviation = (
            deviation
            + torch.randn(len(deviation), num_seeds, generator=generator, dtype=torch.float64)
            @ between
        )
    error = (from_images + from_seeds).sqrt()
    # Smaller deviations are rounding errors.
    error = torch.where(error > 1e-9 * mean.abs(), error, 0.0)
    normal = settings.normal_quantile
    student = torch.full_like(mean, normal)
    for row in from_seeds.nonzero().flatten().tolist():
        degrees = (num_seeds - 1) * (1 + (from_images[row] / from_seeds[row]).item()) ** 2
        student[row] = float(scipy_special().stdtrit(degrees, (1 + settings.confidence) / 2))
    largest_deviation = torch.where(error > 0, deviation.abs() / error, 0.0).amax(dim=1)
    rank = min(math.ceil(settings.confidence * (len(deviation) + 1)), len(deviation))
    critical = max(normal, largest_deviation.kthvalue(rank).values.item())
    ends = []
    for half in (student * error, student * error * critical / normal):
        ends += [(mean - half).clamp(min=0.0), (mean + half).clamp(max=largest)]
    method = "bootstrap over seeds and images" if num_seeds >= MINIMUM_SEEDS else BOOTSTRAP
    if largest == 1:
        band_confidence = 2 * NormalDist().cdf(critical) - 1
        for row in (error == 0).nonzero().flatten().tolist():
            if row != known:
                share = mean[row].item()
                ends[0][row], ends[1][row] = wilson_of_mean(share, num_images, settings.confidence)
                ends[2][row], ends[3][row] = wilson_of_mean(share, num_images, band_confidence)
        if not bool(error.any()):
            method = WILSON_IMAGES
    elif not bool(error.any()):
        method = NO_SPREAD
    return make_curve((mean, *ends), method)
