import dataclasses
import re

from teka.audit.layers.localize import BREAKS
from teka.audit.page.pages import render_audit_page
from teka.audit.verdict import BREAK_PLACES, explain_layers
from tests.audit.page.audit_reports import make_layers, make_report


def test_layers_that_break_first_come_first():
    aliasing = "is the first layer to break equivariance at shifts"
    roles = [(role, name) for role, name, _ in explain_layers(make_layers())]
    assert roles == [
        ("is the first layer to break equivariance inside the image", "add_position"),
        (f"{aliasing} that are not a multiple of its stride", "embed"),
        ("adds the most error", "add_position"),
        ("also adds error", "blocks.0.attention.output.dense"),
        ("contains absolute positions", "add_position.position"),
    ]


def test_report_without_findings_has_no_layers_section():
    assert explain_layers(None) == []
    assert 'id="layers"' in render_audit_page([make_report()])
    for layers in (None, dataclasses.replace(make_layers(), findings=())):
        assert 'id="layers"' not in render_audit_page([make_report(layers=layers)])


def test_fix_is_named_with_the_layers_that_it_changes():
    layers = make_layers()
    assert not any("teka fix" in words for *_, words in explain_layers(layers))
    fixes = {
        "polyphase": {"embed": "", "other": ""},
        "positions": {"add_position.position": ""},
        "blur": {"embed": "why"},
    }
    words_by_layer = {
        name: words for _, name, words in explain_layers(dataclasses.replace(layers, fixes=fixes))
    }
    assert words_by_layer["embed"].endswith("error 0.4; to fix it: teka fix --fix polyphase")
    assert words_by_layer["add_position.position"].endswith("; to fix it: teka fix --fix positions")
    assert "teka fix" not in words_by_layer["blocks.0.attention.output.dense"]


def test_no_layer_is_named_if_nothing_breaks():
    assert explain_layers(dataclasses.replace(make_layers(), breaks={})) == []


def test_every_kind_of_break_has_a_role():
    assert set(BREAK_PLACES) == set(BREAKS)


def test_table_has_every_layer_and_marks_the_first_break():
    _, _, table = render_audit_page([make_report()]).partition('<table class="small">')
    rows = re.findall("<tr.*?</tr>", table.partition("</table>")[0], flags=re.DOTALL)
    cells = [re.findall("<t[hd].*?>(.*?)</t[hd]>", row) for row in rows]
    assert [row[0] for row in cells] == [
        "layer",
        "embed",
        "add_position <strong>(breaks first)</strong>",
        "blocks.0.attention.output.dense",
        "head",
    ]
    assert all(len(row) == len(cells[0]) for row in cells)
    assert cells[1][1:] == [
        "Conv2d", "3 × 2", "4", "1.0e−7", "0.03", "0.4", "1.0e−7", "0", "2.0e−8",
    ]  # fmt: skip
    assert cells[4][2:4] == ["vector", "4"]


def test_page_lists_skipped_layers_by_reason():
    page = render_audit_page([make_report()])
    assert "Not compared: dropout (its output is no tensor)." in page
    skipped = {"a": "why", "b": "not called", "c": "why"}
    page = render_audit_page(
        [make_report(layers=dataclasses.replace(make_layers(), skipped=skipped))]
    )
    assert "Not compared: a, c (why); b (not called)." in page
