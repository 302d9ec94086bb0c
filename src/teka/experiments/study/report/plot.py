"""What the pictures of a study share: the scale of accuracies, colours, and the dress of a panel."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from jaxtyping import Float64, Real

from teka.experiments.study.report.matrix import StudyMatrix

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

INK, GRID, PALE = "#1c2430", "#dfe3e8", "#8a8f98"
BLACK = "#000000"
# Okabe and Ito's colours, which colour-blind readers tell apart, without the two that are pale on white, and four dark
# ones; markers and dashes repeat the difference.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#7A6A00", "#56B4E9", "#332288", "#E69F00", "#882255")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
Dashes = Literal["-"] | tuple[float, tuple[float, ...]]
DASHES: tuple[Dashes, ...] = ("-", (0, (4, 1.5)), (0, (1.2, 1.2)), (0, (5, 1, 1, 1)))
DPI = 200
WIDTH = 9.0
"""Inches; at 200 dots per inch twice the 900 pixels of a page."""
NEAREST_ERROR = 0.02
"""Error in % at which the scale of accuracies ends, as that of no errors is at infinity."""
MARGIN = 0.05
TICKS = ((0, 50, 90, 99, 99.9), (80, 95, 98, 99.5, 99.8), (20, 40, 60, 70, 85, 96, 97), range(100))
FEWEST_TICKS = 3


class RowStyle(NamedTuple):
    """How a level of a factor is drawn."""

    colour: str
    marker: str
    dashes: Dashes


def level_styles(levels: Iterable[str], reference: str | None) -> dict[str, RowStyle]:
    """A style for each level, black for the reference; the same for the same levels whatever their order.

    Args:
        levels: The levels.
        reference: The level that the others are compared with, if it is one of them.
    """
    styles = {} if reference is None else {reference: RowStyle(BLACK, "o", "-")}
    for index, level in enumerate(sorted(set(levels) - set(styles))):
        dashes = DASHES[(index // len(COLOURS) + index) % len(DASHES)]
        styles[level] = RowStyle(COLOURS[index % len(COLOURS)], MARKERS[(index + 1) % len(MARKERS)], dashes)
    return styles


def reference_row(matrix: StudyMatrix, reference: Mapping[str, str]) -> str | None:
    """The row that the reference picks, None where it does not pick a single row.

    Args:
        matrix: The study.
        reference: The reference's level of some factors.
    """
    if not matrix.row_factors or not set(matrix.row_factors) <= set(reference):
        return None
    return ", ".join(reference[factor] for factor in matrix.row_factors)


def limit_percent(shares: Sequence[float]) -> Float64[np.ndarray, " shares"]:
    """Shares in %, held to what the scale of accuracies can show."""
    return np.clip(100 * np.asarray(shares, dtype=float), 0.0, 100 - NEAREST_ERROR)


def set_accuracy_scale(panel: "matplotlib.axes.Axes", axis: str, shares: Sequence[float], ticks: int) -> None:
    """Scale an axis of accuracies in % by the logarithm of the error, so that 98 and 99 lie as far apart as 90 and 95.

    Args:
        panel: The panel.
        axis: "x" or "y".
        shares: All accuracies that are to be seen, from 0 to 1.
        ticks: How many ticks there is room for.
    """
    heights = _height(limit_percent(shares))
    low, high = float(heights.min()), float(heights.max())
    margin = MARGIN * max(high - low, 0.05)
    low, high = max(low - margin, float(_height(np.zeros(1))[0])), high + margin
    scale = {"functions": (_height, _from_height)}
    places = _choose_ticks(low, high, ticks)
    names = [f"{place:g}" for place in places]
    if axis == "x":
        panel.set_xscale("function", **scale)
        panel.set_xlim(*_from_height(np.array([low, high])))
        panel.set_xticks(places, names)
    else:
        panel.set_yscale("function", **scale)
        panel.set_ylim(*_from_height(np.array([low, high])))
        panel.set_yticks(places, names)


def _height(percents: Real[np.ndarray, "*shape"]) -> Float64[np.ndarray, "*shape"]:
    return -np.log10(np.maximum(100 - np.asarray(percents, dtype=float), NEAREST_ERROR / 2))


def _from_height(heights: Real[np.ndarray, "*shape"]) -> Float64[np.ndarray, "*shape"]:
    return 100 - 10 ** -np.asarray(heights, dtype=float)


def _choose_ticks(low: float, high: float, count: int) -> list[float]:
    """Round accuracies first, as many as lie far enough apart; tenths and less where the axis is shorter than that."""
    chosen: list[tuple[float, float]] = []
    first, last = _from_height(np.array([low, high]))
    for decimals in range(4):
        fine = np.round(np.arange(first, last, 10.0**-decimals), decimals).tolist()
        for place in [*(tick for round_ in TICKS for tick in round_), *(fine if decimals else [])]:
            height = float(_height(np.array([place]))[0])
            if low <= height <= high and all(abs(height - other) >= (high - low) / count for other, _ in chosen):
                chosen.append((height, float(place)))
        if len(chosen) >= FEWEST_TICKS:
            break
    return [place for _, place in sorted(chosen)]


def dress_panel(panel: "matplotlib.axes.Axes", title: str, grid: str) -> None:
    """Title, quiet spines, and grid lines along one axis or both.

    Args:
        panel: The panel.
        title: What stands above it.
        grid: "x", "y" or "both".
    """
    panel.set_title(title, loc="left", fontsize=10, color=INK, parse_math=False)
    if grid in ("x", "both"):
        panel.grid(axis="x", color=GRID, linewidth=0.7)
    if grid in ("y", "both"):
        panel.grid(axis="y", color=GRID, linewidth=0.7)
    panel.set_axisbelow(True)
    panel.tick_params(which="both", colors=INK, labelsize=8.5, length=0)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)
    panel.spines["bottom"].set_color(GRID)


def make_figure(width: float, height: float) -> "matplotlib.figure.Figure":
    """A white figure that belongs to no window and no global state.

    Args:
        width: Inches.
        height: Inches.
    """
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")


def name_rows(panel: "matplotlib.axes.Axes", rows: Sequence[str]) -> None:
    """Put rows on the vertical axis, the first at the top.

    Args:
        panel: The panel.
        rows: Their names.
    """
    panel.set_yticks(range(len(rows)), rows)
    for text in panel.get_yticklabels():
        text.set_parse_math(False)  # A name is not a formula, even with a dollar sign.
    panel.set_ylim(len(rows) - 0.5, -0.5)
