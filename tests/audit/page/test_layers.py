import csv
import dataclasses
import io
import re
from xml.etree import ElementTree

import pytest

from teka.audit.layers.blame import BREAKS
from teka.audit.page.layers import (
    BREAK_ROLES,
    COLUMNS,
    NARROW,
    WIDE,
    blamed_layers,
    layer_chart,
    layer_legend,
    layer_numbers,
    layer_rows,
)
from teka.audit.page.pages import render_audit_page
from tests.audit.page.audit_reports import make_layers, make_report


def test_layers_that_break_come_before_those_that_add_and_those_that_hold_positions():
    blamed = [(role, name) for role, name, _ in blamed_layers(make_layers())]
    assert blamed == [
        ("first to break within the image", "add_position"),
        ("first to break between the cells of its grid", "embed"),
        ("adds most error", "add_position"),
        ("adds error too", "blocks.0.attention.output.dense"),
        ("holds absolute positions", "add_position.position"),
    ]


def test_nobody_is_blamed_where_nothing_was_measured():
    assert blamed_layers(None) == []
    assert 'id="layers"' in render_audit_page([make_report()])
    for layers in (None, dataclasses.replace(make_layers(), findings=())):
        assert 'id="layers"' not in render_audit_page([make_report(layers=layers)])


def test_the_fix_stands_beside_the_layer_that_it_mends_and_nowhere_else():
    layers = make_layers()
    assert not any("teka fix" in words for *_, words in blamed_layers(layers))
    fixes = {
        "polyphase": {"embed": "", "other": ""},
        "positions": {"add_position.position": ""},
        "blur": {"embed": "why"},
    }
    mended = {
        name: words for _, name, words in blamed_layers(dataclasses.replace(layers, fixes=fixes))
    }
    assert mended["embed"].endswith("error 0.4; teka fix --fix polyphase")
    assert mended["add_position.position"].endswith("; teka fix --fix positions")
    assert "teka fix" not in mended["blocks.0.attention.output.dense"]


def test_every_kind_of_break_has_a_role():
    assert set(BREAK_ROLES) == set(BREAKS)


def test_the_table_has_every_layer_and_marks_the_first_that_breaks():
    names, cells, breaks = zip(*layer_rows(make_layers()), strict=True)
    assert names == ("embed", "add_position", "blocks.0.attention.output.dense", "head")
    assert breaks == (False, True, False, False)
    assert all(len(row) == len(COLUMNS) for row in cells)
    assert cells[0] == ("Conv2d", "3 × 2", "4", "1.0e−7", "0.03", "0.4", "1.0e−7", "0", "2.0e−8")
    assert cells[3][1] == "vector"


def test_what_was_left_out_is_said():
    page = render_audit_page([make_report()])
    assert "left out of the comparison: class_token." in page
    assert "Not compared: dropout (its output is no tensor)." in page
    skipped = {"a": "why", "b": "not called", "c": "why"}
    page = render_audit_page(
        [make_report(layers=dataclasses.replace(make_layers(), skipped=skipped, class_tokens=()))]
    )
    assert "left out of the comparison" not in page
    assert "Not compared: a, c (why); b (not called)." in page


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_every_error_has_its_point_and_breaks_are_named(width):
    found = ElementTree.fromstring(layer_chart(make_layers(), width))
    names = [title.text or "" for title in found.iter("title")]
    assert "2. add_position (AbsolutePosition): 0.6" in names
    assert len([name for name in names if name.startswith("1. embed")]) == 3
    words = [text.text for text in found.iter("text")]
    assert {"embed", "add_position", "limit"} <= set(words)
    assert found.attrib["aria-label"].endswith("The first layer that breaks is add_position.")


def test_the_numbers_of_the_chart_are_its_errors():
    layers = make_layers()
    rows = list(csv.DictReader(io.StringIO(layer_numbers(layers))))
    assert [row["layer"] for row in rows] == [one.name for one in layers.findings]
    for row, one in zip(rows, layers.findings, strict=True):
        assert row["within the image"] == (
            "" if one.interior_error is None else f"{one.interior_error:.6g}"
        )


def test_no_error_is_drawn_lower_than_it_is():
    layers = make_layers()
    large = [
        dataclasses.replace(layers.findings[0], interior_error=error)
        for error in (0.453, 45.3, 4530.0)
    ]
    chart = layer_chart(dataclasses.replace(layers, findings=tuple(large)), WIDE)
    low, middle, high = (
        float(re.findall(rf"translate\([0-9.]+ ([0-9.]+)\)[^>]*><title>[^<]*: {error}<", chart)[0])
        for error in ("0.453", "45.3", "4.53e\\+03")
    )
    assert low - middle == pytest.approx(middle - high, abs=0.1)
    assert middle - high > 20


def test_names_stay_within_the_drawing():
    layers = make_layers()
    long = "a.very.long.name." * 8 + "end"
    findings = (dataclasses.replace(layers.findings[0], name=long), *layers.findings[1:])
    breaks = {"interior": dataclasses.replace(layers.breaks["interior"], name=long)}
    chart = layer_chart(dataclasses.replace(layers, findings=findings, breaks=breaks), NARROW)
    (name,) = [
        text
        for text in ElementTree.fromstring(chart).iter("text")
        if (text.text or "").startswith("…")
    ]
    words = name.text or ""
    assert words.endswith("name.end")
    half = 3.5 * len(words)
    assert half <= float(name.attrib["x"]) <= NARROW - half


def test_a_model_without_any_error_is_drawn_too():
    layers = make_layers()
    exact = tuple(
        dataclasses.replace(
            one, interior_error=0.0, border_error=0.0, aliasing_error=None, noise=0.0
        )
        for one in layers.findings[:1]
    )
    chart = layer_chart(
        dataclasses.replace(layers, findings=exact, breaks={}, first_break=None), WIDE
    )
    assert "No layer breaks" in chart
    assert "nan" not in chart


def test_the_legend_has_what_is_drawn():
    assert [name for name, _ in layer_legend(make_layers())] == [
        "within the image",
        "between cells (aliasing)",
        "at the edge",
    ]
