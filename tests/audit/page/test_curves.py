import csv
import dataclasses
import io
import math
import re
from xml.etree import ElementTree

import pytest

from teka.audit.page.curves import (
    MOST_BANDS,
    CurveLine,
    curve_along,
    curve_chart,
    curve_figure,
    difference_of,
    quantity_of,
)
from teka.reporting.style import line_style
from tests.audit.page.audit_reports import CROSS, SQUARE, make_metrics

ACCURACY = quantity_of("accuracy")
ENDS = ("values", "lower", "upper", "band_lower", "band_upper")


def points_of(metrics, curve="accuracy", axis="dx"):
    return curve_along(metrics.shifts, metrics.curves.get(curve), axis)


def lines_of(metrics, curve="accuracy", axis="dx"):
    return [
        CurveLine(f"model {at}", line_style(at), points_of(one, curve, axis))
        for at, one in enumerate(metrics)
    ]


def figure_of(names, metrics):
    curves = {at: (one.shifts, one.curves["accuracy"]) for at, one in metrics.items()}
    return curve_figure(names, curves, ACCURACY, "right")


def test_a_curve_along_an_axis_has_the_shifts_of_that_axis_alone_in_order():
    metrics = make_metrics(shifts=tuple(reversed(SQUARE)))
    values = dict(zip(metrics.shifts, metrics.curves["accuracy"].values, strict=True))
    for axis, place in (("dx", lambda step: (0, step)), ("dy", lambda step: (step, 0))):
        points = points_of(metrics, axis=axis)
        assert [point.step for point in points] == list(range(-4, 5))
        assert [point.value for point in points] == [values[place(point.step)] for point in points]
        for point in points:
            assert point.band is not None
            assert point.interval is not None
            assert point.band[0] <= point.interval[0] <= point.value


def test_there_is_no_curve_of_what_was_not_measured_or_has_not_two_axes():
    assert points_of(make_metrics(), "divergence") == ()
    assert points_of(make_metrics(shifts=((0,), (1,)))) == ()


def test_the_drawing_has_every_point_with_its_number():
    metrics = [make_metrics(shifts=CROSS), make_metrics(shifts=CROSS, fall=0.1)]
    lines = lines_of(metrics)
    found = ElementTree.fromstring(curve_chart(ACCURACY, "dx", lines, lines))
    names = [title.text for title in found.iter("title")]
    assert len(names) == 2 * 9
    assert "model 0, dx 0: 97.0 (95.0 to 99.0)" in names
    assert "model 1" in found.attrib["aria-label"]
    assert "nan" not in ElementTree.tostring(found, encoding="unicode")


def test_both_axes_share_one_scale():
    metrics = make_metrics()
    figure = figure_of(["one"], {0: metrics})
    ticks = [re.findall(r'text-anchor="end"[^>]*>([^<]+)<', chart) for chart in figure["charts"]]
    assert ticks[0] == ticks[1]
    assert math.isclose(float(ticks[0][-1]), 100)


def test_the_legend_has_the_models_that_are_drawn():
    moved, still = make_metrics(), make_metrics(shifts=((0, 0),))
    figure = figure_of(["one", "two", "three"], {0: still, 2: moved})
    assert figure["models"] == (2,)


def test_an_axis_that_was_not_moved_has_no_chart():
    metrics = make_metrics(shifts=tuple((0, step) for step in range(-2, 3)))
    figure = figure_of(["one"], {0: metrics})
    assert len(figure["charts"]) == 1
    assert figure_of(["one"], {0: make_metrics(shifts=((0, 0), (2, 2)))}) == {}


@pytest.mark.parametrize("curve", ["loss", "error"])
def test_numbers_that_are_no_shares_are_drawn_too(curve):
    lines = lines_of([make_metrics(fall=fall) for fall in (0.0, 0.5)], curve)
    assert ElementTree.fromstring(curve_chart(quantity_of(curve), "dx", lines, lines)) is not None


def bands_of(chart):
    return chart.count("fill-opacity")


def test_bands_are_drawn_of_few_lines_and_not_where_there_is_no_interval():
    metrics = [make_metrics(shifts=CROSS) for _ in range(MOST_BANDS + 1)]
    few, many = lines_of(metrics[:-1]), lines_of(metrics)
    assert bands_of(curve_chart(ACCURACY, "dx", few, few)) == 2 * MOST_BANDS
    assert bands_of(curve_chart(ACCURACY, "dx", many, many)) == 0
    curve = dataclasses.replace(
        metrics[0].curves["error"], method="none, which needs 10 images or more"
    )
    points = curve_along(CROSS, curve, "dx")
    line = [CurveLine("few images", line_style(0), points)]
    chart = curve_chart(quantity_of("error"), "dx", line, line)
    assert bands_of(chart) == 0
    assert f"few images, dx +4: {points[-1].value:.3g}<" in chart


def test_the_numbers_of_a_figure_are_those_of_its_curves_in_percent():
    metrics = make_metrics(shifts=CROSS)
    rows = list(csv.DictReader(io.StringIO(figure_of(["one"], {0: metrics})["numbers"])))
    assert len(rows) == len(CROSS) + 1  # Unshifted is on both axes.
    numbers = zip(*(getattr(metrics.curves["accuracy"], end) for end in ENDS), strict=True)
    values = dict(zip(metrics.shifts, numbers, strict=True))
    for row in rows:
        step = int(row["pixels"])
        expected = values[(0, step) if row["axis"] == "dx" else (step, 0)]
        found = [
            float(row[name])
            for name in ("correct (%)", "lower", "upper", "lower of band", "upper of band")
        ]
        assert found == pytest.approx([100 * one for one in expected], rel=1e-5)


def test_a_line_and_its_bands_are_hidden_by_one_name():
    metrics = [make_metrics(shifts=CROSS), make_metrics(shifts=CROSS, fall=0.1)]
    lines = lines_of(metrics)
    found = ElementTree.fromstring(curve_chart(ACCURACY, "dx", lines, lines))
    groups = [one for one in found if one.get("data-line")]
    assert [one.get("data-line") for one in groups] == ["model 0", "model 1"] * 2
    assert not any(
        colour in ElementTree.tostring(one, encoding="unicode")
        for one in found
        if one not in groups
        for colour in (line_style(0).colour, line_style(1).colour)
    )


def test_differences_are_drawn_with_their_signs_around_zero():
    shares = make_metrics(shifts=CROSS).curves["accuracy"]
    below = {
        end: tuple(value - 0.8 for value in getattr(shares, end))
        for end in ("values", "lower", "upper")
    }
    curve = dataclasses.replace(
        shares, **below, band_lower=below["lower"], band_upper=below["upper"]
    )
    quantity = difference_of("accuracy", "the first")
    figure = curve_figure(
        ["the first", "the second"], {1: (CROSS, curve)}, quantity, quantity.label
    )
    assert figure["name"] == "correct, less the first (points)"
    ticks = re.findall(r'text-anchor="end"[^>]*>([^<]+)<', figure["charts"][0])
    assert "0" in ticks
    assert {tick[0] for tick in ticks} >= {"−", "0"}
    assert "the second, dx 0: +17.0 (+15.0 to +19.0)" in figure["charts"][0]
