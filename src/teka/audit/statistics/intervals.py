"""Confidence intervals: Wilson intervals for shares of images, bootstrap intervals for averages."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from numpy import ndarray

from teka.checks import check_number, check_sizes, is_number
from teka.errors import wrong_type, wrong_value

# Maximum number of resamples and of sign flips, because more would exhaust the memory.
MAX_RESAMPLES = 100_000
# Minimum number of images for a bootstrap. For an average of shares, at least this many images must
# also have a share that differs from the most common share.
MINIMUM_IMAGES = 10
# Intervals with a smaller relative width contain only rounding errors.
ROUNDING = 1e-12
# Limit of value / lower end and of upper end / value. If a few values are much larger than the
# others, the ends of a bootstrap-t interval have no bound. The limit changes no coverage in the
# study reproduction/studies/interval_coverage.md.
MAX_FACTOR = 30.0
NO_INTERVAL = f"none, which needs {MINIMUM_IMAGES} images or more"
NO_SPREAD = "none, all images have this value"
WILSON = "wilson"
WILSON_IMAGES = "wilson, an image one trial"
BOOTSTRAP = "bootstrap over images"
BAND = "band over shifts"
Values = Float[ndarray, "*rows images"]
Draws = Float[ndarray, "resamples *rows"]
Ends = tuple[Any, Any]


def has_interval(method: str) -> bool:
    """Return True if estimates with this method have an interval. Methods "none, …" have none."""
    return not method.startswith("none")


@dataclass(frozen=True)
class Estimate:
    """Estimated number with its confidence interval.

    Args:
        value: Estimated value.
        lower: Lower end of the interval.
        upper: Upper end of the interval.
        confidence: Confidence level between 0 and 1.
        method: Method of the interval:

            - "wilson" for a share of images
            - "wilson, an image one trial" for a mean of shares, if too few images have different
              shares for a bootstrap
            - "bootstrap over images" for an average
            - "band over shifts" for the lowest share or the highest error over all shifts
            - "none, …" with the reason if there is no interval, so that both ends equal the value

    >>> from teka.audit import Estimate
    >>> Estimate(0.91, 0.88, 0.93, 0.95, "wilson").half_width
    0.025000000000000022
    """

    value: float
    lower: float
    upper: float
    confidence: float
    method: str

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval, or None if there is no interval."""
        return (self.upper - self.lower) / 2 if has_interval(self.method) else None


