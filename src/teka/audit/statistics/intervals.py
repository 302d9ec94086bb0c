"""The interval that fits each kind of number: shares, averages of shares, and magnitudes."""

import sys
from statistics import NormalDist

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka.audit.statistics.bca import bca_interval
from teka.audit.statistics.estimate import BootstrapSettings, Curve, Estimate
from teka.audit.statistics.exact_interval import exact_interval
from teka.audit.statistics.image_average import ImageAverage
from teka.audit.statistics.logarithmic_t import critical_values
from teka.audit.statistics.resampling import ImageResamples
from teka.audit.statistics.simultaneous import simultaneous_critical_value
from teka.audit.wilson import wilson_interval

MINIMUM_IMAGES = 10
"""Images that a bootstrap needs; and images that must stand apart from the commonest value of an average of shares."""

NO_INTERVAL = f"none, fewer than {MINIMUM_IMAGES} images"
WILSON = "wilson"
EXACT_SIMULTANEOUS = "exact, simultaneous over shifts"
WILSON_IMAGES = "wilson, an image one trial"
BOOTSTRAP = "bootstrap over images"
BOOTSTRAP_SIMULTANEOUS = "bootstrap over images, simultaneous over shifts"


def estimate_share(outcomes: Bool[Tensor, " images"], confidence: float) -> Estimate:
    """The share of images that succeed, with Wilson's interval.

    Args:
        outcomes: Whether each image succeeds.
        confidence: Of the interval.
    """
    successes = int(outcomes.sum())
    lower, upper = wilson_interval(successes, len(outcomes), confidence)
    return Estimate(successes / len(outcomes), lower, upper, confidence, WILSON)


def share_curve(
    outcomes: Bool[Tensor, "shifts images"], settings: BootstrapSettings, *, known: int | None = None
) -> Curve:
    """The share of images that succeed at each shift.

    Intervals are Wilson's. The band is made of exact intervals, each with the confidence of ± c standard errors of a
    normal variable, where c is the simultaneous critical value: so it stays within [0, 1], and has a width where all
    images succeed. Such shifts count as independent ones for c. It contains the intervals.

    Args:
        outcomes: Whether each image succeeds at each shift.
        settings: Confidence of each interval and of the band, and draws for its critical value.
        known: A shift at which all images succeed by definition.
    """
    num_images = outcomes.shape[1]
    count = outcomes.sum(dim=1)
    shares = count.to(torch.float64) / num_images
    num_constant = int(((count == 0) | (count == num_images)).sum()) - (known is not None)
    critical = simultaneous_critical_value(
        outcomes.to(torch.float64) - shares[:, None],
        settings,
        num_constant=num_constant,
    )
    lower, upper = wilson_interval(count, num_images, settings.confidence)
    band_lower, band_upper = exact_interval(count, num_images, 2 * NormalDist().cdf(critical) - 1)
    band_lower, band_upper = band_lower.minimum(lower), band_upper.maximum(upper)
    if known is not None:
        lower[known] = band_lower[known] = shares[known]
    return _curve(
        shares, lower, upper, band_lower, band_upper, f"{WILSON}; band: exact at {critical:.2f} standard errors"
    )


def magnitude_curve(
    average: ImageAverage,
    resamples: ImageResamples,
    confidence: float,
    *,
    power: float = 1.0,
    largest: float = sys.float_info.max,
) -> Curve:
    """Averages θ_s ≥ 0, such as losses and errors, at each shift.

    Intervals and band are θ_s · exp(± c σ_s / θ_s), with the critical value of bootstrap-t for each shift, and with
    that for all shifts together. Where images do not differ, all ends are the value.

    Args:
        average: The averages over images.
        resamples: The resamples that they were drawn from.
        confidence: Of each interval, and of the band.
        power: Power to which values and ends are raised: ½ for the norm of a mean square.
        largest: What the averages cannot exceed.
    """
    values = average.values.pow(power)
    if average.influence.shape[1] < MINIMUM_IMAGES:
        return _curve(values, values, values, values, values, NO_INTERVAL)
    alone, together = critical_values(average, resamples, confidence)
    error = average.standard_error
    relative = power * torch.where(error > 0, error / average.values, 0.0)
    ends = (
        # A value of which next to nothing is known would overflow.
        (values * (sign * critical * relative).exp()).clamp(max=largest)
        for critical in (alone, together)
        for sign in (-1, 1)
    )
    return _curve(values, *ends, method=f"{BOOTSTRAP}; band: {together:.2f} standard errors")


def estimate_magnitude(average: ImageAverage, confidence: float) -> Estimate:
    """An average that is not a share, with its BCa interval.

    Args:
        average: The average over images, one row.
        confidence: Of the interval.
    """
    value = average.values.item()
    if average.influence.shape[1] < MINIMUM_IMAGES:
        return Estimate(value, value, value, confidence, NO_INTERVAL)
    lower, upper = bca_interval(average, confidence)
    return Estimate(value, min(value, lower.item()), max(value, upper.item()), confidence, BOOTSTRAP)


def estimate_mean_share(average: ImageAverage, confidence: float) -> Estimate:
    """A mean over images of shares within [0, 1], such as of the shifts at which an image is answered as unmoved.

    The interval is BCa if at least `MINIMUM_IMAGES` images stand apart from the commonest share. Else resamples hardly
    differ, and would say that next to nothing is unknown; it is then Wilson's with an image as one trial, which is too
    wide if anything: of all variables in [0, 1] with the same mean, one of zeros and ones varies most.

    Args:
        average: The mean over images, one row.
        confidence: Of the interval.
    """
    value = average.values.item()
    num_images = average.influence.shape[1]
    commonest = int(average.influence.unique(return_counts=True)[1].max())
    if num_images - commonest >= MINIMUM_IMAGES:
        lower, upper = (end.item() for end in bca_interval(average, confidence))
        return Estimate(value, min(value, lower), max(value, upper), confidence, BOOTSTRAP)
    lower, upper = wilson_of_mean(value, num_images, confidence)
    return Estimate(value, lower, upper, confidence, WILSON_IMAGES)


def wilson_of_mean(mean: float, num_images: int, confidence: float) -> tuple[float, float]:
    """Wilson's interval for a mean within [0, 1] with an image as one trial; counts are rounded outwards."""
    # Rounding of the mean must not turn a whole count into the next one.
    successes = round(mean * num_images, 9)
    lower, _ = wilson_interval(int(successes // 1), num_images, confidence)
    _, upper = wilson_interval(int(-(-successes // 1)), num_images, confidence)
    return lower, upper


def lowest_of(curve: Curve, confidence: float) -> Estimate:
    """The lowest share of a curve; its interval is the band's, which covers the lowest because it covers all."""
    return Estimate(min(curve.values), min(curve.band_lower), min(curve.band_upper), confidence, EXACT_SIMULTANEOUS)


def highest_of(curve: Curve, confidence: float) -> Estimate:
    """The highest magnitude of a curve; its interval is the band's, which covers the highest because it covers all."""
    method = NO_INTERVAL if curve.method == NO_INTERVAL else BOOTSTRAP_SIMULTANEOUS
    return Estimate(max(curve.values), max(curve.band_lower), max(curve.band_upper), confidence, method)


def _curve(
    values: Float[Tensor, " shifts"],
    lower: Float[Tensor, " shifts"],
    upper: Float[Tensor, " shifts"],
    band_lower: Float[Tensor, " shifts"],
    band_upper: Float[Tensor, " shifts"],
    method: str,
) -> Curve:
    ends = (tuple(end.tolist()) for end in (values, lower, upper, band_lower, band_upper))
    return Curve(*ends, method=method)
