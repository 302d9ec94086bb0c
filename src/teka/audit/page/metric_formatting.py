"""Names and values of metrics as text."""

from collections.abc import Iterable

from teka.audit.statistics.comparison import Comparison
from teka.audit.statistics.intervals import Estimate, has_interval
from teka.audit.statistics.metrics import CURVES, NUMBERS
from teka.reporting.formatting import format_number, format_p_value, format_share

MISSING = "–"
# Titles of the metrics whose labels are too short to be understood outside a table.
_TITLES = {
    "accuracy": "accuracy, unshifted",
    "minimum_accuracy": "accuracy at the worst shift",
    "worst_shift_accuracy": "accuracy at every shift",
    "retrieval": "retrieval of the same image",
}


def metric_title(name: str) -> str:
    """Return the name of a metric for use outside of a table."""
    return _TITLES.get(name, NUMBERS[name].label)


def is_share(name: str) -> bool:
    """Return True if a metric is a share, which is written in percent."""
    metric = CURVES.get(name) or NUMBERS.get(name)
    return metric is not None and metric.is_share


def format_metric(name: str, value: float) -> str:
    """Write the value of a metric: a share in percent, other values with three digits."""
    return format_share(value) if is_share(name) else format_number(value)


def format_metric_with_unit(name: str, value: float) -> str:
    """Write the value of a metric, with "%" if it is a share."""
    return f"{format_metric(name, value)}{' %' if is_share(name) else ''}"


def format_interval(name: str, estimate: Estimate) -> str:
    """Write the interval of a metric, or "–" if there is none."""
    ends = (format_metric(name, end) for end in (estimate.lower, estimate.upper))
    return "–".join(ends) if has_interval(estimate.method) else MISSING


def format_estimate(name: str, estimate: Estimate) -> tuple[str, str]:
    """Return the value of a metric and its interval as text."""
    return format_metric(name, estimate.value), format_interval(name, estimate)


def format_difference(name: str, value: float) -> str:
    """Write a difference between two values of a metric with its sign, in points for a share."""
    written = f"{100 * abs(value):.1f}" if is_share(name) else format_number(abs(value))
    sign = "" if float(written.replace("−", "-")) == 0 else "−" if value < 0 else "+"
    return f"{sign}{written}"


def format_difference_interval(name: str, difference: Estimate) -> str:
    """Write the interval of a difference between two models, or "–" if there is none."""
    ends = (format_difference(name, end) for end in (difference.lower, difference.upper))
    return " to ".join(ends) if has_interval(difference.method) else MISSING


def format_differences(comparison: Comparison) -> dict[str, tuple[str, str, str]]:
    """Write each compared metric of two models: the difference, its interval and the p-value."""
    return {
        name: (
            format_difference(name, difference.value),
            format_difference_interval(name, difference),
            format_p_value(difference.p_value),
        )
        for name, difference in comparison.numbers.items()
    }


def explain_missing_intervals(methods: Iterable[str]) -> str:
    """Say why intervals are missing, given the methods of all intervals: "" if none is missing."""
    reasons = dict.fromkeys(
        method.removeprefix("none, ") for method in methods if not has_interval(method)
    )
    return f"{MISSING}: no interval, {'; or '.join(reasons)}." if reasons else ""
