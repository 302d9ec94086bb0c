import dataclasses

import pytest

from teka.audit.caveats import Caveat
from teka.audit.movement import Movement
from teka.audit.page.compared import (
    comparison_sections,
    describe_accuracy_change,
    describe_best_model,
)
from teka.audit.page.metric_formatting import format_difference_cells
from teka.audit.page.pages import render_audit_page
from teka.audit.page.text import comparison_text, format_summary_as_markdown
from teka.audit.statistics.comparison import Comparison, Difference, ModelPair
from teka.audit.statistics.intervals import Curve
from tests.audit.page.audit_reports import SQUARE, make_report

NAMES = ("patches", "rotation", "table")


def difference(value, p_value, method="bootstrap over images"):
    return Difference(value, value - 0.1, value + 0.1, 0.95, method, p_value)


def make_pair(first, second, value, p_value, mode="circular", method="bootstrap over images"):
    """Return a pair with a difference of `value` in accuracy and −`value` / 2 in mean error."""
    values = tuple(value if any(shift) else 0.0 for shift in SQUARE)
    lower, upper = (tuple(one + end for one in values) for end in (-0.1, 0.1))
    curve = Curve(values, lower, upper, lower, upper, "bootstrap over images")
    numbers = {
        "worst_shift_accuracy": difference(value, p_value),
        "mean_error": dataclasses.replace(difference(-value / 2, p_value), method=method),
    }
    return ModelPair(
        first, second, Comparison(Movement(mode), 60, SQUARE, {"accuracy": curve}, numbers, 0.95)
    )


def make_reports(*names, **changes):
    return [make_report(name, caveats=(), **changes) for name in names]


PAIRS = (make_pair(0, 1, -0.5, 0.0001), make_pair(0, 2, -0.48, 0.0002), make_pair(1, 2, 0.02, 0.8))


def test_best_model_is_named_with_its_evidence():
    headline, evidence = describe_best_model(PAIRS[:1], make_reports("patches", "rotation"))
    better = "rotation is significantly better than patches in accuracy at every shift"
    assert headline == f"Mode circular: {better}."
    assert evidence == [
        "Accuracy at every shift: higher for rotation than for patches by 50.0 points "
        "(40.0 to 60.0, p < 0.001).",
        "Mean error: lower for rotation than for patches by 0.25 (0.15 to 0.35, p < 0.001).",
    ]


def test_models_without_a_significant_difference_are_a_tie():
    headline, (first, _) = describe_best_model(PAIRS, make_reports(*NAMES))
    tie = "no significant difference between rotation and table"
    assert headline == f"Mode circular: {tie} in accuracy at every shift."
    assert first == (
        f"Accuracy at every shift: {tie}: 2.0 points (−8.0 to 12.0, p = 0.800); "
        "higher for rotation than for patches by 50.0 points (40.0 to 60.0, p < 0.001)."
    )


def test_metric_that_one_pair_lacks_has_no_best_model():
    reports = make_reports(*NAMES)
    headline, _ = describe_best_model(PAIRS[:2], reports)
    assert headline == "Mode circular: no best model, because no metric is defined for every pair."
    assert "patches minus rotation" in comparison_text(PAIRS[:2], reports)


def test_model_with_invalid_results_is_not_compared():
    void = Caveat("constant predictor", "invalidates", "It says 3.")
    reports = [
        *make_reports("patches"),
        make_report("rotation", caveats=(void,)),
        *make_reports("table"),
    ]
    headline, evidence = describe_best_model(PAIRS, reports)
    assert headline.startswith("Mode circular: table is significantly better than patches in ")
    excluded = "rotation is not compared, because its results are invalid: constant predictor."
    assert evidence[-1] == excluded
    # Only one of two models is left, so text, Markdown and page show no best model and no difference.
    headline = "Mode circular: no comparison, because only patches has valid results."
    assert describe_best_model(PAIRS[:1], reports[:2]) == (headline, [excluded])
    text, page = comparison_text(PAIRS[:1], reports[:2]), render_audit_page(reports[:2], PAIRS[:1])
    for shown in (text, page, format_summary_as_markdown(reports[:2], PAIRS[:1])):
        assert headline in shown
        assert "no two models" not in shown
        assert "−50.0" not in shown
    # Without the first model, the second model is the reference.
    others = [reports[1], reports[0], reports[2]]
    (section,) = comparison_sections(PAIRS, others)
    assert [(pair.first, pair.second) for pair in section["pairs"]] == [(1, 2)]
    assert section["reference"] == 1
    assert "patches minus table" in comparison_text(PAIRS, others)