@dataclass(frozen=True)
class Curve:
    """Values of a metric at every shift, with confidence intervals and a simultaneous band.

    The interval at a shift contains the true value at this shift with the probability given by the
    confidence level. The band is wider than the intervals, because it contains the true values at
    all shifts at the same time with this probability.

    Args:
        values: Value at each shift.
        lower: Lower end of the interval at each shift.
        upper: Upper end of the interval at each shift.
        band_lower: Lower end of the band at each shift.
        band_upper: Upper end of the band at each shift.
        method: Method that computed the intervals.
    """

    values: tuple[float, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    band_lower: tuple[float, ...]
    band_upper: tuple[float, ...]
    method: str


def check_confidence(confidence: float) -> None:
    """Check that a confidence level lies between 0 and 1."""
    check_number(
        "confidence", confidence, "a number between 0 and 1", low=0, high=1, exclude=(0, 1)
    )


def _normal_quantile(confidence: float) -> float:
    """Return the z for which a standard normal variable lies in ± z with the given probability."""
    return NormalDist().inv_cdf((1 + confidence) / 2)


def wilson_interval(
    successes: int | ndarray, trials: int | ndarray, confidence: float = 0.95
) -> Ends:
    """Return the Wilson score interval for a probability, given k successes in n trials.

    The interval lies within [0, 1] and has a positive width even for k = 0 and k = n. Its ends are
    the roots π of (k/n − π)² = z² π (1 − π) / n, where z is the normal quantile at
    (1 + confidence) / 2. No continuity correction is applied.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference",
    Journal of the American Statistical Association 22 (1927), 209–212.

    >>> from teka.audit import wilson_interval
    >>> lower, upper = wilson_interval(9, 10)
    >>> round(lower, 3), round(upper, 3)
    (0.596, 0.982)

    Args:
        successes: Number k of successes, or an array of such numbers.
        trials: Number n of trials, or an array of such numbers.
        confidence: Confidence level of the interval.

    Returns:
        Lower and upper end of the interval, as floats. If an argument is an array, the ends are
        arrays.

    Raises:
        ValueError: `trials` is below 1, `successes` is negative or larger than `trials`, or
            `confidence` is not between 0 and 1.
    """
    check_confidence(confidence)
    count = _as_floats("successes", successes)
    total = _as_floats("trials", trials)
    if not (total >= 1).all():
        raise wrong_value("trials", trials, "at least 1")
    if not ((count >= 0) & (count <= total)).all():
        raise wrong_value("successes", successes, f"from 0 to trials, {trials!r}")
    half = _normal_quantile(confidence) ** 2 / (2 * total)
    # Compute the smaller root for successes and for failures, from the product of the roots. This
    # gives exactly 0 and 1 for k = 0 and k = n, and avoids differences of nearly equal numbers.
    lower, mirrored = (
        share**2 / (share + half + np.sqrt(half**2 + 2 * half * share * (1 - share)))
        for share in (count / total, (total - count) / total)
    )
    if not np.ndim(lower):
        return float(lower), float(1 - mirrored)
    return lower, 1 - mirrored


def _as_floats(argument: str, numbers: object) -> ndarray:
    is_array = isinstance(numbers, ndarray) and numbers.dtype.kind in "iuf"
    if not (is_array or is_number(numbers)):
        raise wrong_type(argument, numbers, "a number or an array of numbers")
    return np.asarray(numbers, float)


@dataclass(frozen=True)
class ImageBootstrap:
    """Bootstrap over images, in which each resample draws N of N images with replacement.

    The same resamples are used for all averages. A resample contains an image together with its
    outputs at all shifts, so that the dependence between shifts is preserved. Source: Efron,
    "Bootstrap methods: another look at the jackknife", Annals of Statistics 7 (1979), 1–26.

    Args:
        num_images: Number of images N.
        confidence: Confidence level between 0 and 1.
        num_resamples: Number of bootstrap resamples, at least 2 / (1 − confidence).
        seed: Seed of the random generator.

    Raises:
        ValueError: An argument is out of range.
    """

    num_images: int
    confidence: float = 0.95
    num_resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        check_confidence(self.confidence)
        check_sizes({"num_resamples": self.num_resamples}, most=MAX_RESAMPLES)
        check_sizes({"seed": self.seed}, least=0)
        # NumPy rejects a confidence of type Fraction.
        object.__setattr__(self, "confidence", float(self.confidence))
        needed = round(2 / (1 - self.confidence))
        if self.num_resamples < needed:
            raise wrong_value(
                "num_resamples", self.num_resamples, f"at least 2 / (1 − confidence) = {needed}"
            )

    @cached_property
    def _counts(self) -> Int[ndarray, "resamples images"]:
        random = np.random.default_rng(int(self.seed))
        counts = np.empty((self.num_resamples, self.num_images), np.int16)
        for row in counts:
            sample = random.integers(self.num_images, size=self.num_images)
            row[:] = np.bincount(sample, minlength=self.num_images)
        return counts

    def resample_means(self, values: Values) -> Draws:
        """Return the mean over the images in each resample.

        If a resample contains image i n_i times, the mean of the images' values v_i is
        Σ_i n_i v_i / N. One matrix product computes the means of all resamples.
        """
        chunks = np.array_split(self._counts, math.ceil(self._counts.size / 2**22))
        return np.concatenate([chunk.astype(float) @ values.T for chunk in chunks]) / len(values.T)

    def percentile_interval(self, value: Any, draws: Draws) -> Ends:
        """Return the percentile interval of an average.

        If the average lies outside the interval, the interval is extended to contain it.

        Args:
            value: Average over the images.
            draws: Average over the images in each resample.
        """
        tail = (1 - self.confidence) / 2
        lower, upper = np.quantile(draws, [tail, 1 - tail], axis=0)
        return np.minimum(lower, value), np.maximum(upper, value)

    def standardized_deviations(self, values: Float[ndarray, " rows"], draws: Draws) -> Draws:
        """Return the distance of each resample from the data, in standard errors.

        The standard error at a shift is the standard deviation of the averages of the resamples.
        Where it is 0, the distance is 0.

        Args:
            values: Average over the images at each shift.
            draws: Average over the images of each resample at each shift.
        """
        error = draws.std(axis=0)
        varies = error > ROUNDING * np.abs(values)
        zeros = np.zeros_like(draws)
        return np.divide(np.abs(draws - values), error, out=zeros, where=varies)

    def bootstrap_t_deviations(self, average: "BootstrapAverage") -> Draws:
        """Return the distance of each resample from the data on a logarithmic scale (bootstrap-t).

        Let θ be the average of the data, θ* that of a resample, and σ* the standard error of θ*.
        The distance is |log(θ* / θ)| θ* / σ*, in standard errors of log θ*. The logarithm makes the
        interval longer on the side of large values, where averages of skewed values vary more.

        Source: Hall, "Theoretical comparison of bootstrap confidence intervals", Annals of
        Statistics 16 (1988), 927–953.
        """
        values = average.values
        draws = average.draws
        influence = average.influence
        variance = self.resample_means(influence**2) - self.resample_means(influence) ** 2
        error = np.sqrt(variance.clip(min=0) / (self.num_images - 1))
        varies = (draws > 0) & (error > ROUNDING * values)
        ratio = np.divide(draws, values, out=np.ones_like(draws), where=varies)
        return np.abs(np.log(ratio)) * draws / np.where(varies, error, 1.0)

    def critical_value(self, deviations: Draws) -> float:
        """Return the number c of standard errors for a band that covers the values at all shifts.

        The band extends c standard errors to both sides of the average. The function takes the
        largest deviation of each resample over all shifts, and returns the quantile of these
        maxima at the confidence level. The result is at least the normal quantile. Shifts at which
        no resample deviates are treated as independent (Šidák), which increases this quantile.

        Source: Montiel Olea and Plagborg-Møller, "Simultaneous confidence bands", Journal of
        Applied Econometrics 34 (2019), 1–17.

        Args:
            deviations: Deviation of each resample at each shift, in standard errors.
        """
        confidence = self.confidence
        num_constant = max(int((~deviations.any(axis=0)).sum()), 1)
        independent = _normal_quantile(confidence ** (1 / num_constant))
        largest = deviations.max(axis=1, initial=0.0)
        return max(independent, float(np.quantile(largest, confidence)))


@dataclass(frozen=True)
class BootstrapAverage:
    """Averages of a metric at each shift, over all images and over each bootstrap resample.

    Args:
        values: Average over all images at each shift.
        draws: Average over each resample at each shift.
        influence: Influence function: the first-order change of the average if an image gets more
            weight. Its mean over the images is 0.
    """

    values: Float[ndarray, " shifts"]
    draws: Draws
    influence: Float[ndarray, "shifts images"]

    def average_over_shifts(self, shifts: list[int]) -> "BootstrapAverage":
        """Return the averages over the shifts with the given indices, as a single row."""
        return BootstrapAverage(
            self.values[shifts].mean(keepdims=True),
            self.draws[:, shifts].mean(axis=1, keepdims=True),
            self.influence[shifts].mean(axis=0, keepdims=True),
        )


def create_estimate(value: Any, ends: Ends, confidence: float, method: str) -> Estimate:
    """Create an `Estimate` from a value and the ends of its interval.

    If the interval has width 0, because all images have the same value, the estimate is marked as
    one without an interval. Otherwise, it would suggest certainty.
    """
    value, lower, upper = map(float, (value, *ends))
    if has_interval(method) and upper - lower <= ROUNDING * abs(value):
        method = NO_SPREAD
    return Estimate(value, lower, upper, confidence, method)


def estimate_from_resamples(value: float, draws: Draws, bootstrap: ImageBootstrap) -> Estimate:
    """Create an `Estimate` of an average, with a percentile interval from bootstrap resamples.

    If there are too few images, the estimate has no interval.

    Args:
        value: Average over the images.
        draws: Average over the images in each resample.
        bootstrap: Bootstrap that drew the resamples.
    """
    confidence = bootstrap.confidence
    if bootstrap.num_images < MINIMUM_IMAGES:
        return create_estimate(value, (value, value), confidence, NO_INTERVAL)
    return create_estimate(
        value, bootstrap.percentile_interval(value, draws), confidence, BOOTSTRAP
    )


def estimate_share(shares: Shaped[ndarray, " images"], bootstrap: ImageBootstrap) -> Estimate:
    """Estimate a share of images, or a mean of shares, with a confidence interval.

    - If each image is a success or a failure, the share of successes, such as the accuracy, has a
      Wilson interval.
    - If each image has a share itself, such as the share of shifts with the same prediction, the
      mean of these shares has a bootstrap interval.
    - If fewer than `MINIMUM_IMAGES` images differ from the most common share, the bootstrap is
      unreliable. The mean then has a Wilson interval, with each image as one trial. This interval
      is conservative, because zeros and ones have the largest variance of all values in [0, 1]
      with the same mean.

    Args:
        shares: For each image a share, or a boolean that is True for a success.
        bootstrap: Bootstrap over the images. If it has a different number of images, new resamples
            are drawn.
    """
    mean = shares.mean()
    num_images = len(shares)
    method = WILSON if shares.dtype == bool else WILSON_IMAGES
    num_different = num_images - np.unique(shares, return_counts=True)[1].max()
    if method == WILSON_IMAGES and num_different >= MINIMUM_IMAGES:
        if num_images != bootstrap.num_images:
            bootstrap = replace(bootstrap, num_images=num_images)
        return estimate_from_resamples(float(mean), bootstrap.resample_means(shares), bootstrap)
    # A rounding error of the mean must not change a whole number of successes.
    successes = round(mean * num_images, 9)
    whole = np.array([math.floor(successes), math.ceil(successes)])
    lower, upper = wilson_interval(whole, num_images, bootstrap.confidence)
    return create_estimate(mean, (lower[0], upper[1]), bootstrap.confidence, method)


def estimate_share_curve(
    outcomes: Bool[ndarray, "shifts images"], bootstrap: ImageBootstrap, known: int | None = None
) -> Curve:
    """Estimate the share of successes at each shift, with intervals and a band.

    The intervals are Wilson intervals. The band consists of Wilson intervals with a higher
    confidence level, which the bootstrap chooses so that they cover the shares at all shifts.

    Args:
        outcomes: Whether each image is a success at each shift.
        bootstrap: Bootstrap over the images.
        known: Index of a shift at which all images are successes by definition, if there is one.
            This shift needs no interval.
    """
    shares = outcomes.mean(axis=1)
    unknown = np.arange(len(outcomes)) != known
    draws = bootstrap.resample_means(outcomes[unknown].astype(float))
    critical = bootstrap.critical_value(bootstrap.standardized_deviations(shares[unknown], draws))
    ends = []
    for level in (bootstrap.confidence, 2 * NormalDist().cdf(critical) - 1):
        ends += wilson_interval(outcomes.sum(axis=1), outcomes.shape[1], level)
    for end in ends:
        end[~unknown] = 1.0
    return create_curve(shares, ends, WILSON)


def estimate_mean_curve(
    average: BootstrapAverage, bootstrap: ImageBootstrap, *, is_share: bool = False
) -> Curve:
    """Estimate a positive average at each shift, with bootstrap-t intervals and a band.

    The ends of an interval are θ exp(± c σ / θ), where θ is the average and σ its standard error.
    The factor exp(c σ / θ) is at most `MAX_FACTOR`. The number c of standard errors comes from the
    `bootstrap_t_deviations` of the resamples:

    - For the interval at a shift, c is their quantile at this shift, but at least the normal
      quantile.
    - For the band, c is their `critical_value` over all shifts.

    Args:
        average: Average θ at each shift.
        bootstrap: Bootstrap over the images.
        is_share: Whether θ is a share. The intervals are then computed for 1 − θ, because shares
            are usually close to 1.
    """
    values = average.values
    if bootstrap.num_images < MINIMUM_IMAGES:
        return create_curve(values, [values] * 4, NO_INTERVAL)
    if is_share:
        lost = BootstrapAverage(1 - values, 1 - average.draws, -average.influence)
        curve = estimate_mean_curve(lost, bootstrap)
        ends = (curve.upper, curve.lower, curve.band_upper, curve.band_lower)
        return create_curve(values, [1 - np.clip(end, 0, 1) for end in ends], curve.method)
    deviations = bootstrap.bootstrap_t_deviations(average)
    confidence = bootstrap.confidence
    each_shift = np.quantile(deviations, confidence, axis=0).clip(_normal_quantile(confidence))
    error = average.influence.std(axis=1, ddof=1) / math.sqrt(bootstrap.num_images)
    relative_error = np.divide(error, values, out=np.zeros_like(values), where=values > 0)
    ends = []
    for critical in (each_shift, bootstrap.critical_value(deviations)):
        factor = np.exp((critical * relative_error).clip(max=math.log(MAX_FACTOR)))
        ends += [values / factor, values * factor]
    return create_curve(values, ends, BOOTSTRAP)


def append_artificial_differences(differences: Values) -> ndarray:
    """Append the differences 1 and −1 of two artificial images, see `compare_responses`."""
    ends = np.broadcast_to([1.0, -1.0], (*differences.shape[:-1], 2))
    return np.concatenate([differences, ends], axis=-1)


def estimate_difference_curve(differences: Values, bootstrap: ImageBootstrap) -> Curve:
    """Estimate how much a share, such as the accuracy, differs between two models at each shift.

    The result has a percentile interval for each shift, and a confidence band for all shifts.

    Args:
        differences: Difference between two models for each image at each shift.
        bootstrap: Bootstrap over the images and two artificial images, because the result uses
            `append_artificial_differences`.
    """
    values = differences.mean(axis=1)
    padded = append_artificial_differences(differences)
    center = padded.mean(axis=1)
    draws = bootstrap.resample_means(padded)
    critical = bootstrap.critical_value(bootstrap.standardized_deviations(center, draws))
    width = critical * draws.std(axis=0)
    lower, upper = bootstrap.percentile_interval(values, draws)
    band = np.minimum(center - width, lower), np.maximum(center + width, upper)
    ends = [end.clip(-1, 1) for end in (lower, upper, *band)]
    return create_curve(values, ends, BOOTSTRAP)


def create_curve(values: Any, ends: Any, method: str) -> Curve:
    """Create a `Curve` from arrays.

    Args:
        values: Value at each shift.
        ends: Lower and upper ends of the intervals, followed by those of the band.
        method: Method that computed the intervals.
    """
    rows = np.array([values, *ends], float).tolist()
    return Curve(*map(tuple, rows), method=method)


def estimate_extreme(curve: Curve, over: str, confidence: float) -> Estimate:
    """Estimate the lowest or the highest value of a curve over all shifts.

    The ends of the interval are the lowest or highest ends of the band. They are valid without
    knowing the shift with the lowest or highest value, because the band covers all shifts.

    Args:
        curve: The curve.
        over: "lowest" or "highest".
        confidence: Confidence level of the band.
    """
    extreme = min if over == "lowest" else max
    ends = extreme(curve.band_lower), extreme(curve.band_upper)
    method = BAND if has_interval(curve.method) else curve.method
    return create_estimate(extreme(curve.values), ends, confidence, method)
