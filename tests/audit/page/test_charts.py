import dataclasses
import math

import numpy as np
import pytest

from teka.audit.page.charts import (
    MOST_BANDS,
    CurveLine,
    HeatMap,
    curve_chart,
    curve_figure,
    curve_points,
    heat_map_chart,
    layer_chart,
)
from tests.audit.page.audit_reports import CROSS, SQUARE, make_layers, make_metrics


def lines_of(*metrics, curve="accuracy"):
    return [
        CurveLine(f"model {index}", index, curve_points(one.shifts, one.curves[curve], 1))
        for index, one in enumerate(metrics)
    ]


def accuracy_figure(names, metrics):
    curves = {index: (one.shifts, one.curves["accuracy"]) for index, one in metrics.items()}
    return curve_figure(names, curves, "correct (%)", is_percent=True)


def test_points_are_the_shifts_along_one_axis_in_order():
    metrics = make_metrics(shifts=tuple(reversed(SQUARE)))
    values = dict(zip(metrics.shifts, metrics.curves["accuracy"].values, strict=True))
    for axis, shift_of in ((1, lambda step: (0, step)), (0, lambda step: (step, 0))):
        points = curve_points(metrics.shifts, metrics.curves["accuracy"], axis)
        assert [point.step for point in points] == list(range(-4, 5))
        assert [point.value for point in points] == [
            values[shift_of(point.step)] for point in points
        ]
        for point in points:
            assert point.band is not None
            assert point.interval is not None
            assert point.band[0] <= point.interval[0] <= point.value


def test_chart_contains_every_point_in_percent(figures):
    lines = lines_of(make_metrics(shifts=CROSS), make_metrics(shifts=CROSS, fall=0.1))
    chart = curve_chart(lines, "dx", "correct (%)", is_percent=True)
    (axes,) = figures[0].axes
    assert [line.get_label() for line in axes.lines] == ["model 0", "model 1"]
    for line, drawn in zip(lines, axes.lines, strict=True):
        expected = [(point.step, 100 * point.value) for point in line.points]
        np.testing.assert_allclose(drawn.get_xydata(), expected)
    assert "model 1 from" in chart
    assert axes.get_xlabel() == "horizontal shift dx (pixels)"


def test_bands_are_drawn_for_few_models_with_intervals(figures):
    metrics = [make_metrics(shifts=CROSS) for _ in range(MOST_BANDS + 1)]
    curve_chart(lines_of(*metrics[:-1]), "dx", "correct (%)", is_percent=True)
    curve_chart(lines_of(*metrics), "dx", "correct (%)", is_percent=True)
    method = "none, which needs 10 images or more"
    curve = dataclasses.replace(metrics[0].curves["error"], method=method)
    line = CurveLine("few images", 0, curve_points(CROSS, curve, 1))
    curve_chart([line], "dx", "relative error", is_percent=False)
    assert [len(figure.axes[0].collections) for figure in figures] == [2 * MOST_BANDS, 0, 0]


def test_axes_without_shifts_have_no_chart():
    along_dx = make_metrics(shifts=tuple((0, step) for step in range(-2, 3)))
    assert len(accuracy_figure(["one"], {0: along_dx})["charts"]) == 1
    assert accuracy_figure(["one"], {0: make_metrics(shifts=((0, 0), (2, 2)))}) == {}
    assert accuracy_figure(["one"], {0: make_metrics(shifts=((0,), (1,)))}) == {}


def test_models_keep_their_color(figures):
    moved, still = make_metrics(), make_metrics(shifts=((0, 0),))
    accuracy_figure(["one", "two", "three"], {0: still, 2: moved})
    accuracy_figure(["one", "two", "three"], {1: moved, 2: moved})
    assert figures[0].axes[0].lines[0].get_color() == figures[2].axes[0].lines[1].get_color()


@pytest.mark.parametrize("curve", ["error"])
def test_metrics_that_are_no_shares_start_at_zero(figures, curve):
    lines = lines_of(make_metrics(fall=0.0), make_metrics(fall=0.5), curve=curve)
    curve_chart(lines, "dx", curve, is_percent=False)
    assert figures[0].axes[0].get_ylim()[0] == 0


def test_differences_have_a_line_at_zero(figures):
    points = lines_of(make_metrics(shifts=CROSS))[0].points
    below = tuple(
        point._replace(value=point.value - 1, interval=None, band=None) for point in points
    )
    line = CurveLine("model", 0, below)
    curve_chart([line], "dx", "less (points)", is_percent=True, difference=True)
    (axes,) = figures[0].axes
    assert axes.get_ylim()[0] < 0
    assert list(axes.lines[-1].get_ydata()) == [0, 0]


def test_rows_of_a_heat_map_go_down_and_columns_to_the_right(figures):
    values = dict.fromkeys(SQUARE, 0.9) | {(-4, 3): 0.1}
    heat_map_chart(HeatMap("accuracy", values), (1.0, 0.0), "A heat map.")
    axes = figures[0].axes[0]
    cells = axes.collections[0].get_array().reshape(9, 9)
    # dy = −4 is the first row, dx = +3 the last column but one.
    assert np.argwhere(cells > 0.5).tolist() == [[0, 7]]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]


def test_shifts_that_were_not_measured_are_empty_cells(figures):
    heat_map_chart(HeatMap("accuracy", dict.fromkeys(CROSS, 1.0)), (1.0, 0.9), "A heat map.")
    cells = figures[0].axes[0].collections[0].get_array()
    assert np.ma.count_masked(cells) == len(SQUARE) - len(CROSS)


def test_worst_is_the_lowest_share_or_the_highest_error():
    values = {(0, 0): 0.5, (0, 1): 0.2, (1, 0): 0.9}
    assert HeatMap("agreement", values).worst == (0, 1)
    assert HeatMap("error", values).worst == (1, 0)
    assert HeatMap("error", dict.fromkeys(values, 0.5)).worst is None


def test_small_heat_maps_contain_their_values(figures):
    values = {(down, right): 0.125 * down + 0.25 * right for down in (0, 1) for right in (0, 1)}
    heat_map_chart(HeatMap("accuracy", values), (1.0, 0.0), "A heat map.")
    assert {text.get_text() for text in figures[0].axes[0].texts} == {"0.0", "12.5", "25.0", "37.5"}


def test_layer_chart_contains_every_error_and_names_the_breaks(figures):
    layers = make_layers()
    chart = layer_chart(layers)
    axes = figures[0].axes[0]
    by_label = {line.get_label(): line for line in axes.lines}
    inside = by_label["inside the image"].get_ydata()
    expected = [
        layer.error if layer.interior_error is None else layer.interior_error
        for layer in layers.findings
    ]
    np.testing.assert_allclose(inside, np.array(expected, dtype=float))
    assert {text.get_text() for text in axes.texts} == {"embed", "add_position"}
    assert "add_position breaks first." in chart


def test_layer_chart_of_an_exact_model(figures):
    layers = make_layers()
    exact = dataclasses.replace(
        layers.findings[0], interior_error=0.0, border_error=0.0, aliasing_error=None, noise=0.0
    )
    chart = layer_chart(dataclasses.replace(layers, findings=(exact,), breaks={}, first_break=None))
    assert "No layer breaks" in chart
    assert not any(
        math.isnan(value) for line in figures[0].axes[0].lines for value in line.get_ydata()
    )
