"""Estimates and curves with confidence intervals, and the settings of the intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from types import ModuleType

from teka.checks import check_number, check_sizes
from teka.errors import require, wrong_value

# Limit of resamples, sign flips and permutations, because more would exhaust the memory.
MOST_RESAMPLES = 100_000


def has_interval(method: str) -> bool:
    """Return True if the method of an interval is one, not "none, …" with a reason.

    Without an interval, both ends are equal to the value.
    """
    return not method.startswith("none")


@dataclass(frozen=True)
class Estimate:
    """Number with the ends of its confidence interval.

    Args:
        value: Estimated value.
        lower: Lower end of the interval.
        upper: Upper end of the interval.
        confidence: Confidence level between 0 and 1.
        method: Method of the interval:

            - "wilson" for a share of images; "wilson, an image one trial" for a mean of shares
              with too few different images for a bootstrap
            - "bootstrap over images" and "bootstrap over seeds and images" for averages
            - "student's t over seeds" for a mean over seeds
            - "exact, simultaneous over shifts" for the lowest share over shifts
            - "bootstrap over images, simultaneous over shifts" for the highest error over shifts
            - "none, …" with the reason; both ends are then equal to the value

    >>> from teka.audit.statistics.estimate import mean_over_seeds
    >>> accuracy = mean_over_seeds([0.90, 0.92, 0.91])
    >>> round(accuracy.value, 4), round(accuracy.half_width, 4), accuracy.method
    (0.91, 0.0248, "student's t over seeds")
    """

    value: float
    lower: float
    upper: float
    confidence: float
    method: str

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval, or None without an interval."""
        return (self.upper - self.lower) / 2 if has_interval(self.method) else None


@dataclass(frozen=True)
class Curve:
    """Number at every shift, with an interval for each shift and a band for all shifts.

    Args:
        values: Value at each shift.
        lower: Lower end of the interval of each shift.
        upper: Upper end of the interval of each shift.
        band_lower: Lower end of the band, which covers all shifts with one confidence.
        band_upper: Upper end of the band.
        method: Method of the intervals and the band.
    """

    values: tuple[float, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    band_lower: tuple[float, ...]
    band_upper: tuple[float, ...]
    method: str


@dataclass(frozen=True)
class BootstrapSettings:
    """Confidence level, number of resamples and seed of all intervals of an audit.

    Args:
        confidence: Confidence level between 0 and 1.
        num_resamples: Number of bootstrap resamples, at least 2 / (1 − confidence).
        seed: Seed of the random generator.

    Raises:
        ValueError: An argument is out of range.
    """

    confidence: float = 0.95
    num_resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        check_confidence(self.confidence)
        check_sizes({"num_resamples": self.num_resamples}, most=MOST_RESAMPLES)
        check_sizes({"seed": self.seed}, least=0)
        # PyTorch rejects a confidence of type Fraction and a seed of type numpy.int64.
        object.__setattr__(self, "confidence", float(self.confidence))
        object.__setattr__(self, "seed", int(self.seed))
        needed = round(2 / (1 - self.confidence))
        if self.num_resamples < needed:
            raise wrong_value(
                "num_resamples", self.num_resamples, f"at least 2 / (1 − confidence) = {needed}"
            )

    @property
    def normal_quantile(self) -> float:
        """Normal quantile z at (1 + confidence) / 2."""
        return NormalDist().inv_cdf((1 + self.confidence) / 2)


def mean_over_seeds(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Return the mean over seeds, with Student's t interval for further seeds.

    The interval is x̄ ± t s/√n for n seeds with mean x̄ and standard deviation s, with the quantile
    t of Student's distribution with n − 1 degrees of freedom. A single seed has no interval. To
    compare two models, pass the differences at the seeds that both models have.

    Args:
        values: Value of each seed.
        confidence: Confidence level of the interval.

    Raises:
        ValueError: `values` is empty or `confidence` is not between 0 and 1.
    """
    check_confidence(confidence)
    if not values:
        raise wrong_value("values", list(values), "one value or more")
    mean = fmean(values)
    if len(values) == 1:
        return Estimate(mean, mean, mean, confidence, "none, one seed")
    student = float(scipy_special().stdtrit(len(values) - 1, (1 + confidence) / 2))
    half = student * stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half, confidence, "student's t over seeds")


def check_confidence(confidence: float) -> None:
    """Raise a ValueError unless a confidence level lies between 0 and 1."""
    check_number(
        "confidence", confidence, "a number between 0 and 1", low=0, high=1, exclude=(0, 1)
    )


def scipy_special() -> ModuleType:
    """Import and return `scipy.special`, which only confidence intervals need."""
    return require("scipy.special", "intervals need", "teka[audit]")
