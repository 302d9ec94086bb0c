import dataclasses

import pytest

from teka.audit.movement import Movement
from teka.audit.page.charts import HeatMap
from teka.audit.page.modes import (
    MAP_METRICS,
    _color_limits,
    describe_mode,
    mode_sections,
    phase_map,
)
from teka.audit.statistics.phase import PHASE_VALUES
from tests.audit.page.audit_reports import CROSS, make_metrics, make_phases, make_report


def test_sizes_and_background_are_said_where_they_matter():
    assert describe_mode(Movement("zero", (0.5, 0.25, 0.0))).endswith("Background: 0.5, 0.25, 0.")
    assert describe_mode(Movement("canvas", canvas_size=40)).endswith("Canvas: 40 × 40 pixels.")
    assert describe_mode(Movement("crop", crop_size=(24, 28))).endswith("Window: 24 × 28 pixels.")
    assert "Background" not in describe_mode(Movement("circular", 0.5))


def test_a_mode_has_its_curves_and_the_maps_of_every_model():
    (section,) = mode_sections([make_report("one"), make_report("two")])
    assert section["mode"] == "circular"
    assert [figure["name"] for figure in section["curves"]] == [
        "correct (%)",
        "answered as unshifted (%)",
    ]
    assert [figure["name"] for figure in section["more_curves"]] == [
        "cross-entropy (nats)",
        "relative error",
    ]
    assert [figure["model"] for figure in section["maps"]] == [0, 1]
    assert [figure["model"] for figure in section["more_maps"]] == [0, 0, 1, 1]


def test_modes_come_in_the_order_of_the_reports():
    zero = make_metrics(Movement("zero", 0.5))
    sections = mode_sections([make_report(), make_report(metrics=(zero, make_metrics()))])
    assert [section["mode"] for section in sections] == ["circular", "zero"]
    assert sections[1]["words"] == [
        "Pixels that leave are lost, and background enters. Background: 0.5."
    ]
    assert {figure["model"] for figure in sections[1]["maps"]} == {1}


def test_shifts_along_the_axes_alone_have_no_map():
    (section,) = mode_sections([make_report(metrics=(make_metrics(shifts=CROSS),), phases={})])
    assert section["maps"] == []
    assert len(section["curves"][0]["charts"]) == 2


def test_outputs_without_answers_show_their_error_at_once():
    (section,) = mode_sections([make_report(metrics=(make_metrics(output="dense"),), phases={})])
    assert [figure["name"] for figure in section["curves"]] == ["relative error"]
    assert section["maps"][0]["name"] == "At every shift: relative error"


def test_words_name_the_worst_shift_and_the_multiples_of_the_stride():
    (section,) = mode_sections([make_report()])
    (shifts,), (sensitivity, phase) = section["maps"], section["more_maps"]
    assert shifts["words"].startswith("Lowest: 49.5 % at dx ")
    assert "as a share of the distance to the output for another image" in sensitivity["words"]
    assert (
        phase["words"]
        == "Lowest: 45.0 % at phase (1, 1) (bold frame). At multiples of the stride: 95.0 %."
    )
    (flat,) = mode_sections(
        [make_report(metrics=(make_metrics(fall=0.0),), phases={}, sensitivity={})]
    )
    assert flat["maps"][0]["words"] == "Everywhere 97.0 %."


def test_images_of_one_axis_have_neither():
    (section,) = mode_sections(
        [make_report(metrics=(make_metrics(shifts=((0,), (1,))),), phases={}, sensitivity={})]
    )
    assert (section["curves"], section["maps"]) == ([], [])


def test_every_phase_has_its_cell():
    found = phase_map(make_phases(3))
    assert found is not None
    assert {down for down, _ in found.values} == {0, 1, 2}
    assert found.values[0, 0] == 0.95
    assert found.values[2, 1] == pytest.approx(0.45)
    assert (found.down, found.right) == ("dy mod 3", "dx mod 3")


def test_what_has_labels_is_shown_by_accuracy_first():
    table = make_phases()
    both = dataclasses.replace(table, values={"error": table.values["accuracy"], **table.values})
    for phases, number in ((both, "accuracy"), (make_phases(number="error"), "error")):
        found = phase_map(phases)
        assert found is not None
        assert found.metric == number
    assert set(MAP_METRICS) == set(PHASE_VALUES)


def test_a_single_phase_has_no_map():
    assert phase_map(make_phases(1)) is None


def test_color_limits_span_the_values_of_all_models_and_not_rounding():
    exact = HeatMap("error", {(0, 0): 0.0, (1, 1): 1e-7})
    broken = HeatMap("error", {(0, 0): 0.0, (1, 1): 2.0})
    assert _color_limits([exact, broken]) == (0.0, 2.0)
    assert _color_limits([exact]) == (0.0, 0.01)
    share = HeatMap("accuracy", {(0, 0): 0.97, (1, 1): 0.4})
    assert _color_limits([share]) == (1.0, 0.4)


def test_tables_of_heat_maps_have_every_value():
    metrics = make_metrics(shifts=((0, -1), (0, 2), (1, 2)))
    (section,) = mode_sections([make_report(metrics=(metrics,), phases={}, sensitivity={})])
    (figure,) = section["maps"]
    assert figure["columns"] == ["−1", "+2"]
    assert [row[0] for row in figure["rows"]] == ["0", "+1"]
    assert figure["rows"][1][1][0] == "–"
