import dataclasses
import re
from xml.etree import ElementTree

import pytest

from teka.audit.movement import Movement
from teka.audit.page.modes import (
    MAP_NUMBERS,
    NOT_EVALUATED,
    HeatMap,
    heat_map_chart,
    heat_scale,
    mode_sections,
    mode_words,
    phase_map,
)
from teka.audit.statistics.phase import PHASE_VALUES
from teka.reporting.style import heat_colour
from tests.audit.page.audit_reports import CROSS, SQUARE, make_metrics, make_phases, make_report


def test_sizes_and_background_are_said_where_they_matter():
    assert mode_words(Movement("zero", (0.5, 0.25, 0.0))).endswith("Background: 0.5, 0.25, 0.")
    assert mode_words(Movement("canvas", canvas_size=40)).endswith("Canvas: 40 × 40 pixels.")
    assert mode_words(Movement("crop", crop_size=(24, 28))).endswith("Window: 24 × 28 pixels.")
    assert "Background" not in mode_words(Movement("circular", 0.5))


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
    assert len({figure["key"] for figure in (*section["maps"], *section["more_maps"])}) == 6


def test_modes_come_in_the_order_of_the_reports():
    zero = make_metrics(Movement("zero", 0.5))
    sections = mode_sections([make_report(), make_report(metrics=(zero, make_metrics()))])
    assert [section["mode"] for section in sections] == ["circular", "zero"]
    assert sections[1]["words"] == ["What leaves is lost, and background enters. Background: 0.5."]
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
    assert "1 is as far as those to another image" in sensitivity["words"]
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
    assert found.rows == found.columns == [0, 1, 2]
    assert found.values[0, 0] == 0.95
    assert found.values[2, 1] == pytest.approx(0.45)
    assert (found.down, found.across) == ("dy mod 3", "dx mod 3")
    assert [head for head, _ in found.table()] == ["0", "1", "2"]


def test_what_has_labels_is_shown_by_accuracy_first():
    table = make_phases()
    both = dataclasses.replace(table, values={"error": table.values["accuracy"], **table.values})
    for phases, number in ((both, "accuracy"), (make_phases(number="error"), "error")):
        found = phase_map(phases)
        assert found is not None
        assert found.number == number
    assert set(MAP_NUMBERS) == set(PHASE_VALUES)


def test_a_single_phase_has_no_map():
    assert phase_map(make_phases(1)) is None


def map_of(number, values):
    return HeatMap(number, values)


def cells_of(chart):
    """For each colour, the (row, column) of its cells."""
    group = next(
        one
        for one in ElementTree.fromstring(chart).iter("g")
        if one.get("shape-rendering") == "crispEdges"
    )
    return {
        path.attrib["fill"]: {
            (int(y), int(x)) for x, y in re.findall(r"M(\d+) (\d+)h1v1h-1z", path.attrib["d"])
        }
        for path in group.findall("path")
    }


def test_down_is_down_and_right_is_right():
    heat_map = map_of("accuracy", dict.fromkeys(SQUARE, 0.9) | {(-4, 3): 0.1})
    found = cells_of(heat_map_chart(heat_map, heat_scale([heat_map]), "A map."))
    # dy −4 is the first row, dx +3 the last but one column.
    assert {(0, 7)} in found.values()
    assert sum(map(len, found.values())) == len(SQUARE)


def test_what_was_not_evaluated_is_grey():
    heat_map = map_of("accuracy", dict.fromkeys(CROSS, 1.0))
    chart = heat_map_chart(heat_map, heat_scale([heat_map]), "A map.")
    found = cells_of(chart)
    assert len(found[NOT_EVALUATED]) == len(SQUARE) - len(CROSS)
    assert len(found[heat_colour(0.0)]) == len(CROSS)
    assert "not evaluated" in chart


def test_the_numbers_of_a_map_are_those_of_its_pairs_in_the_unit_of_its_label():
    text = map_of("accuracy", {(-1, 0): 0.123456789, (0, 2.5): 1.0}).numbers("correct (%)")
    head, *rows = text.splitlines()
    assert head == '"downwards, dy (pixels)","to the right, dx (pixels)",correct (%)'
    assert rows == ["-1,0,12.3457", "0,2.5,100"]


def test_the_worst_is_the_lowest_share_or_the_highest_error():
    values = {(0, 0): 0.5, (0, 1): 0.2, (1, 0): 0.9}
    assert map_of("agreement", values).worst == (0, 1)
    assert map_of("error", values).worst == (1, 0)
    assert map_of("error", dict.fromkeys(values, 0.5)).worst is None


def test_maps_beside_each_other_share_one_scale():
    exact, broken = (
        map_of("error", {(0, 0): 0.0, (1, 1): 1e-7}),
        map_of("error", {(0, 0): 0.0, (1, 1): 2.0}),
    )
    scale = heat_scale([exact, broken])
    assert scale.place(2.0) == 1
    assert scale.place(1e-7) == pytest.approx(0, abs=1e-6)


def test_rounding_alone_does_not_look_like_much():
    exact = map_of("error", {(0, 0): 0.0, (1, 1): 1e-7})
    assert heat_scale([exact]).place(1e-7) < 1e-4


def test_the_table_has_every_number_as_it_is_written():
    table = map_of("accuracy", {(0, -1): 0.5, (0, 2): 1.0, (1, 2): 0.25}).table()
    assert table == [("0", ["50.0", "100.0"]), ("+1", ["–", "25.0"])]


def test_small_maps_have_their_numbers_written_in_them():
    heat_map = map_of(
        "accuracy",
        {(down, right): 0.125 * down + 0.25 * right for down in (0, 1) for right in (0, 1)},
    )
    assert ">37.5<" in heat_map_chart(heat_map, heat_scale([heat_map]), "A map.")


def test_long_numbers_stay_within_their_cells():
    heat_map = map_of("error", {(down, right): 1.2e-7 for down in range(8) for right in range(8)})
    sizes = re.findall(
        r'font-size="([\d.]+)"[^>]*>1\.2e−7<',
        heat_map_chart(heat_map, heat_scale([heat_map]), "A map."),
    )
    # A digit is about 0.6 of its size wide, and a cell 306 / 8.
    assert len(sizes) == 64
    assert all(0.6 * float(size) * len("1.2e−7") < 306 / 8 for size in sizes)
