"""Formatting of metrics, their confidence intervals and their differences."""

from collections.abc import Iterable

from teka.audit.statistics.comparison import Comparison
from teka.audit.statistics.intervals import Estimate, has_interval
from teka.audit.statistics.metrics import CURVES, NUMBERS
from teka.reporting.formatting import format_number, format_p_value, format_share

MISSING = "–"
WIDEST = 100
# Titles of the metrics whose labels are too short to be understood outside a table.
_TITLES = {
    "accuracy": "accuracy, unshifted",
    "minimum_accuracy": "accuracy at the worst shift",
    "worst_shift_accuracy": "accuracy at every shift",
    "retrieval": "retrieval of the same image",
}


def metric_title(name: str) -> str:
    """Return the full name of a metric, which is clear outside of a table."""
    return _TITLES.get(name, NUMBERS[name].label)


def is_percentage(name: str) -> bool:
    """Return True if a metric is a share, such as an accuracy, which is shown in percent."""
    metric = CURVES.get(name) or NUMBERS.get(name)
    return metric is not None and metric.is_share


def format_metric(name: str, value: float) -> str:
    """Format a share in percent with one decimal, or a number with three significant digits."""
    return format_share(value) if is_percentage(name) else format_number(value)


def format_metric_with_unit(name: str, value: float) -> str:
    """Format the value of a metric, followed by "%" if it is a share."""
    return f"{format_metric(name, value)}{' %' if is_percentage(name) else ''}"


def format_interval(name: str, estimate: Estimate, *, is_exact: bool = False) -> str:
    """Format the confidence interval of a metric. If there is none, the result is "–".

    If the upper end of the interval of an error is more than 100 times the lower end, the result is
    "too few images". Errors of exact models are an exception, because rounding alone causes them.
    """
    if not (is_exact or is_percentage(name)) and estimate.upper > WIDEST * estimate.lower:
        return "too few images"
    ends = (format_metric(name, end) for end in (estimate.lower, estimate.upper))
    return "–".join(ends) if has_interval(estimate.method) else MISSING


def format_estimate(name: str, estimate: Estimate, *, is_exact: bool = False) -> tuple[str, str]:
    """Format the value of a metric and its confidence interval."""
    return format_metric(name, estimate.value), format_interval(name, estimate, is_exact=is_exact)


def format_difference(name: str, value: float) -> str:
    """Format the difference of a metric between two models, with its sign.

    For metrics in percent, the difference is in percentage points.
    """
    written = f"{100 * abs(value):.1f}" if is_percentage(name) else format_number(abs(value))
    sign = "" if float(written.replace("−", "-")) == 0 else "−" if value < 0 else "+"
    return f"{sign}{written}"


def format_difference_interval(name: str, difference: Estimate) -> str:
    """Format the confidence interval of a difference. If there is none, the result is "–"."""
    ends = (format_difference(name, end) for end in (difference.lower, difference.upper))
    return " to ".join(ends) if has_interval(difference.method) else MISSING


def format_difference_cells(comparison: Comparison) -> dict[str, tuple[str, str, str]]:
    """Format the difference, interval and p-value of every metric that two models share."""
    return {
        name: (
            format_difference(name, difference.value),
            format_difference_interval(name, difference),
            format_p_value(difference.p_value),
        )
        for name, difference in comparison.numbers.items()
    }


def explain_missing_intervals(methods: Iterable[str]) -> str:
    """Explain why some confidence intervals are missing, from the methods of all intervals.

    If no interval is missing, the result is empty.
    """
    reasons = dict.fromkeys(
        method.removeprefix("none, ") for method in methods if not has_interval(method)
    )
    return f"{MISSING}: no interval, {'; or '.join(reasons)}." if reasons else ""
