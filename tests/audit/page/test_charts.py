import dataclasses
import math

import numpy as np

from teka.audit.page.charts import (
    MOST_BANDS,
    HeatMap,
    draw_curves,
    draw_heat_map,
    draw_layer_errors,
)
from tests.audit.page.audit_reports import CROSS, SQUARE, make_layers, make_metrics, make_report


def draw_metrics(*metrics, curve="accuracy", **options):
    reports = [make_report(f"model {index}", caveats=()) for index in range(len(metrics))]
    return draw_curves(reports, dict(enumerate(metrics)), curve, "correct (%)", **options)


def draw_accuracy(names, metrics):
    reports = [make_report(name, caveats=()) for name in names]
    return draw_curves(reports, metrics, "accuracy", "correct (%)")


def test_charts_show_the_shifts_along_each_axis_in_percent(figures):
    metrics = [make_metrics(shifts=SQUARE[::-1]), make_metrics(shifts=CROSS, fall=0.1)]
    charts = draw_metrics(*metrics)["charts"]
    for figure, shift_of in zip(
        figures, (lambda step: (0, step), lambda step: (step, 0)), strict=True
    ):
        (axes,) = figure.axes
        assert [line.get_label() for line in axes.lines] == ["model 0", "model 1"]
        for each, line in zip(metrics, axes.lines, strict=True):
            values = dict(zip(each.shifts, each.curves["accuracy"].values, strict=True))
            expected = [(step, 100 * values[shift_of(step)]) for step in range(-4, 5)]
            np.testing.assert_allclose(line.get_xydata(), expected)
    assert "model 1 from" in charts[0]
    assert figures[0].axes[0].get_xlabel() == "horizontal shift dx (pixels)"


def test_bands_are_drawn_for_few_models_with_intervals(figures):
    metrics = [make_metrics(shifts=CROSS) for _ in range(MOST_BANDS + 1)]
    curve = metrics[0].curves["accuracy"]
    without = dataclasses.replace(curve, method="none, which needs 10 images or more")
    draw_metrics(*metrics[:-1])
    draw_metrics(*metrics)
    draw_metrics(dataclasses.replace(metrics[0], curves={"accuracy": without}))
    assert [len(figure.axes[0].collections) for figure in figures[::2]] == [2 * MOST_BANDS, 0, 0]
    wide, narrow = (
        band.get_paths()[0].vertices[:, 1] for band in figures[0].axes[0].collections[:2]
    )
    assert wide.min() == 100 * min(curve.band_lower[row] for row in rows_along_dx(metrics[0]))
    assert narrow.max() == 100 * max(curve.upper[row] for row in rows_along_dx(metrics[0]))


def rows_along_dx(metrics):
    return [row for row, shift in enumerate(metrics.shifts) if shift[0] == 0]


def test_axes_without_shifts_have_no_chart():
    along_dx = make_metrics(shifts=tuple((0, step) for step in range(-2, 3)))
    assert len(draw_accuracy(["one"], {0: along_dx})["charts"]) == 1
    assert draw_accuracy(["one"], {0: make_metrics(shifts=((0, 0), (2, 2)))}) == {}


def test_models_have_the_same_color_in_all_charts(figures):
    moved, unshifted = make_metrics(), make_metrics(shifts=((0, 0),))
    draw_accuracy(["one", "two", "three"], {0: unshifted, 2: moved})
    draw_accuracy(["one", "two", "three"], {1: moved, 2: moved})
    assert figures[0].axes[0].lines[0].get_color() == figures[2].axes[0].lines[1].get_color()


def test_axis_of_errors_starts_at_zero(figures):
    draw_metrics(make_metrics(fall=0.0), make_metrics(fall=0.5), curve="error")
    assert figures[0].axes[0].get_ylim()[0] == 0


def test_chart_of_differences_has_a_line_at_zero(figures):
    metrics = make_metrics(shifts=CROSS)
    below = [value - 1 for value in metrics.curves["accuracy"].values]
    curve = dataclasses.replace(metrics.curves["accuracy"], values=tuple(below), method="none")
    draw_metrics(dataclasses.replace(metrics, curves={"accuracy": curve}), difference=True)
    (axes,) = figures[0].axes
    assert axes.get_ylim()[0] < 0
    assert list(axes.lines[-1].get_ydata()) == [0, 0]
    assert axes.get_ylabel() == "difference (points)"


def test_heat_map_has_dy_downwards_and_dx_to_the_right(figures):
    values = dict.fromkeys(SQUARE, 0.9) | {(-4, 3): 0.1}
    draw_heat_map(HeatMap("accuracy", values), (1.0, 0.0), "A heat map.")
    axes = figures[0].axes[0]
    cells = axes.collections[0].get_array().reshape(9, 9)
    # dy = −4 is the first row, and dx = +3 is the second to last column.
    assert np.argwhere(cells > 0.5).tolist() == [[0, 7]]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]


def test_heat_map_leaves_unmeasured_shifts_empty(figures):
    draw_heat_map(HeatMap("accuracy", dict.fromkeys(CROSS, 1.0)), (1.0, 0.9), "A heat map.")
    cells = figures[0].axes[0].collections[0].get_array()
    assert np.ma.count_masked(cells) == len(SQUARE) - len(CROSS)


def test_worst_shift_has_the_lowest_share_or_the_highest_error():
    values = {(0, 0): 0.5, (0, 1): 0.2, (1, 0): 0.9}
    assert HeatMap("agreement", values).worst_shift == (0, 1)
    assert HeatMap("error", values).worst_shift == (1, 0)
    assert HeatMap("error", dict.fromkeys(values, 0.5)).worst_shift is None


def test_chart_of_layers_contains_every_error_and_names_the_breaks(figures):
    layers = make_layers()
    chart = draw_layer_errors(layers)
    axes = figures[0].axes[0]
    by_label = {line.get_label(): line for line in axes.lines}
    inside = by_label["inside the image"].get_ydata()
    expected = [
        layer.error if layer.interior_error is None else layer.interior_error
        for layer in layers.findings
    ]
    np.testing.assert_allclose(inside, np.array(expected, dtype=float))
    assert {text.get_text().strip() for text in axes.texts} == {"embed", "add_position"}
    assert "Equivariance breaks first in add_position and embed." in chart
    assert all(tick == round(tick) for tick in axes.get_xticks())


def test_chart_of_layers_of_an_exact_model(figures):
    layers = make_layers()
    exact = dataclasses.replace(
        layers.findings[0], interior_error=0.0, border_error=0.0, aliasing_error=None, noise=0.0
    )
    chart = draw_layer_errors(dataclasses.replace(layers, findings=(exact,), breaks={}))
    assert "Equivariance breaks first in no layer." in chart
    assert not any(
        math.isnan(value) for line in figures[0].axes[0].lines for value in line.get_ydata()
    )
