"""Foretell the time and memory of a step from those at fewer tokens."""

import math
from collections.abc import Mapping

from teka.experiments.bench.measure import Cost

LEAST_POWER, LARGEST_POWER = 1.0, 2.0
"""Between linear and quadratic in the number of tokens, as every layer is where it takes long."""
MARGIN = 1.5
"""By how much the memory of a step may exceed what is foretold from two sizes."""


def foretell_seconds(known: Mapping[int, Cost], num_tokens: int) -> float:
    """Seconds of a step at a number of tokens, 0 if it has never been measured.

    The last time, extrapolated by the power of L by which it grew between the last two sizes, taken to be at least 1
    and at most 2; with one size only by 1.
    """
    return _extrapolate({length: cost.seconds for length, cost in known.items()}, num_tokens)


def foretell_bytes(known: Mapping[int, Cost], num_tokens: int) -> float:
    """Peak memory of a step at a number of tokens, as `foretell_seconds`."""
    return _extrapolate({length: float(cost.peak_bytes) for length, cost in known.items()}, num_tokens)


def largest_bytes(known: Mapping[int, Cost], num_tokens: int) -> float:
    """Bound of the peak memory of a step, infinity if it has never been measured.

    With one size that of quadratic growth; with more, half as much again as their growth foretells.
    """
    if len(known) > 1:
        return MARGIN * foretell_bytes(known, num_tokens)
    bounds = [cost.peak_bytes * (num_tokens / length) ** LARGEST_POWER for length, cost in known.items()]
    return bounds[0] if bounds else math.inf


def _extrapolate(known: Mapping[int, float], num_tokens: int) -> float:
    points = list(known.items())[-2:]
    if not points:
        return 0.0
    length, value = points[-1]
    power = LEAST_POWER
    if len(points) == 2:
        before, less = points[0]
        power = math.log(value / less) / math.log(length / before)
        power = min(max(power, LEAST_POWER), LARGEST_POWER)
    return value * (num_tokens / length) ** power
