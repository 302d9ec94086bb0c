"""How the models of a study bear shifts: accuracy where images are not shifted, at the worst shift, at every shift."""

import textwrap
from typing import TYPE_CHECKING

from teka.audit.page.charts import (
    WIDTH,
    add_legend,
    dress_panel,
    limit_percent,
    make_figure,
    name_rows,
    set_accuracy_scale,
)
from teka.audit.page.style import INK, PALE
from teka.experiments.study.report.group import Quantity, StudyGroup
from teka.experiments.study.report.matrix import StudyMatrix

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

MARKS: tuple[tuple[Quantity, str, str, str, float], ...] = (
    ("unshifted_accuracy", "not shifted", "o", "white", 6.0),
    ("minimum_accuracy", "at the worst shift", "o", "#D55E00", 5.0),
    ("worst_shift_accuracy", "right at every shift", "|", "#0072B2", 8.0),
)
ROW_HEIGHT, NAMES_WIDTH, PANEL_WIDTH = 0.235, 1.7, 1.5
TITLE_CHARACTERS = 16


def draw_shift_plot(matrix: StudyMatrix) -> "matplotlib.figure.Figure":
    """Draw for every group three accuracies on the shifted images, means over seeds, joined by a line.

    One panel for each data set and column, data sets below each other.

    Args:
        matrix: The study.

    Returns:
        A figure that belongs to no window and no global state.

    Raises:
        ImportError: matplotlib is not installed.
    """
    panels, columns = matrix.panels, matrix.columns
    # Without columns the data sets stand beside each other.
    places = [[(name, column) for column in columns] for name in panels]
    if not matrix.column_factor:
        places = [[(name, "") for name in panels]]
    width = max(WIDTH if len(places[0]) > 1 else 0.75 * WIDTH, NAMES_WIDTH + PANEL_WIDTH * len(places[0]))
    figure = make_figure(width, 0.4 + len(places) * (0.75 + ROW_HEIGHT * len(matrix.rows)))
    grid = figure.subplots(len(places), len(places[0]), squeeze=False, sharey=True)
    for line, names in zip(grid, places, strict=True):
        shares = {name: _shares(matrix, name) for name, _ in names}
        for panel, (name, column) in zip(line, names, strict=True):
            _draw_panel(panel, matrix, name, column)
            title = textwrap.fill(column if matrix.column_factor else name, TITLE_CHARACTERS)
            dress_panel(panel, title, "x")
            if shares[name]:
                set_accuracy_scale(panel, "x", shares[name], ticks=5)
            panel.set_xlabel("accuracy (%)", color=INK, fontsize=9)
            name_rows(panel, matrix.rows)
        if matrix.column_factor and names[0][0]:
            line[0].set_ylabel(names[0][0], color=INK, fontsize=10, fontweight="bold", parse_math=False)
    add_legend(figure, grid[0][0].get_lines()[: len(MARKS)], [name for _, name, *_ in MARKS], columns=len(MARKS))
    return figure


def _shares(matrix: StudyMatrix, name: str) -> list[float]:
    groups = [group for row in matrix.rows for column in matrix.columns if (group := matrix.at(name, row, column))]
    return [share for group in groups for share in _three(group).values()]


def _three(group: StudyGroup) -> dict[str, float]:
    return {quantity: found.mean for quantity, *_ in MARKS if (found := group.estimate(quantity))}


def _draw_panel(panel: "matplotlib.axes.Axes", matrix: StudyMatrix, name: str, column: str) -> None:
    for _, _, marker, fill, size in MARKS:
        edge = PALE if fill == "white" else fill
        panel.plot(
            [], [], marker, color=edge, markerfacecolor=fill, markeredgewidth=1.6 if marker == "|" else 1.1,
            markersize=size,
        )  # fmt: skip
    for place, row in enumerate(matrix.rows):
        group = matrix.at(name, row, column)
        found = _three(group) if group else {}
        if found:
            panel.plot(
                limit_percent([min(found.values()), max(found.values())]), [place] * 2, color=PALE, linewidth=1.2,
                zorder=1,
            )  # fmt: skip
        for quantity, _, marker, fill, size in MARKS:
            if quantity in found:
                panel.plot(
                    limit_percent([found[quantity]]), [place], marker, color=PALE if fill == "white" else fill,
                    markerfacecolor=fill, markeredgewidth=1.6 if marker == "|" else 1.1, markersize=size,
                    clip_on=False,
                )  # fmt: skip
