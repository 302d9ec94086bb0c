"""How numbers are written for people: percentages to a tenth, signs of shifts, counts of seeds."""

from collections.abc import Sequence


def percent(share: float) -> str:
    """A share as a percentage to one decimal, without the sign: 0.9814 is "98.1"."""
    return f"{100 * share:.1f}"


def signed(shift: int) -> str:
    """A shift with its sign, a true minus: "−4", "0", "+4"."""
    return f"{shift:+d}".replace("-", "−") if shift else "0"


def listed(values: Sequence[object]) -> str:
    """Values in a row: "0, 1 and 2"."""
    words = [str(value) for value in values]
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]


def averaged(counts: Sequence[int]) -> str:
    """What an average is over, given the number of seeds of each model: "one seed", "mean of 3 seeds"."""
    if max(counts) == 1:
        return "one seed"
    if min(counts) == max(counts):
        return f"mean of {counts[0]} seeds"
    return f"means of {min(counts)} to {max(counts)} seeds"
