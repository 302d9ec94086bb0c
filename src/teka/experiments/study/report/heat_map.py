"""The heat map of a study: for each data set the accuracy in rows and columns, printed in its cells."""

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from teka.audit.page.charts import dress_panel, limit_percent, make_figure, make_panels, name_rows
from teka.audit.page.notation import percent
from teka.audit.page.style import GRID, INK, PALE
from teka.experiments.study.report.group import StudyGroup
from teka.experiments.study.report.matrix import StudyMatrix

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure
    from matplotlib.typing import ColorType

CELL_WIDTH, CELL_HEIGHT = 0.66, 0.36
NAMES_WIDTH, PANEL_GAP, WIDEST = 1.9, 0.25, 12.0
DARKEST = 0.72
"""Share of the colour map that is used, so that dark text is read on most of it."""
WHITE_TEXT_FROM = 0.55
NAME_CHARACTERS = 12


def draw_heat_map(matrix: StudyMatrix) -> "matplotlib.figure.Figure":
    """Draw the accuracy of every group as a cell with its mean and half the width of its interval.

    The darker, the fewer errors; the best of each data set is bold. A cell whose runs all diverged says so, one that is
    not there yet is blank.

    Args:
        matrix: The study.

    Returns:
        A figure that belongs to no window and no global state.

    Raises:
        ImportError: matplotlib is not installed.
    """
    panel_width = CELL_WIDTH * len(matrix.columns) + PANEL_GAP
    beside = max(1, min(len(matrix.panels), int((WIDEST - NAMES_WIDTH) / panel_width)))
    rows = -(-len(matrix.panels) // beside)
    figure = make_figure(NAMES_WIDTH + beside * panel_width, rows * (1.0 + CELL_HEIGHT * len(matrix.rows)))
    for place, name in zip(make_panels(figure, len(matrix.panels), beside), matrix.panels, strict=True):
        _draw_cells(place, matrix, name)
    return figure


def _draw_cells(panel: "matplotlib.axes.Axes", matrix: StudyMatrix, name: str) -> None:
    from matplotlib import colormaps

    groups = {
        (row, column): group
        for row, row_name in enumerate(matrix.rows)
        for column, column_name in enumerate(matrix.columns)
        if (group := matrix.at(name, row_name, column_name))
    }
    means = {place: found.mean for place, group in groups.items() if (found := group.estimate("accuracy"))}
    depths = {place: float(-np.log(100 - limit_percent([mean])[0])) for place, mean in means.items()}
    low, high = min(depths.values(), default=0.0), max(depths.values(), default=0.0)
    for place, group in groups.items():
        share = DARKEST * (depths[place] - low) / ((high - low) or 1.0) if place in depths else None
        colour = "white" if share is None else colormaps["Blues"](0.04 + share)
        _draw_cell(panel, place, colour, hatched=share is None)
        is_best = place in means and means[place] == max(means.values())
        _write_cell(panel, place, group, "white" if (share or 0.0) > WHITE_TEXT_FROM else INK, is_best)
    columns = [textwrap.fill(column, NAME_CHARACTERS, break_long_words=False) for column in matrix.columns]
    panel.set_xlim(-0.5, len(columns) - 0.5)
    dress_panel(panel, name, "")
    panel.spines["bottom"].set_visible(False)
    panel.set_xticks(range(len(columns)), columns, rotation=40, ha="right", rotation_mode="anchor")
    for text in panel.get_xticklabels():
        text.set_parse_math(False)
    name_rows(panel, matrix.rows)


def _draw_cell(panel: "matplotlib.axes.Axes", place: tuple[int, int], colour: "ColorType", *, hatched: bool) -> None:
    from matplotlib.patches import Rectangle

    row, column = place
    hatch, edge, width = ("////", GRID, 0.0) if hatched else (None, "white", 1.0)
    square = Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=colour, edgecolor=edge, hatch=hatch, linewidth=width)
    panel.add_patch(square)


def _write_cell(
    panel: "matplotlib.axes.Axes", place: tuple[int, int], group: StudyGroup, ink: str, is_best: bool
) -> None:
    row, column = place
    accuracy, total = group.estimate("accuracy"), len(group.failed) + len(group.results)
    below = []
    if accuracy and accuracy.half_width is not None:
        below.append(f"± {percent(accuracy.half_width)}")
    if accuracy and group.failed:
        below.append(f"{len(group.failed)} of {total} div.")
    if accuracy is None:
        lines = [("diverged", 0.0, 7.0, PALE)]
        below = []
    else:
        lines = [(percent(accuracy.mean), -0.14 if below else 0.0, 9.0, ink)]
    lines += [(text, 0.22, 6.5, ink) for text in below[-1:]]
    for text, shift, size, colour in lines:
        weight = "bold" if is_best and size > 8 else "normal"
        panel.text(column, row + shift, text, ha="center", va="center", fontsize=size, color=colour, fontweight=weight)
