"""Learning curves: accuracy against steps, CPU seconds and training FLOPs, beside each other for each data set."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from reproduction.study.report.results import GroupPoint, StudyGroup, StudyMatrix
from teka.errors import wrong_value
from teka.reporting import charts
from teka.reporting.style import INK, LineStyle, level_styles

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

LABELS_WIDTH, PANEL_HEIGHT = 2.0, 2.75
BAND_ALPHA, BAND_LINES = 0.13, 9
"""Opacity of a band, and from how many lines on bands are paler, as so many would bury the lines."""
LOGARITHMIC_FROM = 3.0
"""Ratio of the longest run to the shortest of a panel from which the axes of its row are logarithmic."""
PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1.0, ""))


MEASURES = ("steps", "CPU seconds", "training {}FLOPs")
Groups = Mapping[str, StudyGroup]
Styles = Mapping[str, LineStyle]


def _along(measure: str, group: StudyGroup, point: GroupPoint) -> float:
    if measure == "CPU seconds":
        return point.process_seconds
    first = group.results[0]
    return float(point.step) * (
        1 if measure == "steps" else first.training_flops * first.batch_size
    )


def draw_learning_curves(
    matrix: StudyMatrix, column: str, reference: Mapping[str, str]
) -> "matplotlib.figure.Figure":
    """Draw the learning curves of one column: means over seeds, shaded from the lowest seed to the highest."""
    curves = {
        panel: {
            row: group
            for row in matrix.rows
            if (group := matrix.at(panel, row, column)) and group.curve
        }
        for panel in matrix.panels
    }
    curves = {panel: groups for panel, groups in curves.items() if groups}
    if not curves:
        raise wrong_value("column", column, "one with a finished cell")
    styles = level_styles(matrix.rows, matrix.reference_row(reference))
    width = (
        max(charts.WIDTH, LABELS_WIDTH + 2.2 * len(curves))
        if len(curves) > 1
        else 0.75 * charts.WIDTH
    )
    stretch = charts.stretch_for(list(list(curves.values())[-1]))
    figure = charts.make_figure(width, 0.4 + PANEL_HEIGHT * stretch * len(MEASURES))
    grid = figure.subplots(len(MEASURES), len(curves), squeeze=False)
    for line, measure in zip(grid, MEASURES, strict=True):
        is_logarithmic = any(_is_wide(groups, measure) for groups in curves.values())
        for panel, (name, groups) in zip(line, curves.items(), strict=True):
            _draw_lines(panel, groups, styles, measure, is_logarithmic=is_logarithmic)
            charts.dress_panel(panel, name if measure == MEASURES[0] else "", "y")
        line[0].set_ylabel("accuracy (%)", color=INK, fontsize=9)
        _label(line[-1], list(curves.values())[-1], styles, stretch)
    _name_further(figure, curves, styles)
    if column:
        title = f"{matrix.column_factor}: {column}   (lines: mean of the seeds; shaded: lowest to highest)"
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK, parse_math=False)
    return figure


def _is_wide(groups: Groups, measure: str) -> bool:
    ends = [_along(measure, group, group.curve[-1]) for group in groups.values()]
    return max(ends) > LOGARITHMIC_FROM * min(ends) > 0


def _draw_lines(
    panel: "matplotlib.axes.Axes",
    groups: Groups,
    styles: Styles,
    measure: str,
    *,
    is_logarithmic: bool,
) -> None:
    longest = max(_along(measure, group, group.curve[-1]) for group in groups.values())
    factor, prefix = next((size, name) for size, name in PREFIXES if longest >= size or size == 1.0)
    factor = factor if "{}" in measure else 1.0
    alpha = BAND_ALPHA * min(1.0, BAND_LINES / len(groups))
    # The last drawn lies above, so the reference and the best are seen.
    for row, group in reversed(list(groups.items())):
        style, curve = styles[row], group.curve
        places = [_along(measure, group, point) / factor for point in curve]
        low, high = (
            charts.limit_percent([getattr(point, end) for point in curve])
            for end in ("lowest", "highest")
        )
        values = charts.limit_percent([point.accuracy.value for point in curve])
        charts.draw_line(
            panel, style, places, values, band=(low, high), opacity=alpha, width=1.5, size=3.6
        )
    if is_logarithmic:
        panel.set_xscale("log")
        charts.tick_decades(panel.xaxis)
    else:
        panel.set_xlim(left=0)
    means = [point.accuracy.value for group in groups.values() for point in group.curve]
    charts.set_accuracy_scale(panel, "y", means, ticks=9)
    panel.set_xlabel(measure.format(prefix), color=INK, fontsize=9)


def _label(panel: "matplotlib.axes.Axes", groups: Groups, styles: Styles, stretch: float) -> None:
    lines = dict(zip(reversed(list(groups)), panel.get_lines(), strict=True))
    ends = {row: np.asarray(line.get_xydata())[-1].tolist() for row, line in lines.items()}
    charts.label_lines(
        panel, [charts.LineLabel(row, styles[row].colour, *ends[row]) for row in groups], stretch
    )


def _name_further(
    figure: "matplotlib.figure.Figure", curves: Mapping[str, Groups], styles: Styles
) -> None:
    """A legend of the rows that the last panel, the one with direct labels, does not show."""
    from matplotlib.lines import Line2D

    *others, last = curves.values()
    names = list(dict.fromkeys(row for groups in others for row in groups if row not in last))
    if not names:
        return
    handles = [
        Line2D(
            [],
            [],
            color=styles[name].colour,
            marker=styles[name].marker,
            linestyle=styles[name].linestyle,
        )
        for name in names
    ]
    charts.add_legend(figure, handles, names, place="outside lower left", columns=3)
