import math
import re
from xml.etree import ElementTree

import pytest
from tests.audit.page.audit_reports import CROSS, SQUARE, make_metrics

from teka.audit.page.curves import CurveLine, curve_along, curve_chart, curve_figure
from teka.audit.page.style import line_style


def lines_of(metrics, curve="accuracy", axis="dx"):
    return [CurveLine(f"model {at}", line_style(at), curve_along(one, curve, axis)) for at, one in enumerate(metrics)]


def test_a_curve_along_an_axis_has_the_shifts_of_that_axis_alone_in_order():
    metrics = make_metrics(shifts=tuple(reversed(SQUARE)))
    values = dict(zip(metrics.shifts, metrics.curves["accuracy"].values, strict=True))
    for axis, place in (("dx", lambda step: (0, step)), ("dy", lambda step: (step, 0))):
        points = curve_along(metrics, "accuracy", axis)
        assert [point.step for point in points] == list(range(-4, 5))
        assert [point.value for point in points] == [values[place(point.step)] for point in points]
        assert all(point.band[0] <= point.interval[0] <= point.value for point in points)


def test_there_is_no_curve_of_what_was_not_measured_or_has_not_two_axes():
    assert curve_along(make_metrics(), "divergence", "dx") == ()
    assert curve_along(make_metrics(shifts=((0,), (1,))), "accuracy", "dx") == ()


def test_the_drawing_has_every_point_with_its_number():
    metrics = [make_metrics(shifts=CROSS), make_metrics(shifts=CROSS, fall=0.1)]
    lines = lines_of(metrics)
    found = ElementTree.fromstring(curve_chart("accuracy", "dx", lines, lines))
    names = [title.text for title in found.iter("title")]
    assert len(names) == 2 * 9
    assert "model 0, dx 0: 97.0 (95.0–99.0)" in names
    assert "model 1" in found.attrib["aria-label"]
    assert "nan" not in ElementTree.tostring(found, encoding="unicode")


def test_both_axes_share_one_scale():
    metrics = make_metrics()
    figure = curve_figure(["one"], {0: metrics}, "accuracy", "right")
    ticks = [re.findall(r'text-anchor="end"[^>]*>([^<]+)<', chart) for chart in figure["charts"]]
    assert ticks[0] == ticks[1]
    assert math.isclose(float(ticks[0][-1]), 100)


def test_the_legend_has_the_models_that_are_drawn():
    moved, still = make_metrics(), make_metrics(shifts=((0, 0),))
    figure = curve_figure(["one", "two", "three"], {0: still, 2: moved}, "accuracy", "right")
    assert figure["models"] == (2,)


def test_an_axis_that_was_not_moved_has_no_chart():
    metrics = make_metrics(shifts=tuple((0, step) for step in range(-2, 3)))
    figure = curve_figure(["one"], {0: metrics}, "accuracy", "right")
    assert len(figure["charts"]) == 1
    assert curve_figure(["one"], {0: make_metrics(shifts=((0, 0), (2, 2)))}, "accuracy", "right") == {}


@pytest.mark.parametrize("curve", ["loss", "error"])
def test_numbers_that_are_no_shares_are_drawn_too(curve):
    lines = lines_of([make_metrics(fall=fall) for fall in (0.0, 0.5)], curve)
    assert ElementTree.fromstring(curve_chart(curve, "dx", lines, lines)) is not None
