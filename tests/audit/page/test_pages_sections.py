import dataclasses
import json
import re

from teka.audit.caveats import Caveat
from teka.audit.measure.noise import NoiseFloor
from teka.audit.movement import Movement
from teka.audit.page.charts import GRAY
from teka.audit.page.pages import (
    audit_columns,
    audit_rows,
    examples_to_json,
    models_by_caveat,
    protocol_sections,
    render_audit_page,
)
from teka.audit.protocols import ProtocolResult
from teka.audit.statistics.intervals import Estimate
from teka.audit.statistics.metrics import NUMBERS
from teka.reporting.plots import line_color
from tests.audit.page.audit_reports import SQUARE, make_example, make_metrics, make_report


def test_there_is_a_column_for_what_any_mode_has():
    dense = make_report(metrics=(make_metrics(output="dense"),))
    assert audit_columns([dense]) == ["mean_error", "maximum_error"]
    assert audit_columns([dense, make_report()]) == [
        name for name in NUMBERS if name in make_metrics().numbers
    ]


def test_a_number_that_a_mode_has_not_is_left_blank():
    reports = [make_report(metrics=(make_metrics(output="dense"),)), make_report()]
    dense, logits = audit_rows(reports)
    assert "accuracy" not in dense.cells
    assert dense.cells["mean_error"] == ("0.31", "0.28–0.34")
    assert logits.cells["accuracy"] == ("97.0", "95.0–98.5")


def test_rows_are_those_of_every_mode_of_every_model():
    report = make_report(
        metrics=(make_metrics(), make_metrics(Movement("zero"), skipped=((9, 9),)))
    )
    rows = audit_rows([report, report])
    assert [(row.model, row.mode, row.shifts) for row in rows] == [
        (0, "circular", "81"), (0, "zero", "81 of 82"), (1, "circular", "81"), (1, "zero", "81 of 82"),
    ]  # fmt: skip


def test_shares_say_that_they_are_percent():
    page = render_audit_page([make_report()])
    for head in ("consistency (%)", "mean error"):
        assert page.count(f">{head}<") == 2, head


def test_the_gravest_come_first_and_equals_keep_their_order():
    caveats = [
        Caveat("a", "note", ""),
        Caveat("b", "limits", ""),
        Caveat("c", "invalidates", ""),
        Caveat("d", "limits", ""),
    ]
    models = models_by_caveat([make_report("one", caveats=tuple(caveats))])
    assert [caveat.name for caveat in models] == ["c", "b", "d", "a"]
    assert set(models.values()) == {"one"}


def protocol(share):
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


