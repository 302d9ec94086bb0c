"""A number with its interval, a curve of them, and what all intervals of one audit share."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from types import ModuleType

from teka.checks import check_number, check_sizes
from teka.errors import require, wrong_value

MOST_RESAMPLES = (
    100_000  # of a bootstrap, flips of a test or permutations: more would fill the memory
)


def has_interval(method: str) -> bool:
    """Whether a method of an interval gave one: "none, …" says why there is none, and then the ends are the value."""
    return not method.startswith("none")


@dataclass(frozen=True)
class Estimate:
    """A number with the ends of its interval, whose confidence is within (0, 1).

    The method is "wilson"; "wilson, an image one trial", where resamples would hardly differ; "bootstrap over images";
    "bootstrap over seeds and images"; "student's t over seeds"; "exact, simultaneous over shifts" of a lowest share,
    and "bootstrap over images, simultaneous over shifts" of a highest error; or "none, …" with the reason, where both
    ends are the value.

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
        """Half the width of the interval; None where there is none."""
        return (self.upper - self.lower) / 2 if has_interval(self.method) else None


@dataclass(frozen=True)
class Curve:
    """A number at every shift, with an interval for each shift alone and a band that covers all with one confidence."""

    values: tuple[float, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    band_lower: tuple[float, ...]
    band_upper: tuple[float, ...]
    method: str


@dataclass(frozen=True)
class BootstrapSettings:
    """What all intervals of one audit share."""

    confidence: float = 0.95
    num_resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        check_confidence(self.confidence)
        check_sizes({"num_resamples": self.num_resamples}, most=MOST_RESAMPLES)
        check_sizes({"seed": self.seed}, least=0)
        # PyTorch takes neither a confidence of type Fraction nor a seed of type numpy.int64.
        object.__setattr__(self, "confidence", float(self.confidence))
        object.__setattr__(self, "seed", int(self.seed))
        needed = round(2 / (1 - self.confidence))
        if self.num_resamples < needed:
            raise wrong_value(
                "num_resamples", self.num_resamples, f"at least 2 / (1 − confidence) = {needed}"
            )

    @property
    def normal_quantile(self) -> float:
        """z, the normal quantile at (1 + confidence) / 2."""
        return NormalDist().inv_cdf((1 + self.confidence) / 2)


def mean_over_seeds(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Mean x̄ of n seeds with the interval x̄ ± t s/√n for further seeds, t Student's for n − 1 degrees of freedom.

    One seed has no interval: both ends are the value. Of two models, pass the differences of the seeds that both have.
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
    """Check that a confidence lies between 0 and 1."""
    check_number(
        "confidence", confidence, "a number between 0 and 1", low=0, high=1, exclude=(0, 1)
    )


def scipy_special() -> ModuleType:
    """`scipy.special`, which nothing but intervals needs."""
    return require("scipy.special", "intervals need", "teka[audit]")
