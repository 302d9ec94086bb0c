"""The pictures of a study: accuracy in dots, in a map of rows and columns, and under shifts."""

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from reproduction.study.report.results import Quantity, StudyGroup, StudyMatrix
from teka.reporting import charts
from teka.reporting.formatting import percent
from teka.reporting.style import BLACK, GRID, INK, PALE, line_style

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

SPREAD = 0.62
"""Share of a row's height over which its dots are spread."""
DOTS_ROW_HEIGHT, DOT_HEIGHT, MOST_BESIDE = 0.16, 0.085, 3
CELL_WIDTH, CELL_HEIGHT = 0.66, 0.36
MAP_NAMES_WIDTH, PANEL_GAP, WIDEST = 1.9, 0.25, 12.0
DARKEST = 0.72
"""Share of the colour map that is used, so that dark text is read on most of it."""
WHITE_TEXT_FROM, NAME_CHARACTERS = 0.55, 12
MARKS: tuple[tuple[Quantity, str, str, str, float], ...] = (
    ("unshifted_accuracy", "not shifted", "o", "white", 6.0),
    ("minimum_accuracy", "at the worst shift", "o", "#D55E00", 5.0),
    ("worst_shift_accuracy", "right at every shift", "|", "#0072B2", 8.0),
)
ROW_HEIGHT, NAMES_WIDTH, PANEL_WIDTH, TITLE_CHARACTERS = 0.235, 1.7, 1.5, 16


