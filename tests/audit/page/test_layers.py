import dataclasses

from tests.audit.page.audit_reports import make_layers, make_report

from teka.audit.layers.findings import BREAKS
from teka.audit.page.layers import BREAK_ROLES, COLUMNS, blamed_layers, layer_sections


def test_layers_that_break_come_before_those_that_add_and_those_that_hold_positions():
    blamed = [(one.role, one.name) for one in blamed_layers(make_layers())]
    assert blamed == [
        ("first to break within the image", "add_position"),
        ("first to break between the cells of its grid", "embed"),
        ("adds most error", "add_position"),
        ("adds error too", "blocks.0.attention.output.dense"),
        ("holds absolute positions", "add_position.position"),
    ]


def test_nobody_is_blamed_where_nothing_was_measured():
    assert blamed_layers(None) == []
    assert layer_sections([make_report(layers=None)]) == []
    assert layer_sections([make_report(layers=dataclasses.replace(make_layers(), findings=()))]) == []


def test_every_kind_of_break_has_a_role():
    assert set(BREAK_ROLES) == set(BREAKS)


def test_the_table_has_every_layer_and_marks_the_first_that_breaks():
    (section,) = layer_sections([make_report()])
    assert [name for name, _, _ in section.rows] == [
        "embed", "add_position", "blocks.0.attention.output.dense", "head",
    ]  # fmt: skip
    assert [breaks for *_, breaks in section.rows] == [False, True, False, False]
    assert all(len(cells) == len(COLUMNS) for _, cells, _ in section.rows)
    assert section.rows[0][1] == ("Conv2d", "3 × 2", "4", "1.0e−7", "0.03", "0.4", "1.0e−7", "0", "2.0e−8")
    assert section.rows[3][1][1] == "vector"


def test_what_was_left_out_is_said():
    (section,) = layer_sections([make_report()])
    assert any("class_token" in note for note in section.notes)
    assert any("dropout (its output is no tensor)" in note for note in section.notes)
