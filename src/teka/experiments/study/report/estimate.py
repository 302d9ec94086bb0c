"""A mean over seeds and its 95 % interval."""

import math
from collections.abc import Sequence
from functools import cache
from statistics import fmean, stdev
from typing import NamedTuple

from teka.errors import wrong_value

CONFIDENCE = 0.95
"""Probability that an interval covers."""


class Estimate(NamedTuple):
    """A mean, half the width of its interval (None for a single value), and the number of seeds."""

    mean: float
    half_width: float | None
    seeds: int

    @property
    def interval(self) -> tuple[float, float] | None:
        """Lower and upper end, where there is an interval."""
        return None if self.half_width is None else (self.mean - self.half_width, self.mean + self.half_width)


def estimate(values: Sequence[float]) -> Estimate:
    """Mean x̄ of n values and its interval x̄ ± t s/√n, with Student's t for n − 1 degrees of freedom.

    Args:
        values: One value for each seed.

    Raises:
        ValueError: No value.
    """
    if not values:
        raise wrong_value("values", list(values), "one value or more")
    count = len(values)
    half_width = student_quantile(count - 1) * stdev(values) / math.sqrt(count) if count > 1 else None
    return Estimate(fmean(values), half_width, count)


@cache
def student_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """The t with P(|T| < t) = confidence for Student's distribution with a whole number of degrees of freedom.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 26.7.3 and 26.7.4, solved by bisection
    for the angle θ = arctan(t/√ν).

    Args:
        freedom: Degrees of freedom ν.
        confidence: Probability, between 0 and 1.

    Raises:
        ValueError: Freedom below 1, or a confidence outside (0, 1).
    """
    if freedom < 1:
        raise wrong_value("freedom", freedom, "at least 1")
    if not 0 < confidence < 1:
        raise wrong_value("confidence", confidence, "a number between 0 and 1")
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _probability_within(middle, freedom) < confidence else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _probability_within(angle: float, freedom: int) -> float:
    """P(|T| < √ν tan θ)."""
    first = 2 + freedom % 2
    term = math.cos(angle) if freedom % 2 else 1.0
    total = term if freedom > 1 else 0.0
    for order in range(first, freedom, 2):
        term *= (order - 1) / order * math.cos(angle) ** 2
        total += term
    return 2 / math.pi * (angle + math.sin(angle) * total) if freedom % 2 else math.sin(angle) * total
