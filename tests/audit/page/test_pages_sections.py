import dataclasses
import json
import re

from teka.audit.caveats import Caveat
from teka.audit.measure.noise import NoiseFloor
from teka.audit.movement import Movement
from teka.audit.page.charts import GRAY
from teka.audit.page.pages import (
    examples_to_json,
    list_measured_metrics,
    model_names_by_caveat,
    protocol_sections,
    render_audit_page,
    results_rows,
)
from teka.audit.protocols import ProtocolResult
from teka.audit.statistics.intervals import Estimate
from teka.audit.statistics.metrics import NUMBERS
from teka.reporting.plots import line_color
from tests.audit.page.audit_reports import SQUARE, make_example, make_metrics, make_report


def test_audit_columns_are_the_metrics_of_any_mode():
    dense = make_report(metrics=(make_metrics(output="dense"),))
    assert list_measured_metrics([dense]) == ["mean_error", "maximum_error"]
    assert list_measured_metrics([dense, make_report()]) == [
        name for name in NUMBERS if name in make_metrics().numbers
    ]


def test_audit_rows_leave_missing_metrics_blank():
    reports = [make_report(metrics=(make_metrics(output="dense"),)), make_report()]
    dense, logits = results_rows(reports)
    assert "accuracy" not in dense.cells
    assert dense.cells["mean_error"] == ("0.31", "0.28–0.34")
    assert logits.cells["accuracy"] == ("97.0", "95.0–98.5")


def test_audit_rows_are_modes_of_models():
    report = make_report(
        metrics=(make_metrics(), make_metrics(Movement("zero"), skipped=((9, 9),)))
    )
    rows = results_rows([report, report])
    assert [(row.model, row.mode, row.shifts) for row in rows] == [
        (0, "circular", "81"), (0, "zero", "81 of 82"), (1, "circular", "81"), (1, "zero", "81 of 82"),
    ]  # fmt: skip


def test_headings_of_shares_have_a_percent_sign():
    page = render_audit_page([make_report()])
    for head in ("consistency (%)", "mean error"):
        assert page.count(f">{head}<") == 2, head


def test_caveats_are_sorted_by_severity_and_then_by_order():
    caveats = [
        Caveat("a", "note", ""),
        Caveat("b", "limits", ""),
        Caveat("c", "invalidates", ""),
        Caveat("d", "limits", ""),
    ]
    models = model_names_by_caveat([make_report("one", caveats=tuple(caveats))])
    assert [caveat.name for caveat in models] == ["c", "b", "d", "a"]
    assert set(models.values()) == {"one"}


def make_protocol_result(share):
    number = Estimate(share, share - 0.01, share + 0.01, 0.95, "wilson")
    moved = make_metrics(shifts=tuple((0, step) for step in range(-2, 3)))
    return ProtocolResult(
        "horn2021",
        "Moved.",
        "The paper",
        {"images": 1854},
        {"mean": number},
        {"all classes": moved},
    )


def test_protocol_section_lists_its_models():
    reports = [
        make_report("one", protocols=(make_protocol_result(0.9),)),
        make_report("none"),
        make_report("two", protocols=(make_protocol_result(0.5),)),
    ]
    (section,) = protocol_sections(reports)
    assert list(section["results"]) == [0, 2]
    _, _, text = render_audit_page(reports).partition("Published protocol: horn2021")
    rows = re.findall("<tr>(.*)</tr>", text.partition("</section>")[0])[1:]
    assert [re.findall(">([^<>]+)</", row) for row in rows] == [
        ["one", "mean", "90.0", "89.0–91.0"],
        ["two", "mean", "50.0", "49.0–51.0"],
    ]
    (curve,) = section["curves"]
    assert curve["name"] == "all classes: accuracy (%)"
    assert len(curve["charts"]) == 1
    assert "one from 74.5 to 97" in curve["charts"][0]
    assert "two from 74.5 to 97" in curve["charts"][0]


def test_report_without_a_protocol_has_no_protocol_section():
    assert protocol_sections([make_report()]) == []


def noise_rows(*reports):
    """Return the rows of the table of numerical noise."""
    _, _, section = render_audit_page(reports).partition('<h2 id="noise">')
    rows = re.findall("<tr>(.*)</tr>", section.partition("</section>")[0])[1:]
    return [
        [re.sub("<[^>]*>", "", cell) for cell in re.findall("<t[hd] ?.*?</t[hd]>", row)]
        for row in rows
    ]


def test_noise_of_every_model_is_listed():
    rows = noise_rows(make_report("one"), make_report("two"))
    assert [model for model, *_ in rows] == ["one", "one", "two", "two"]
    assert [row[2] for row in rows[:2]] == ["0", "3.1e−7"]
    assert 'id="noise"' not in render_audit_page([make_report(noise_floor=None)])


def test_missing_precision_has_a_reason():
    report = make_report(noise_floor=NoiseFloor(1e-8, None, "not a module"))
    assert [row[1:] for row in noise_rows(report)] == [["1.0e−8", ""], ["–", "not a module"]]


