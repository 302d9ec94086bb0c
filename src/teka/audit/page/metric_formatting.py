"""Formatting of metrics, their confidence intervals and their differences as text."""

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
    """Return a name of a metric that can be understood without the other columns of its table."""
    return _TITLES.get(name, NUMBERS[name].label)


def is_percentage(name: str) -> bool:
    """Return True if a metric, such as the accuracy, is a fraction that is shown in percent."""
    metric = CURVES.get(name) or NUMBERS.get(name)
    return metric is not None and metric.is_share


def format_metric(name: str, value: float) -> str:
    """Format a percentage with one decimal, and other metrics with three significant digits."""
    return format_share(value) if is_percentage(name) else format_number(value)


def format_metric_with_unit(name: str, value: float) -> str:
    """Format the value of a metric, followed by "%" if the metric is a percentage."""
    return f"{format_metric(name, value)}{' %' if is_percentage(name) else ''}"


def format_interval(name: str, estimate: Estimate, *, is_exact: bool = False) -> str:
    """Format the confidence interval of a metric, or return "–" if the metric has no interval.

    If the upper end of the interval of an error is more than 100 times the lower end, return "too
    few images". This does not apply to exact models, whose errors are caused by rounding alone.
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

    Differences of percentages are in percentage points.
    """
    written = f"{100 * abs(value):.1f}" if is_percentage(name) else format_number(abs(value))
    sign = "" if float(written.replace("−", "-")) == 0 else "−" if value < 0 else "+"
    return f"{sign}{written}"


def format_difference_interval(name: str, difference: Estimate) -> str:
    """Format the confidence interval of a difference, or return "–" if it has no interval."""
    ends = (format_difference(name, end) for end in (difference.lower, difference.upper))
    return " to ".join(ends) if has_interval(difference.method) else MISSING


def format_difference_cells(comparison: Comparison) -> dict[str, tuple[str, str, str]]:
    """Format the cells of a table of differences between two models.

    The result contains the difference, its interval and its p-value for every metric that both
    models define.
    """
    return {
        name: (
            format_difference(name, difference.value),
            format_difference_interval(name, difference),
            format_p_value(difference.p_value),
        )
        for name, difference in comparison.numbers.items()
    }


def explain_missing_intervals(methods: Iterable[str]) -> str:
    """Explain why some confidence intervals in a table are missing, or return "" if none is.

    Args:
        methods: Method of each interval. That of a missing interval is "none", with the reason.
    """
    reasons = dict.fromkeys(
        method.removeprefix("none, ") for method in methods if not has_interval(method)
    )
    return f"{MISSING}: no interval, {'; or '.join(reasons)}." if reasons else ""
