import pytest

from teka.audit.page.metric_formatting import (
    explain_missing_intervals,
    format_difference,
    format_interval,
    format_metric,
)
from teka.audit.statistics.intervals import Estimate
from teka.reporting.formatting import (
    format_number,
    format_p_value,
    format_share,
    format_shift,
    format_step,
    join_words,
)


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (1.0, "100.0"),
        (0.9999, "99.99"),
        (0.99949, "99.9"),
        (0.5, "50.0"),
        (0.98149, "98.1"),
        (0.9815, "98.2"),
        (0.0004, "0.04"),
        (1 - 6e-6, "99.9994"),
        (0.0, "0.0"),
    ],
)
def test_share_is_100_or_0_percent_only_if_exact(share, text):
    assert format_share(share) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0.0, "0"), (3.1e-7, "3.1e−7"), (0.0123, "0.0123"), (1.539, "1.54"), (2.5e6, "2.5e6")],
)
def test_number_has_three_digits_or_a_power_of_ten(size, text):
    assert format_number(size) == text


def test_shares_are_in_percent_and_errors_are_not():
    assert format_metric("consistency", 0.25) == format_metric("agreement", 0.25) == "25.0"
    assert format_metric("maximum_error", 0.25) == format_metric("sensitivity", 0.25) == "0.25"


def test_shifts_have_typographic_signs():
    assert format_shift((-3, 2)) == "dx +2, dy −3"
    assert format_shift((0, 0.5)) == "dx +0.5"
    assert format_shift((0, 0)) == "unshifted"
    assert [format_step(step) for step in (-4, 0, 0.25, 13)] == ["−4", "0", "+0.25", "+13"]


@pytest.mark.parametrize(
    ("values", "text"), [([3], "3"), ([3, 5], "3 and 5"), ("abc", "a, b and c")]
)
def test_join_words_lists_values(values, text):
    assert join_words(values) == text


def test_missing_interval_is_a_dash_with_reasons():
    interval = Estimate(0.15, 0.1, 0.2, 0.95, "bootstrap over images")
    assert format_interval("mean_error", interval) == "0.1–0.2"
    few, equal = "none, which needs 10 images or more", "none, all images have this value"
    assert format_interval("mean_error", Estimate(0.107, 0.107, 0.107, 0.95, few)) == "–"
    assert explain_missing_intervals([few, "wilson", equal, few]) == (
        "–: no interval, which needs 10 images or more; or all images have this value."
    )
    assert explain_missing_intervals(["wilson"]) == ""


def test_differences_have_signs_and_p_values_three_decimals():
    assert [format_difference("accuracy", share) for share in (0.0341, -0.1, 0.0004)] == [
        "+3.4",
        "−10.0",
        "0.0",
    ]
    assert format_difference("mean_error", -3.1e-7) == "−3.1e−7"
    assert [format_p_value(p_value) for p_value in (0.0004, 0.0312, 1.0)] == [
        "p < 0.001",
        "p = 0.031",
        "p = 1.000",
    ]
