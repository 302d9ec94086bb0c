"""The interval that fits each kind of number: shares, averages of shares, magnitudes, and averages over seeds."""

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

# Images that a bootstrap needs; and images that must stand apart from the commonest value of an average of shares.
MINIMUM_IMAGES = 10
MINIMUM_SEEDS = (
    3  # With two seeds the quantile of Student's t is 12.7: an interval that says nothing
)
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
    """Wilson's score interval for the probability of success, from k successes in n trials.

    The ends are the roots π of (k/n − π)² = z² π (1 − π) / n, with the normal quantile z at (1 + confidence) / 2:
    floats for ints, else float64 tensors of the shape that k and n broadcast to. They never leave [0, 1], and the
    interval does not vanish at k = 0 or k = n. Source: E. B. Wilson, "Probable inference, the law of succession, and
    statistical inference", Journal of the American Statistical Association 22 (1927), 209–212. No continuity
    correction.

    Raises:
        ValueError: Trials below 1, successes below 0 or above trials, shapes that do not broadcast, or a confidence
            outside (0, 1).
    """
    check_confidence(confidence)
    for argument, counts in (("successes", successes), ("trials", trials)):
        if isinstance(counts, Tensor):
            check_dense(argument, counts)
            check_dtype(argument, counts, (*INTEGER_DTYPES, *FLOAT_DTYPES))
        else:
            check_number(argument, counts, "a number or a tensor of numbers")
    device = next(
        (given.device for given in (successes, trials) if isinstance(given, Tensor)), None
    )
    count, total = (
        torch.as_tensor(given, dtype=torch.float64, device=device) for given in (successes, trials)
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
    # Smaller roots of the successes and of the failures, so that 0 and 1 come out exactly; from the product of the
    # roots, without a difference of nearly equal numbers.
    lower, mirrored = (
        share**2 / (share + half + torch.sqrt(half**2 + 2 * half * share * (1 - share)))
        for share in (count / total, (total - count) / total)
    )
    if isinstance(successes, Tensor) or isinstance(trials, Tensor):
        return lower, 1 - mirrored
    return lower.item(), (1 - mirrored).item()


def exact_interval(successes: Counts, trials: int, confidence: float) -> Ends:
    """Clopper's and Pearson's interval (1934), which unlike Wilson's never covers less often than it says."""
    tail, ends = (1 - confidence) / 2, []
    for count in (successes.numpy(), trials - successes.numpy()):
        # P[X ≥ k] = I_π(k, n − k + 1).
        end = scipy_special().betaincinv(count.clip(min=1), trials - count + 1, tail)
        # No success is never too few.
        ends.append(torch.from_numpy(end).where(torch.from_numpy(count) > 0, 0.0))
    return ends[0], 1 - ends[1]


def estimate_magnitudes(
    average: ImageAverage, resamples: ImageResamples, confidence: float, largest: float = LARGEST
) -> tuple[Estimate, ...]:
    """Averages above 0 that are not shares, each with its own interval of `magnitude_curve` if images differ."""
    curve = magnitude_curve(average, resamples, confidence, largest=largest)
    method = BOOTSTRAP if has_interval(curve.method) else curve.method
    methods = [method if differ else NO_SPREAD for differ in average.influence.any(dim=1).tolist()]
    rows = zip(curve.values, curve.lower, curve.upper, methods, strict=True)
    return tuple(
        Estimate(value, low, high, confidence, method) for value, low, high, method in rows
    )


def estimate_mean(average: ImageAverage, confidence: float) -> Estimate:
    """An average of one row, of any sign, with its BCa interval if images differ, of which resamples learn."""
    value, few = average.values.item(), average.influence.shape[1] < MINIMUM_IMAGES
    if few or not average.influence.any():
        return Estimate(value, value, value, confidence, NO_INTERVAL if few else NO_SPREAD)
    lower, upper = bca_interval(average, confidence)
    return Estimate(
        value, min(value, lower.item()), max(value, upper.item()), confidence, BOOTSTRAP
    )


def estimate_mean_share(average: ImageAverage, confidence: float) -> Estimate:
    """A mean over images of shares within [0, 1], of one row.

    Its interval is BCa, or, where so few images differ from the commonest share that resamples hardly do, Wilson's with
    an image as one trial: of variables in [0, 1] with one mean, one of zeros and ones varies most.
    """
    value, num_images = average.values.item(), average.influence.shape[1]
    if num_images - int(average.influence.unique(return_counts=True)[1].max()) >= MINIMUM_IMAGES:
        return estimate_mean(average, confidence)
    lower, upper = wilson_of_mean(value, num_images, confidence)
    return Estimate(value, lower, upper, confidence, WILSON_IMAGES)


def wilson_of_mean(mean: float, num_images: int, confidence: float) -> FloatEnds:
    """Wilson's interval for a mean within [0, 1] with an image as one trial; counts are rounded outwards."""
    # Rounding of the mean must not turn a whole count into the next one.
    successes = round(mean * num_images, 9)
    counts = torch.tensor([math.floor(successes), math.ceil(successes)])
    lower, upper = wilson_interval(counts, num_images, confidence)
    return lower[0].item(), upper[1].item()


def share_curve(
    outcomes: Outcomes, settings: BootstrapSettings, *, known: int | None = None
) -> Curve:
    """The share of images that succeed at each shift, with Wilson's intervals; at the shift `known`, all of them."""
    num_images = outcomes.shape[1]
    count = outcomes.sum(dim=1)
    shares = count.to(torch.float64) / num_images
    critical = simultaneous_critical_value(
        outcomes.to(torch.float64) - shares[:, None], settings, known
    )
    lower, upper = wilson_interval(count, num_images, settings.confidence)
    # The band has the confidence of so many standard errors of a normal variable, and a width where all succeed.
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
    """Averages θ_s of at most `largest`, with the ends θ_s · exp(± c σ_s / θ_s) of bootstrap-t, to a power."""
    values = average.values.pow(power)
    if average.influence.shape[1] < MINIMUM_IMAGES:
        return make_curve((values,) * 5, NO_INTERVAL)
    alone, together = logarithmic_critical_values(average, resamples, confidence)
    error = average.standard_error
    relative = power * torch.where(error > 0, error / average.values, 0.0)
    ends = [
        # A value of which next to nothing is known would overflow.
        (values * (sign * critical * relative).exp()).clamp(max=largest)
        for critical in (alone, together)
        for sign in (-1, 1)
    ]
    return make_curve((values, *ends), f"{BOOTSTRAP}; band: {together:.2f} standard errors")


def mean_share_curve(lost: ImageAverage, resamples: ImageResamples, confidence: float) -> Curve:
    """Means of shares within [0, 1], given what is lost of them: the ends of what is lost, from the other side."""
    curve = magnitude_curve(lost, resamples, confidence, largest=1.0)
    ends = (curve.values, curve.upper, curve.lower, curve.band_upper, curve.band_lower)
    return make_curve([1 - torch.tensor(end, dtype=torch.float64) for end in ends], curve.method)


def make_curve(ends: Sequence[Float[Tensor, " shifts"]], method: str) -> Curve:
    """A curve of tensors in the order of its fields."""
    values, lower, upper, band_lower, band_upper = (tuple(end.tolist()) for end in ends)
    return Curve(values, lower, upper, band_lower, band_upper, method)


def extreme_of(curve: Curve, over: str, confidence: float) -> Estimate:
    """The "lowest" share or "highest" magnitude of a curve; the band covers it because it covers all."""
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
    """Averages over seeds, with intervals for other seeds and other images, and a band for all rows together.

    θ ± t √(A + B), A of the seeds (0 for fewer than `MINIMUM_SEEDS`) and B of resampled images, the same for all seeds,
    with Student's t by Satterthwaite's degrees of freedom. Where nothing varies, ends within [0, 1], but for the row
    `known`, are Wilson's, with an image as one trial. `largest` is 1 for shares.
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
        apart = (values - mean) / math.sqrt(num_seeds * (num_seeds - 1))
        from_seeds = apart.square().sum(dim=0)
        generator = torch.Generator().manual_seed(settings.seed)
        deviation = (
            deviation
            + torch.randn(len(deviation), num_seeds, generator=generator, dtype=torch.float64)
            @ apart
        )
    error = (from_images + from_seeds).sqrt()
    # Deviations of rounding are none.
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
        of_band = 2 * NormalDist().cdf(critical) - 1
        for row in (error == 0).nonzero().flatten().tolist():
            if row != known:
                ends[0][row], ends[1][row] = wilson_of_mean(
                    mean[row].item(), num_images, settings.confidence
                )
                ends[2][row], ends[3][row] = wilson_of_mean(mean[row].item(), num_images, of_band)
        if not bool(error.any()):
            method = WILSON_IMAGES
    elif not bool(error.any()):
        method = NO_SPREAD
    return make_curve((mean, *ends), method)
