"""Quantiles of Student's t."""

import math
from statistics import NormalDist

# From here on three terms of the expansion are exact to seven digits, and sums would be long.
_MANY = 200


def student_quantile(probability: float, degrees: int) -> float:
    """The quantile of Student's t with a whole number of degrees of freedom, to six digits or more.

    Source: Abramowitz and Stegun, "Handbook of Mathematical Functions" (1964), equations 26.7.3 and 26.7.4 for the
    distribution, which is inverted by halving intervals; 26.7.5 for many degrees.

    Args:
        probability: Probability below the quantile, from ½ to below 1.
        degrees: Degrees of freedom, at least 1.
    """
    if degrees > _MANY:
        z = NormalDist().inv_cdf(probability)
        first = (z**3 + z) / 4
        second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
        third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
        return z + first / degrees + second / degrees**2 + third / degrees**3
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _share_within(middle, degrees) < 2 * probability - 1 else (low, middle)
    return math.sqrt(degrees) * math.tan(low)


def _share_within(angle: float, degrees: int) -> float:
    """P[|t| < √ν tan θ]."""
    sine, cosine = math.sin(angle), math.cos(angle)
    if degrees % 2:
        term, total = cosine, 0.0
        for order in range(2, degrees, 2):
            total += term
            term *= cosine**2 * order / (order + 1)
        return 2 / math.pi * (angle + sine * total)
    term, total = 1.0, 0.0
    for order in range(1, degrees, 2):
        total += term
        term *= cosine**2 * order / (order + 1)
    return sine * total
