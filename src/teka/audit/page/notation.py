"""How numbers are written for people: shares, sizes, shifts, lists."""

import math
from collections.abc import Iterable, Sequence

from teka.audit.statistics.estimate import has_interval
from teka.audit.statistics.metrics import CURVES, NUMBERS

MISSING = "–"
# Numbers that are folded away at first.
FOR_EXPERTS = ("consistency_when_right", "probability_change", "divergence", "rank")


def percent(share: float, decimals: int = 1) -> str:
    """A share in percent to so many decimals, without the sign: 0.9814 is "98.1"."""
    return f"{100 * share:.{decimals}f}"


def write_share(share: float) -> str:
    """A share in percent to one decimal; "100.0" and "0.0" only where it is exactly that."""
    rounded = {"100.0": ">99.9", "0.0": "<0.1"} if 0 < share < 1 else {}
    return rounded.get(percent(share), percent(share))


def write_size(value: float) -> str:
    """A number to three digits, with a power of ten where it is very small or large."""
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e5:
        return f"{value:.3g}"
    digits, power = f"{value:.1e}".split("e")
    return f"{digits}e{int(power)}".replace("-", "−")


def is_share(name: str) -> bool:
    """Whether a number or curve of an audit is a share; of the two that share a name, both are or none."""
    metric = CURVES.get(name) or NUMBERS.get(name)
    return metric is not None and metric.is_share


def write_number(name: str, value: float) -> str:
    """A number or a point of a curve of an audit: a share in percent, anything else to three digits."""
    return write_share(value) if is_share(name) else write_size(value)


def write_difference(name: str, value: float) -> str:
    """A difference of a number of an audit with its sign, a true minus; shares in points of percent."""
    written = f"{100 * abs(value):.1f}" if is_share(name) else write_size(abs(value))
    sign = "" if float(written.replace("−", "-")) == 0 else "−" if value < 0 else "+"
    return f"{sign}{written}"


def write_p_value(p_value: float) -> str:
    """A p-value to three decimals: "p = 0.012", "p < 0.001"."""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"


def write_interval(name: str, lower: float, upper: float, method: str) -> str:
    """The ends of an interval of a number of an audit, "–" where its method says that there is none."""
    return (
        f"{write_number(name, lower)}–{write_number(name, upper)}"
        if has_interval(method)
        else MISSING
    )


def missing_intervals(methods: Iterable[str]) -> str:
    """What "–" stands for in place of intervals of some methods, a sentence; "" if none is missing."""
    reasons = dict.fromkeys(
        method.removeprefix("none, ") for method in methods if not has_interval(method)
    )
    return f"{MISSING}: no interval, {'; or '.join(reasons)}." if reasons else ""


def significant(number: float | int, digits: int = 3) -> str:
    """A number to some significant digits, without an exponent: "1.23", "36.0", "1,230"."""
    if number == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(number))))
    return f"{number:,.{decimals}f}"


def write_step(step: int | float) -> str:
    """A step in pixels with its sign, a true minus: "−4", "0", "+0.5"."""
    return f"{step:+g}".replace("-", "−") if step else "0"


def write_shift(shift: Sequence[int | float]) -> str:
    """A shift (dy, dx) in words: "dx +3, dy −5", or "unshifted"."""
    down, right = shift
    moves = [f"{name} {write_step(step)}" for name, step in (("dx", right), ("dy", down)) if step]
    return ", ".join(moves) or "unshifted"


def listed(values: Sequence[object]) -> str:
    """Values in a row: "0, 1 and 2", "" for none."""
    words = [str(value) for value in values]
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)


def averaged(counts: Sequence[int]) -> str:
    """What an average is over, given the number of seeds of each model: "one seed", "mean of 3 seeds"."""
    if max(counts) == 1:
        return "one seed"
    if min(counts) == max(counts):
        return f"mean of {counts[0]} seeds"
    return f"means of {min(counts)} to {max(counts)} seeds"
