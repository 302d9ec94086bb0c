"""Functions that format numbers, shifts and lists for human readers."""

from collections.abc import Sequence


def format_count(count: int, noun: str) -> str:
    """Format a count with the singular or plural of a noun, such as "1 step" or "1,300 steps".

    >>> from teka.reporting.formatting import format_count
    >>> format_count(1, "step"), format_count(1300, "step")
    ('1 step', '1,300 steps')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def format_share(share: float) -> str:
    """Format a share as a percentage with one decimal, such as "98.1" for 0.9814.

    Only 1 and 0 themselves give "100.0" and "0.0". Values close to them have more decimals.

    >>> from teka.reporting.formatting import format_share
    >>> format_share(1.0), format_share(0.99999), format_share(0.9814)
    ('100.0', '99.999', '98.1')
    """
    text = f"{100 * share:.1f}"
    if 0 < share < 1 and text in ("0.0", "100.0"):
        _, exponent = f"{100 * min(share, 1 - share):.0e}".split("e")
        text = f"{100 * share:.{-int(exponent)}f}"
    return text


def format_number(value: float) -> str:
    """Format a number with three significant digits, such as "0.123".

    Very small and very large numbers have a power of ten, such as "1.2e−5".
    """
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e5:
        return f"{value:.3g}"
    digits, power = f"{value:.1e}".split("e")
    return f"{digits}e{int(power)}".replace("-", "−")


def format_p_value(p_value: float) -> str:
    """Format a p-value with three decimals, such as "p = 0.012", or as "p < 0.001"."""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"


def format_step(step: int | float) -> str:
    """Format one step of a shift with its sign, such as "−4", "0" or "+0.5"."""
    return f"{step:+g}".replace("-", "−") if step else "0"


def format_shift(shift: Sequence[int | float]) -> str:
    """Format a shift (dy, dx) as text, such as "dx +3, dy −5" or "unshifted"."""
    down, right = shift
    moves = [f"{name} {format_step(step)}" for name, step in (("dx", right), ("dy", down)) if step]
    return ", ".join(moves) or "unshifted"


def format_size(size: int | Sequence[int]) -> str:
    """Format the size of an image, such as "224 × 224".

    A single number means the length of the shorter side, and becomes "a shorter side of 224".
    """
    return f"a shorter side of {size}" if isinstance(size, int) else " × ".join(map(str, size))


def join_words(values: Sequence[object]) -> str:
    """Join values with commas and "and", such as "0, 1 and 2".

    Without values, the result is an empty string.
    """
    words = [str(value) for value in values]
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)