def settings_groups(**changes):
    """Return the entries below each heading of the settings section."""
    _, _, section = render_audit_page([make_report(**changes)]).partition('<h2 id="settings">')
    groups = re.findall('<h4>(.*?)</h4>\n<dl class="settings">(.*?)</dl>', section, flags=re.DOTALL)
    return {
        head: dict(re.findall("<dt>(.*?)</dt><dd>(?:<span[^>]*>)?(.*?)<", found))
        for head, found in groups
    }


def settings_entries(**settings):
    return settings_groups(settings=settings)["Settings"]


def test_settings_have_readable_names():
    assert settings_entries(num_resamples=1000, weights_sha256="ab") == {
        "Number of resamples": "1,000",
        "Weights SHA-256": "ab",
    }


def test_settings_leave_out_unknown_values_but_not_zero_or_false():
    assert settings_entries(device=None, note="", seed=0, labelled=False) == {
        "Seed": "0",
        "Labelled": "no",
    }


def test_settings_shorten_long_lists():
    shifts = [[down, right] for down in range(-8, 9) for right in range(-8, 9)]
    assert settings_entries(shifts=shifts) == {"Shifts": "289, from (−8, −8) to (8, 8)"}
    assert settings_entries(names=list("abcdefghijklmnop")) == {"Names": "16, from a to p"}
    assert settings_entries(shifts=[[0, 1], [0, 2]], modes=[]) == {
        "Shifts": "(0, 1), (0, 2)",
        "Modes": "none",
    }


def test_settings_leave_out_empty_groups():
    assert list(settings_groups()) == ["Model", "Data", "Settings", "Command and environment"]
    assert list(settings_groups(model={})) == ["Data", "Settings", "Command and environment"]


def decoded_examples(*reports):
    return json.loads(examples_to_json(reports))


def test_example_predictions_are_in_the_order_of_shifts():
    example = make_example(3)
    content = decoded_examples(make_report(examples=(example,)))
    (shown_example,) = content["examples"]
    assert content["shifts"][shown_example["shifts"]] == [list(shift) for shift in SQUARE]
    assert tuple(shown_example["predictions"]) == example.predictions
    assert tuple(shown_example["probabilities"]) == example.probabilities


def test_common_image_of_two_models_is_stored_once():
    content = decoded_examples(
        make_report("one"),
        make_report("none", examples=()),
        make_report("two", examples=(make_example(1),)),
    )
    shown_example = [(example["model"], example["image"]) for example in content["examples"]]
    assert shown_example == [(0, 0), (0, 1), (2, 1)]
    assert content["pixels"] == [make_example(3).image, make_example(1).image]
    assert len(content["shifts"]) == 1


def test_images_with_different_pixels_are_stored_separately():
    other = dataclasses.replace(make_example(3), image=make_example(4).image)
    content = decoded_examples(
        make_report("one", examples=(make_example(3),)), make_report("two", examples=(other,))
    )
    assert [example["image"] for example in content["examples"]] == [0, 1]


def test_example_movement_has_background_levels_and_seen_size():
    movements = (
        Movement("zero", (0.5, 0.0, 1.0)),
        Movement("crop", crop_size=5),
        Movement("canvas", 0.2, 11),
    )
    report = make_report(
        metrics=tuple(make_metrics(movement) for movement in movements),
        examples=tuple(make_example(0, movement.mode, channels=3) for movement in movements),
    )
    zero, crop, canvas = (example["movement"] for example in decoded_examples(report)["examples"])
    assert zero == {"mode": "zero", "background": [128, 0, 255], "seen": [11, 7]}
    assert crop["seen"] == [5, 5]
    assert canvas["background"] == [51, 51, 51]


def test_examples_json_cannot_end_the_script_element():
    evil = "</script><!--&"
    text = examples_to_json([make_report(evil, data={"name": "x", "class_names": [evil]})])
    assert not set("<>&") & set(text)
    assert json.loads(text)["models"][0]["classes"] == [evil]


def test_invalid_results_are_gray():
    void = Caveat("constant predictor", "invalidates", "It says 3.")
    valid, invalid = make_report("valid"), make_report("invalid", caveats=(void,))
    alone = render_audit_page([invalid])
    assert '<main class="invalid">' in alone
    assert GRAY in alone
    assert line_color(0) not in alone
    both = render_audit_page([valid, invalid])
    assert "<main>" in both
    assert both.count('<tr class="invalid">') == 1
    assert line_color(0) in both
    assert line_color(1) not in both


def test_first_screen_has_both_axes_only_if_a_comparison_has_no_images():
    metrics = (make_metrics(shifts=SQUARE),)
    images, plain = (
        [make_report(name, metrics=metrics, examples=examples) for name in ("a", "b")]
        for examples in ((make_example(),), ())
    )
    for reports, count in ((images, 1), (plain, 2), (images[:1], 1), (plain[:1], 1)):
        page = render_audit_page(reports)
        curve = page[page.index('<figure class="first-curve') : page.index("<nav")]
        assert curve.count("<svg") == count