def test_models_stand_below_each_other_in_one_procedure():
    reports = [
        make_report("one", protocols=(protocol(0.9),)),
        make_report("none"),
        make_report("two", protocols=(protocol(0.5),)),
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


def test_without_a_procedure_there_is_no_section():
    assert protocol_sections([make_report()]) == []


def noise_rows(*reports):
    """Return the rows of the table of numerical noise."""
    _, _, section = render_audit_page(reports).partition('<h2 id="noise">')
    rows = re.findall("<tr>(.*)</tr>", section.partition("</section>")[0])[1:]
    return [
        [re.sub("<[^>]*>", "", cell) for cell in re.findall("<t[hd] ?.*?</t[hd]>", row)]
        for row in rows
    ]


def test_the_noise_of_every_model_is_listed():
    rows = noise_rows(make_report("one"), make_report("two"))
    assert [model for model, *_ in rows] == ["one", "one", "two", "two"]
    assert [row[2] for row in rows[:2]] == ["0", "3.1e−7"]
    assert 'id="noise"' not in render_audit_page([make_report(noise_floor=None)])


def test_a_precision_that_was_not_measured_says_why():
    report = make_report(noise_floor=NoiseFloor(1e-8, None, "not a module"))
    assert [row[1:] for row in noise_rows(report)] == [["1.0e−8", ""], ["–", "not a module"]]


def settings_groups(**changes):
    """What stands below each head of the settings, by its name."""
    _, _, section = render_audit_page([make_report(**changes)]).partition('<h2 id="settings">')
    groups = re.findall('<h4>(.*?)</h4>\n<dl class="settings">(.*?)</dl>', section, flags=re.DOTALL)
    return {
        head: dict(re.findall("<dt>(.*?)</dt><dd>(?:<span[^>]*>)?(.*?)<", found))
        for head, found in groups
    }


def pairs(**settings):
    return settings_groups(settings=settings)["Settings"]


def test_names_are_written_for_people():
    assert pairs(num_resamples=1000, weights_sha256="ab") == {
        "Number of resamples": "1,000",
        "Weights SHA-256": "ab",
    }


def test_what_is_not_known_is_left_out_but_zero_and_no_are_not():
    assert pairs(device=None, note="", seed=0, labelled=False) == {"Seed": "0", "Labelled": "no"}


def test_long_lists_are_shortened():
    shifts = [[down, right] for down in range(-8, 9) for right in range(-8, 9)]
    assert pairs(shifts=shifts) == {"Shifts": "289, from (−8, −8) to (8, 8)"}
    assert pairs(names=list("abcdefghijklmnop")) == {"Names": "16, from a to p"}
    assert pairs(shifts=[[0, 1], [0, 2]], modes=[]) == {"Shifts": "(0, 1), (0, 2)", "Modes": "none"}


def test_a_group_without_anything_is_left_out():
    assert list(settings_groups()) == ["Model", "Data", "Settings", "Command and environment"]
    assert list(settings_groups(model={})) == ["Data", "Settings", "Command and environment"]


def content_of(*reports):
    return json.loads(examples_to_json(reports))


def test_answers_stand_in_the_order_of_their_shifts():
    example = make_example(3)
    content = content_of(make_report(examples=(example,)))
    (shown,) = content["examples"]
    assert content["shifts"][shown["shifts"]] == [list(shift) for shift in SQUARE]
    assert tuple(shown["predictions"]) == example.predictions
    assert tuple(shown["probabilities"]) == example.probabilities


def test_an_image_that_two_models_saw_is_there_once():
    content = content_of(
        make_report("one"),
        make_report("none", examples=()),
        make_report("two", examples=(make_example(1),)),
    )
    shown = [(example["model"], example["image"]) for example in content["examples"]]
    assert shown == [(0, 0), (0, 1), (2, 1)]
    assert content["pixels"] == [make_example(3).image, make_example(1).image]
    assert len(content["shifts"]) == 1


def test_an_image_of_other_pixels_is_another_image():
    other = dataclasses.replace(make_example(3), image=make_example(4).image)
    content = content_of(
        make_report("one", examples=(make_example(3),)), make_report("two", examples=(other,))
    )
    assert [example["image"] for example in content["examples"]] == [0, 1]


def test_background_and_window_are_in_levels_and_pixels():
    movements = (
        Movement("zero", (0.5, 0.0, 1.0)),
        Movement("crop", crop_size=5),
        Movement("canvas", 0.2, 11),
    )
    report = make_report(
        metrics=tuple(make_metrics(movement) for movement in movements),
        examples=tuple(make_example(0, movement.mode, channels=3) for movement in movements),
    )
    zero, crop, canvas = (example["movement"] for example in content_of(report)["examples"])
    assert zero == {"mode": "zero", "background": [128, 0, 255], "seen": [11, 7]}
    assert crop["seen"] == [5, 5]
    assert canvas["background"] == [51, 51, 51]


def test_nothing_in_it_ends_the_script():
    evil = "</script><!--&"
    text = examples_to_json([make_report(evil, data={"name": "x", "class_names": [evil]})])
    assert not set("<>&") & set(text)
    assert json.loads(text)["models"][0]["classes"] == [evil]


def test_results_that_a_caveat_invalidates_are_gray():
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
