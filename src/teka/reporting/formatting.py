"""Numbers and lists as text for people."""

from collections.abc import Sequence


def format_share(share: float) -> str:
    """Write a share in percent with one decimal, and "100.0" or "0.0" only if it is exact.

    >>> from teka.reporting.formatting import format_share
    >>> format_share(1.0), format_share(0.99999), format_share(0.9814)
    ('100.0', '>99.9', '98.1')
    """
    text = f"{100 * share:.1f}"
    rounded = {"100.0": ">99.9", "0.0": "<0.1"} if 0 < share < 1 else {}
    return rounded.get(text, text)


def format_number(value: float) -> str:
    """Write a number with three digits, and with a power of ten if it is very small or large."""
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e5:
        return f"{value:.3g}"
    digits, power = f"{value:.1e}".split("e")
    return f"{digits}e{int(power)}".replace("-", "−")


def format_p_value(p_value: float) -> str:
    """Write a p-value with three decimals: "p = 0.012" or "p < 0.001"."""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"


def format_step(step: int | float) -> str:
    """Write a step in pixels with its sign: "−4", "0", "+0.5"."""
    return f"{step:+g}".replace("-", "−") if step else "0"


def format_shift(shift: Sequence[int | float]) -> str:
    """Write a shift (dy, dx) as text: "dx +3, dy −5", or "unshifted"."""
    down, right = shift
    moves = [f"{name} {format_step(step)}" for name, step in (("dx", right), ("dy", down)) if step]
    return ", ".join(moves) or "unshifted"


def join_words(values: Sequence[object]) -> str:
    """Join values as a list in a sentence: "0, 1 and 2". No values give an empty text."""
    words = [str(value) for value in values]
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)
