"""From numbers to places in a drawing, with round numbers for the ticks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
DECADES_FOR_LOGARITHM = 2.5
"""Numbers that span more powers of ten than this are drawn on a logarithmic scale."""


@dataclass(frozen=True)
class Scale:
    """A scale from numbers to places.

    Args:
        low: The number at the start.
        high: The number at the end, above `low`.
        start: Place of `low`.
        end: Place of `high`.
        is_logarithmic: Whether equal factors, not equal differences, take equal room; `low` is positive then.
    """

    low: int | float
    high: int | float
    start: float
    end: float
    is_logarithmic: bool = False

    def place(self, value: int | float) -> float:
        """Where a number lies; one beyond an end lies at that end."""
        value = min(max(value, self.low), self.high)
        if self.is_logarithmic:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Round numbers within the scale, at most about so many."""
        if self.is_logarithmic:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            every = max(1, -(-(last - first + 1) // most))
            return [10.0**power for power in range(first, last + 1, every)]
        step = round_step((self.high - self.low) / most)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]


def round_step(least: float) -> float:
    """The lowest of 1, 2, 2.5, 5 times a power of ten that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in STEPS if step * power >= least * (1 - 1e-9))


def share_scale(values: Sequence[float], start: float, end: float) -> Scale:
    """A scale for shares: from a round number below the lowest, or 0 where that is not far, to 1.

    Args:
        values: The shares.
        start: Place of the lower end.
        end: Place of 1.
    """
    lowest = min(values)
    low = 0.0 if lowest < 0.5 else max(0.0, math.floor(20 * lowest - 0.5) / 20)
    return Scale(min(low, 0.9), 1.0, start, end)


def size_scale(values: Sequence[float], start: float, end: float) -> Scale:
    """A scale for numbers of at least 0: from 0, or logarithmic where they span many powers of ten.

    Args:
        values: The numbers.
        start: Place of the lower end.
        end: Place of the upper end.
    """
    positive = [value for value in values if value > 0]
    if not positive:
        return Scale(0.0, 1.0, start, end)
    low, high = min(positive), max(positive)
    if math.log10(high / low) > DECADES_FOR_LOGARITHM:
        powers = math.floor(math.log10(low)), math.ceil(math.log10(high) - 1e-9)
        return Scale(10.0 ** powers[0], 10.0 ** max(powers[1], powers[0] + 1), start, end, is_logarithmic=True)
    step = round_step(high / 4)
    return Scale(0.0, math.ceil(high / step - 1e-9) * step, start, end)
