import itertools
import re
import sys
from xml.etree import ElementTree

from teka.reporting.plots import (
    add_legend,
    choose_ticks,
    create_chart,
    label_axes,
    line_color,
    to_svg,
)


def draw_svg(name: str = "model") -> str:
    figure, axes = create_chart(380, 240, legend_rows=1)
    axes.plot([0, 1], [1, 2], color=line_color(0), marker="o", label=name)
    label_axes(axes, "shift (pixels)", "accuracy (%)")
    add_legend(axes)
    return to_svg(figure, f"Accuracy of {name}.")


def test_svg_is_an_element_without_a_file_header_or_fixed_size():
    svg = draw_svg()
    element = ElementTree.fromstring(svg)
    assert element.attrib["viewBox"] == "0 0 380 257"
    assert element.attrib["aria-label"] == "Accuracy of model."
    assert not {"width", "height"} & element.attrib.keys()
    assert "xmlns" not in svg


def test_text_elements_have_the_text_color_of_the_page():
    element = ElementTree.fromstring(draw_svg())
    texts = {text.text: text.attrib["style"] for text in element.iter("text")}
    assert {"shift (pixels)", "accuracy (%)", "model"} <= texts.keys()
    assert all("fill: currentColor" in style for style in texts.values())


def test_names_are_escaped_and_not_read_as_formulas():
    svg = draw_svg('<b> $x_1$ "&"')
    assert ElementTree.fromstring(svg).attrib["aria-label"] == 'Accuracy of <b> $x_1$ "&".'
    assert "&lt;b&gt; $x_1$" in svg


def test_charts_are_reproducible_and_have_unique_ids():
    assert draw_svg() == draw_svg()
    names = re.findall(r'id="([^"]+)"', draw_svg())
    references = re.findall(r'(?:href="#|url\(#)([^")]+)', draw_svg())
    assert set(references) <= set(names)
    assert not set(names) & set(re.findall(r'id="([^"]+)"', draw_svg("other")))


def test_ticks_are_few_equidistant_and_include_zero():
    steps = list(range(-16, 17))
    ticks = [steps[index] for index in choose_ticks(steps)]
    assert 0 in ticks
    assert len(ticks) <= 10
    assert len({second - first for first, second in itertools.pairwise(ticks)}) == 1


def test_figures_do_not_use_the_global_state_of_pyplot(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    assert "<svg" in to_svg(create_chart(380, 240)[0], "empty")
