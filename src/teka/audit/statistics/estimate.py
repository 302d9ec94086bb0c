"""Estimates and curves with confidence intervals, and the settings of the intervals."""

from dataclasses import dataclass
from statistics import NormalDist

from teka.checks import check_number, check_sizes
from teka.errors import wrong_value

# Limit of resamples and sign flips, because more would exhaust the memory.
MOST_RESAMPLES = 100_000


def has_interval(method: str) -> bool:
    """Return False if an estimate has no interval, so that its method is "none" with a reason."""
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
            - "bootstrap over images" for averages
            - "band over shifts" for the lowest share or the highest error over shifts
            - "none, …" with the reason why there is no interval; both ends then equal the value

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
        """Half the width of the interval, or None without an interval."""
        return (self.upper - self.lower) / 2 if has_interval(self.method) else None


@dataclass(frozen=True)
class Curve:
    """Metric at every shift, with an interval for each shift and a band for all shifts.

    Args:
        values: Value at each shift.
        lower: Lower end of the interval of each shift.
        upper: Upper end of the interval of each shift.
        band_lower: Lower end of the band. At the confidence level, the band contains the true
            values at all shifts together.
        band_upper: Upper end of the band.
        method: Method of the intervals.
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
        # NumPy rejects a confidence of type Fraction.
        object.__setattr__(self, "confidence", float(self.confidence))
        needed = round(2 / (1 - self.confidence))
        if self.num_resamples < needed:
            raise wrong_value(
                "num_resamples", self.num_resamples, f"at least 2 / (1 − confidence) = {needed}"
            )

    @property
    def normal_quantile(self) -> float:
        """Normal quantile z at (1 + confidence) / 2."""
        return NormalDist().inv_cdf((1 + self.confidence) / 2)


def check_confidence(confidence: float) -> None:
    """Raise a ValueError unless a confidence level lies between 0 and 1."""
    check_number(
        "confidence", confidence, "a number between 0 and 1", low=0, high=1, exclude=(0, 1)
    )