def draw_dot_plot(matrix: StudyMatrix, reference: Mapping[str, str]) -> "matplotlib.figure.Figure":
    """Draw every group's accuracy as a dot with its 95 % interval; without columns a line marks the reference."""
    beside = min(MOST_BESIDE, len(matrix.panels))
    rows = -(-len(matrix.panels) // beside)
    height = 0.75 + len(matrix.rows) * (DOTS_ROW_HEIGHT + DOT_HEIGHT * len(matrix.columns))
    figure = charts.make_figure(
        charts.WIDTH if beside > 1 else 0.75 * charts.WIDTH, 0.35 + rows * height
    )
    places = charts.make_panels(figure, len(matrix.panels), beside)
    for place, name in zip(places, matrix.panels, strict=True):
        _draw_dots(place, matrix, name, reference)
    if matrix.column_factor:
        handles = places[0].get_lines()[: len(matrix.columns)]
        charts.add_legend(figure, handles, matrix.columns, columns=min(6, len(matrix.columns)))
    return figure


def _draw_dots(
    panel: "matplotlib.axes.Axes", matrix: StudyMatrix, name: str, reference: Mapping[str, str]
) -> None:
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
            if accuracy.half_width is not None:
                upper.append(accuracy.upper)
                ends = charts.limit_percent([accuracy.lower, accuracy.upper])
                panel.plot(
                    ends,
                    [height] * 2,
                    color=colour,
                    linewidth=1.3,
                    alpha=0.6,
                    solid_capstyle="butt",
                )
            panel.plot(
                charts.limit_percent([accuracy.value]), [height], marker, color=colour, markersize=5.5,
                markeredgecolor="white", markeredgewidth=0.5,
            )  # fmt: skip
            shown.append(accuracy.value)
    charts.dress_panel(panel, name, "x")
    if shown:
        # Wide intervals would stretch the scale to its end, so they are cut off where the best has half of its errors.
        most = (1 + max(shown)) / 2
        charts.set_accuracy_scale(panel, "x", [*shown, *(min(end, most) for end in upper)], ticks=8)
        panel.set_autoscalex_on(False)
    _mark_reference(panel, matrix, name, reference)
    for place in range(1, len(matrix.rows)):
        panel.axhline(place - 0.5, color="#eef0f3", linewidth=0.7, zorder=0)
    panel.set_xlabel("accuracy (%)", color=INK, fontsize=9)
    charts.name_rows(panel, matrix.rows)


def _mark_reference(
    panel: "matplotlib.axes.Axes", matrix: StudyMatrix, name: str, reference: Mapping[str, str]
) -> None:
    row = matrix.reference_row(reference)
    if matrix.column_factor or row is None:
        return
    group = matrix.at(name, row, "")
    accuracy = group.estimate("accuracy") if group else None
    if accuracy:
        (place,) = charts.limit_percent([accuracy.value])
        panel.axvline(place, color=PALE, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
        panel.plot([place], [matrix.rows.index(row)], "o", color=BLACK, markersize=7)


def draw_heat_map(matrix: StudyMatrix) -> "matplotlib.figure.Figure":
    """Draw the accuracy of every group with half the width of its interval: the darker, the fewer errors.

    The best of each data set is bold; a cell whose runs all diverged says so, one that is not there yet is blank.
    """
    panel_width = CELL_WIDTH * len(matrix.columns) + PANEL_GAP
    beside = max(1, min(len(matrix.panels), int((WIDEST - MAP_NAMES_WIDTH) / panel_width)))
    rows = -(-len(matrix.panels) // beside)
    figure = charts.make_figure(
        MAP_NAMES_WIDTH + beside * panel_width, rows * (1.0 + CELL_HEIGHT * len(matrix.rows))
    )
    for place, name in zip(
        charts.make_panels(figure, len(matrix.panels), beside), matrix.panels, strict=True
    ):
        _draw_cells(place, matrix, name)
    return figure


def _draw_cells(panel: "matplotlib.axes.Axes", matrix: StudyMatrix, name: str) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    groups = {
        (row, column): group
        for row, row_name in enumerate(matrix.rows)
        for column, column_name in enumerate(matrix.columns)
        if (group := matrix.at(name, row_name, column_name))
    }
    means = {
        place: found.value
        for place, group in groups.items()
        if (found := group.estimate("accuracy"))
    }
    depths = {
        place: float(-np.log(100 - charts.limit_percent([mean])[0]))
        for place, mean in means.items()
    }
    low, high = min(depths.values(), default=0.0), max(depths.values(), default=0.0)
    for place, group in groups.items():
        share = DARKEST * (depths[place] - low) / ((high - low) or 1.0) if place in depths else None
        row, column = place
        look = {"facecolor": "white", "edgecolor": GRID, "hatch": "////", "linewidth": 0.0}
        if share is not None:
            look = {
                "facecolor": colormaps["Blues"](0.04 + share),
                "edgecolor": "white",
                "linewidth": 1.0,
            }
        panel.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, **look))
        is_best = place in means and means[place] == max(means.values())
        _write_cell(
            panel, place, group, "white" if (share or 0.0) > WHITE_TEXT_FROM else INK, is_best
        )
    columns = [
        textwrap.fill(column, NAME_CHARACTERS, break_long_words=False) for column in matrix.columns
    ]
    panel.set_xlim(-0.5, len(columns) - 0.5)
    charts.dress_panel(panel, name, "")
    panel.spines["bottom"].set_visible(False)
    panel.set_xticks(range(len(columns)), columns, rotation=40, ha="right", rotation_mode="anchor")
    for text in panel.get_xticklabels():
        text.set_parse_math(False)
    charts.name_rows(panel, matrix.rows)


def _write_cell(
    panel: "matplotlib.axes.Axes",
    place: tuple[int, int],
    group: StudyGroup,
    ink: str,
    is_best: bool,
) -> None:
    row, column = place
    accuracy, total = group.estimate("accuracy"), len(group.failed) + len(group.results)
    if accuracy is None:
        lines = [("diverged", 0.0, 7.0, PALE)]
    else:
        below = f"± {percent(accuracy.half_width)}" if accuracy.half_width is not None else ""
        below = f"{len(group.failed)} of {total} div." if group.failed else below
        lines = [(percent(accuracy.value), -0.14 if below else 0.0, 9.0, ink)]
        lines += [(below, 0.22, 6.5, ink)] if below else []
    for text, shift, size, colour in lines:
        weight = "bold" if is_best and size > 8 else "normal"
        panel.text(
            column,
            row + shift,
            text,
            ha="center",
            va="center",
            fontsize=size,
            color=colour,
            fontweight=weight,
        )


def draw_shift_plot(matrix: StudyMatrix) -> "matplotlib.figure.Figure":
    """Draw three accuracies of every group on the shifted images, joined by a line, by data set and column."""
    if matrix.column_factor:
        places = [[(name, column) for column in matrix.columns] for name in matrix.panels]
    else:  # the data sets stand beside each other
        places = [[(name, "") for name in matrix.panels]]
    width = max(
        charts.WIDTH if len(places[0]) > 1 else 0.75 * charts.WIDTH,
        NAMES_WIDTH + PANEL_WIDTH * len(places[0]),
    )
    figure = charts.make_figure(width, 0.4 + len(places) * (0.75 + ROW_HEIGHT * len(matrix.rows)))
    grid = figure.subplots(len(places), len(places[0]), squeeze=False, sharey=True)
    for line, names in zip(grid, places, strict=True):
        shares = {
            name: [
                share for group in matrix.ranked_groups(name) for share in _three(group).values()
            ]
            for name, _ in names
        }
        for panel, (name, column) in zip(line, names, strict=True):
            _draw_shifts(panel, matrix, name, column)
            title = textwrap.fill(column if matrix.column_factor else name, TITLE_CHARACTERS)
            charts.dress_panel(panel, title, "x")
            if shares[name]:
                charts.set_accuracy_scale(panel, "x", shares[name], ticks=5)
            panel.set_xlabel("accuracy (%)", color=INK, fontsize=9)
            charts.name_rows(panel, matrix.rows)
        if matrix.column_factor and names[0][0]:
            line[0].set_ylabel(
                names[0][0], color=INK, fontsize=10, fontweight="bold", parse_math=False
            )
    charts.add_legend(
        figure,
        grid[0][0].get_lines()[: len(MARKS)],
        [name for _, name, *_ in MARKS],
        columns=len(MARKS),
    )
    return figure


def _three(group: StudyGroup) -> dict[str, float]:
    return {quantity: found.value for quantity, *_ in MARKS if (found := group.estimate(quantity))}


def _draw_shifts(
    panel: "matplotlib.axes.Axes", matrix: StudyMatrix, name: str, column: str
) -> None:
    looks: dict[str, dict[str, Any]] = {}
    for quantity, _, marker, fill, size in MARKS:
        look = {"marker": marker, "linestyle": "", "markerfacecolor": fill, "markersize": size}
        edges = {
            "color": PALE if fill == "white" else fill,
            "markeredgewidth": 1.6 if marker == "|" else 1.1,
        }
        looks[quantity] = look | edges
        panel.plot([], [], **looks[quantity])  # for the legend
    for place, row in enumerate(matrix.rows):
        group = matrix.at(name, row, column)
        found = _three(group) if group else {}
        if found:
            ends = charts.limit_percent([min(found.values()), max(found.values())])
            panel.plot(ends, [place] * 2, color=PALE, linewidth=1.2, zorder=1)
        for quantity, share in found.items():
            panel.plot(charts.limit_percent([share]), [place], **looks[quantity], clip_on=False)
