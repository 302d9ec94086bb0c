"""The dot plot of a study: the accuracy of each row, with its interval, a colour for each column."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from teka.audit.page.charts import (
    WIDTH,
    add_legend,
    dress_panel,
    limit_percent,
    make_figure,
    make_panels,
    name_rows,
    set_accuracy_scale,
)
from teka.audit.page.style import BLACK, INK, PALE, line_style
from teka.experiments.study.report.matrix import StudyMatrix

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

SPREAD = 0.62
"""Share of a row's height over which its dots are spread."""
ROW_HEIGHT, DOT_HEIGHT = 0.16, 0.085
MOST_BESIDE = 3


def draw_dot_plot(matrix: StudyMatrix, reference: Mapping[str, str]) -> "matplotlib.figure.Figure":
    """Draw the accuracy of every group as a dot with its 95 % interval over seeds, one panel for each data set.

    In a study without columns a line marks the reference.

    Args:
        matrix: The study.
        reference: The reference's level of some factors.

    Returns:
        A figure that belongs to no window and no global state.

    Raises:
        ImportError: matplotlib is not installed.
    """
    beside = min(MOST_BESIDE, len(matrix.panels))
    rows = -(-len(matrix.panels) // beside)
    height = 0.75 + len(matrix.rows) * (ROW_HEIGHT + DOT_HEIGHT * len(matrix.columns))
    figure = make_figure(WIDTH if beside > 1 else 0.75 * WIDTH, 0.35 + rows * height)
    places = make_panels(figure, len(matrix.panels), beside)
    for place, name in zip(places, matrix.panels, strict=True):
        _draw_panel(place, matrix, name, reference)
    if matrix.column_factor:
        handles = places[0].get_lines()[: len(matrix.columns)]
        add_legend(figure, handles, matrix.columns, columns=min(6, len(matrix.columns)))
    return figure


def _draw_panel(panel: "matplotlib.axes.Axes", matrix: StudyMatrix, name: str, reference: Mapping[str, str]) -> None:
    shown, upper = [], []
    count = len(matrix.columns)
    styles = [line_style(index) for index in range(count)]
    for style in styles:  # for the legend, even of a column without a dot here
        panel.plot([], [], style.marker, color=style.colour, markersize=6)
    for index, (column, style) in enumerate(zip(matrix.columns, styles, strict=True)):
        colour, marker = style.colour if matrix.column_factor else INK, style.marker
        for place, row in enumerate(matrix.rows):
            group = matrix.at(name, row, column)
            accuracy = group.estimate("accuracy") if group else None
            if accuracy is None:
                continue
            height = place + SPREAD * ((index + 0.5) / count - 0.5)
            if accuracy.interval:
                upper.append(accuracy.interval[1])
                ends = limit_percent(accuracy.interval)
                panel.plot(ends, [height] * 2, color=colour, linewidth=1.3, alpha=0.6, solid_capstyle="butt")
            panel.plot(
                limit_percent([accuracy.mean]), [height], marker, color=colour, markersize=5.5, markeredgecolor="white",
                markeredgewidth=0.5,
            )  # fmt: skip
            shown.append(accuracy.mean)
    dress_panel(panel, name, "x")
    if shown:
        # Wide intervals would stretch the scale to its end, so they are cut off where the best has half of its errors.
        most = (1 + max(shown)) / 2
        set_accuracy_scale(panel, "x", [*shown, *(min(end, most) for end in upper)], ticks=8)
        panel.set_autoscalex_on(False)
    _mark_reference(panel, matrix, name, reference)
    for place in range(1, len(matrix.rows)):
        panel.axhline(place - 0.5, color="#eef0f3", linewidth=0.7, zorder=0)
    panel.set_xlabel("accuracy (%)", color=INK, fontsize=9)
    name_rows(panel, matrix.rows)


def _mark_reference(
    panel: "matplotlib.axes.Axes", matrix: StudyMatrix, name: str, reference: Mapping[str, str]
) -> None:
    row = matrix.reference_row(reference)
    if matrix.column_factor or row is None:
        return
    group = matrix.at(name, row, "")
    accuracy = group.estimate("accuracy") if group else None
    if accuracy:
        (place,) = limit_percent([accuracy.mean])
        panel.axvline(place, color=PALE, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
        panel.plot([place], [matrix.rows.index(row)], "o", color=BLACK, markersize=7)
