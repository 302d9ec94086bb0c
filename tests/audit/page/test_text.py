from dataclasses import replace

from teka.audit.caveats import Caveat
from teka.audit.movement import Movement
from teka.audit.page.metric_formatting import format_interval
from teka.audit.page.pages import render_audit_page
from teka.audit.page.text import audit_text, format_summary_as_markdown
from teka.audit.statistics.intervals import BAND, Estimate
from tests.audit.page.audit_reports import CROSS, make_metrics, make_report
from tests.audit.page.test_compared import PAIRS, make_reports

WIDTH = 100


def test_columns_are_aligned_with_their_headings():
    zero = make_metrics(Movement("zero"), CROSS, fall=0.3)
    lines = audit_text([make_report(metrics=(make_metrics(), zero))]).splitlines()
    head, rows = lines[0], [lines[2], lines[4]]
    for name, first, second in (
        ("images", "60", "60"), ("unshifted", "97.0", "97.0"), ("worst shift", "49.5", "82.7"),
        ("consistency", "67.8", "89.8"),
    ):  # fmt: skip
        end = head.index(name) + len(name)
        assert [row[:end].split()[-1] for row in rows] == [first, second]
    assert [row.split()[0] for row in rows] == ["circular", "zero"]


def test_metrics_have_intervals_in_the_next_line():
    lines = audit_text([make_report()]).splitlines()
    end = lines[0].index("unshifted") + len("unshifted")
    assert lines[3][:end].split() == ["95.0–98.5"]


def test_an_interval_that_spans_more_than_two_decades_is_not_printed():
    for name, upper, text in (
        ("mean_error", 2.0, "0.02–2"),
        ("mean_error", 2.1, "too few images"),
        ("accuracy", 1.0, "0.0–100.0"),
    ):
        lower = 0.0 if name == "accuracy" else 0.02
        assert format_interval(name, Estimate(0.2, lower, upper, 0.95, BAND)) == text


def test_rounding_errors_of_an_exact_model_do_not_ask_for_more_images():
    metrics = make_metrics()
    exact = Estimate(2e-7, 1e-9, 5e-7, 0.95, BAND)
    for error, text in ((exact, "1.0e−9–5.0e−7"), (replace(exact, value=0.1), "too few images")):
        numbers = {**metrics.numbers, "maximum_error": error}
        report = make_report(metrics=(replace(metrics, numbers=numbers),))
        assert text in audit_text([report])
        assert ("too few images" in render_audit_page([report])) == ("few" in text)


def test_text_fits_a_terminal():
    reports = [make_report("a model with a name of some length"), make_report("rotation")]
    assert max(map(len, audit_text(reports).splitlines())) <= WIDTH


def test_text_has_verdict_layers_failures_and_caveats_in_order():
    text = audit_text([make_report()])
    words = (
        "52.0 % at the worst shift", "> add_position is the first layer to break equivariance",
        "x protocol zhang2019 not measured", "! Limited validity (few images)", "! Worth knowing (phases unseen)",
    )  # fmt: skip
    positions = [text.index(phrase) for phrase in words]
    assert positions == sorted(positions)


def test_several_models_are_named_in_rows_and_above_findings():
    lines = audit_text([make_report("patches"), make_report("rotation")]).splitlines()
    assert [line.split()[0] for line in lines[:7]] == [
        "model", "mode", "-" * len(lines[2]), "patches", "circular", "rotation", "circular",
    ]  # fmt: skip
    assert lines.count("patches") == lines.count("rotation") == 1


def test_common_caveat_is_written_once_with_its_models():
    reports = [make_report("patches"), make_report("rotation"), make_report("table", caveats=())]
    text = audit_text(reports)
    assert text.count("! Limited validity (few images; patches and rotation): ") == 1
    assert text.count("60 images give intervals") == 1
    assert "(few images; all models)" in audit_text(reports[:2])


def test_dense_outputs_have_their_own_columns():
    dense = make_report("dense", metrics=(make_metrics(output="dense"),))
    head, _, row, *_ = audit_text([dense]).splitlines()
    assert head.split() == ["mode", "images", "largest", "error"]
    assert row.split() == ["circular", "60", "0.71"]


def test_text_states_the_number_of_skipped_shifts():
    assert "Shifts: 81 of 83." in audit_text(
        [make_report(metrics=(make_metrics(skipped=((9, 9), (8, 8))),))]
    )


def test_summary_has_verdict_metrics_and_caveats():
    text = format_summary_as_markdown([make_report()])
    assert text.startswith("**patch model.** The answer changes with position")
    assert "| circular | 60 | 97.0<br>95.0–98.5 |" in text
    assert "- patch model: Limited validity, **few images**." in text
    assert "Below each number is its 95 % interval." in text


def test_summary_of_several_models_begins_with_the_comparison():
    text = format_summary_as_markdown(make_reports("patches", "rotation", "table"), PAIRS)
    assert text.startswith(
        "**Mode circular: no significant difference between rotation and table in accuracy"
    )
    assert (
        "\n- Accuracy at every shift: no significant difference between rotation and table" in text
    )
    assert text.index("no significant difference") < text.index("| rotation<br>circular |")


def test_summary_shows_a_common_caveat_once():
    text = format_summary_as_markdown([make_report("patches"), make_report("rotation")])
    assert text.count("- all models: Limited validity, **few images**.") == 1
    assert text.count("few images") == 1


def test_summary_escapes_names():
    name = "<img src=x>|`x`\x1b[2J\n\n# head\u202e\ud800"
    report = replace(
        make_report(caveats=(Caveat("constant predictor", "invalidates", name),)), name=name
    )
    text = format_summary_as_markdown([report])
    shown = r"&lt;img src=x>\|\`x\`"
    assert text.startswith(rf"**{shown}\\x1b\[2J # head\\u202e\\ud800.** ")
    assert text.count(shown) == text.count("img") == 3
    assert text.encode().decode() == text
    assert "\n# head" not in text
