import dataclasses
from xml.etree import ElementTree

import pytest
from tests.audit.page.audit_reports import make_layers

from teka.audit.page.layer_chart import NARROW, WIDE, kinds_drawn, layer_chart


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_every_error_has_its_point_and_breaks_are_named(width):
    found = ElementTree.fromstring(layer_chart(make_layers(), width))
    names = [title.text or "" for title in found.iter("title")]
    assert "2. add_position (AbsolutePosition): 0.6" in names
    assert len([name for name in names if name.startswith("1. embed")]) == 3
    words = [text.text for text in found.iter("text")]
    assert {"embed", "add_position", "limit"} <= set(words)
    assert found.attrib["aria-label"].endswith("The first layer that breaks is add_position.")


def test_names_stay_within_the_drawing():
    layers = make_layers()
    long = "a.very.long.name." * 8 + "end"
    findings = (dataclasses.replace(layers.findings[0], name=long), *layers.findings[1:])
    breaks = {"interior": dataclasses.replace(layers.breaks["interior"], name=long)}
    chart = layer_chart(dataclasses.replace(layers, findings=findings, breaks=breaks), NARROW)
    (name,) = [text for text in ElementTree.fromstring(chart).iter("text") if (text.text or "").startswith("…")]
    words = name.text or ""
    assert words.endswith("name.end")
    half = 3.5 * len(words)
    assert half <= float(name.attrib["x"]) <= NARROW - half


def test_a_model_without_any_error_is_drawn_too():
    layers = make_layers()
    exact = tuple(
        dataclasses.replace(one, interior_error=0.0, border_error=0.0, aliasing_error=None, noise=0.0)
        for one in layers.findings[:1]
    )
    chart = layer_chart(dataclasses.replace(layers, findings=exact, breaks={}, first_break=None), WIDE)
    assert "No layer breaks" in chart
    assert "nan" not in chart


def test_the_legend_has_what_is_drawn():
    assert [name for name, _ in kinds_drawn(make_layers())] == [
        "within the image", "between cells (aliasing)", "at the edge",
    ]  # fmt: skip
