"""Metrics of an audit as text for people."""

from collections.abc import Iterable

from teka.audit.statistics.estimate import has_interval
from teka.audit.statistics.metrics import CURVES, NUMBERS
from teka.reporting.formatting import write_share, write_size

MISSING = "–"


def is_share(name: str) -> bool:
    """Return True if a metric is a share, which is written in percent."""
    metric = CURVES.get(name) or NUMBERS.get(name)
    return metric is not None and metric.is_share


def write_number(name: str, value: float) -> str:
    """Write the value of a metric: a share in percent, other values with three digits."""
    return write_share(value) if is_share(name) else write_size(value)


def write_difference(name: str, value: float) -> str:
    """Write the difference of two values of a metric with its sign, shares in percentage points."""
    written = f"{100 * abs(value):.1f}" if is_share(name) else write_size(abs(value))
    sign = "" if float(written.replace("−", "-")) == 0 else "−" if value < 0 else "+"
    return f"{sign}{written}"


def write_interval(name: str, lower: float, upper: float, method: str) -> str:
    """Write the ends of the interval of a metric, or "–" if its method gives no interval."""
    return (
        f"{write_number(name, lower)}–{write_number(name, upper)}"
        if has_interval(method)
        else MISSING
    )


def missing_intervals(methods: Iterable[str]) -> str:
    """Explain in a sentence why intervals are missing. Return an empty text if none is missing."""
    reasons = dict.fromkeys(
        method.removeprefix("none, ") for method in methods if not has_interval(method)
    )
    return f"{MISSING}: no interval, {'; or '.join(reasons)}." if reasons else ""