def test_models_with_a_common_metric_are_compared_if_a_third_lacks_it():
    # The pairs with the third model define no metric.
    for_three = [
        dataclasses.replace(
            pair,
            comparison=dataclasses.replace(
                pair.comparison,
                numbers={
                    name: one
                    for name, one in pair.comparison.numbers.items()
                    if name == "consistency"
                },
            ),
        )
        for pair in PAIRS[1:]
    ]
    headline, evidence = describe_best_model([PAIRS[0], *for_three], make_reports(*NAMES))
    better = "rotation is significantly better than patches in accuracy at every shift"
    assert headline == f"Mode circular: {better}."
    assert evidence[-1] == "Not compared, because their outputs do not define this metric: table."


def test_page_shows_all_pairs_with_p_values_and_differences():
    page = render_audit_page(make_reports(*NAMES), PAIRS)
    assert page.index("no significant difference between") < page.index(">All results<")
    for part in (
        "−50.0",
        "−60.0 to −40.0",
        "p &lt; 0.001",
        "p = 0.800",
        "80 of 81",
        "Every other pair",
    ):
        assert part in page, part
    (section,) = comparison_sections(PAIRS, make_reports(*NAMES))
    assert [(pair.first, pair.second) for pair in section["pairs"]] == [(0, 1), (0, 2), (1, 2)]
    _, _, others = page.partition("<summary>Every other pair</summary>")
    assert "+2.0" in others
    assert "−50.0" not in others.partition("</details>")[0]
    label = "accuracy of patches minus that of the other model (points)"
    assert page.count(f'aria-label="{label} against') == 2
    # The first model is 50 points worse, so the differences of its accuracy are negative.
    assert "rotation from -50 to 0" in page


def test_missing_interval_is_a_dash_with_a_reason():
    pairs = [make_pair(0, 1, -0.5, 0.2, method="none, which needs 10 images or more")]
    (section,) = comparison_sections(pairs, make_reports("patches", "rotation"))
    cells = format_difference_cells(section["pairs"][0].comparison)
    assert cells["mean_error"] == ("+0.25", "–", "p = 0.200")
    assert section["missing"] == "–: no interval, which needs 10 images or more."
    text = comparison_text(pairs, make_reports("patches", "rotation"))
    assert "+0.25               –  p = 0.200" in text
    assert text.endswith("–: no interval, which needs 10 images or more.")
    assert "0.25 (no interval, p = 0.200)" in " ".join(text.split())


def test_each_mode_has_its_own_best_model():
    pairs = [make_pair(0, 1, -0.5, 0.0001), make_pair(0, 1, 0.5, 0.0001, mode="zero")]
    sections = comparison_sections(pairs, make_reports("patches", "rotation"))
    assert [section["mode"] for section in sections] == ["circular", "zero"]
    assert [section["headline"].split()[2] for section in sections] == ["rotation", "patches"]


@pytest.mark.parametrize("count", [3, 10])
def test_common_caveat_is_shown_once_and_many_models_are_collapsed(count):
    names = [f"model {index}" for index in range(count)]
    caveat = Caveat("few images", "limits", "60 images.")
    text = render_audit_page([make_report(name, caveats=(caveat,)) for name in names])
    assert text.count("60 images.") == 1
    assert "· all models" in text
    assert f"{count} models under shifts" in text
    assert ("<summary><h3>" in text) == (count > 3)


@pytest.mark.parametrize(
    ("ends", "p_value", "words"),
    [
        (
            (0.03, 0.01, 0.05),
            0.001,
            "It loses accuracy on unshifted images: −3.0 points (−5.0 to −1.0, p = 0.001).",
        ),
        (
            (-0.03, -0.05, -0.01),
            0.001,
            "It gains accuracy on unshifted images: +3.0 points (+1.0 to +5.0, p = 0.001).",
        ),
        (
            (0.01, -0.01, 0.03),
            0.3,
            "on unshifted images does not change significantly: −1.0 points (−3.0 to +1.0, p = 0.300).",
        ),
    ],
)
def test_accuracy_cost_states_its_significance(ends, p_value, words):
    pair = make_pair(0, 1, 0.1, 0.5)
    assert "is unknown" in describe_accuracy_change([pair])
    pair.comparison.numbers["accuracy"] = dataclasses.replace(
        difference(0.0, p_value), value=ends[0], lower=ends[1], upper=ends[2]
    )
    assert describe_accuracy_change([pair]).endswith(words)
