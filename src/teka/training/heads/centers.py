"""Centers of attention over the image, with ellipses that hold half and nine tenths of it."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from teka.audit.page.require import require
from teka.experiments.study.report.plot import COLOURS, GRID, INK, make_figure
from teka.training.heads.record import HeadRecord

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

PANEL = 2.15
"""Inches of a layer's panel."""
COLUMNS = 6
SHARES = ((0.9, ":", 0.9), (0.5, "-", 1.4))
"""Shares of a Gaussian within its ellipses, with the style and the width of their lines."""
BEYOND = 0.25
"""How far outside the image centers are shown, as a share of its sides."""


def draw_head_centers(record: HeadRecord, moments: Sequence[int]) -> "matplotlib.figure.Figure":
    """Draw the heads of every layer at some moments, one below another.

    The black square is the query, in the middle; cells are tokens, and the frame is the image as that query sees it.
    Each head has its number and colour; its ellipses hold 50 % (solid) and 90 % (dotted) of a Gaussian with its center
    and covariance. A line leads from where it was at the first moment.

    Source: Cordonnier et al. 2020, Figures 2, 3, 7 and 10.

    Args:
        record: The heads.
        moments: Which of the record's moments.

    Returns:
        A figure that belongs to no window and no global state.

    Raises:
        ImportError: matplotlib is not installed.
    """
    require("matplotlib")
    columns = min(record.num_layers, COLUMNS)
    lines = math.ceil(record.num_layers / columns)
    height, width = record.grid
    figure = make_figure(PANEL * columns + 0.1, (PANEL * height / width + 0.3) * lines * len(moments) + 0.1)
    panels = figure.subplots(lines * len(moments), columns, squeeze=False)
    for place, moment in enumerate(moments):
        own = panels[place * lines : (place + 1) * lines].flat
        for layer, panel in enumerate(own):
            if layer >= record.num_layers:
                panel.set_axis_off()
                continue
            _draw_layer(panel, record, moment, layer)
            panel.set_title(f"layer {layer + 1}, {epochs_in_words(record, moment)}", fontsize=9, color=INK)
    return figure


def epochs_in_words(record: HeadRecord, moment: int) -> str:
    """When a moment was: "start", or "epoch 7".

    Args:
        record: The heads.
        moment: Which of the moments.
    """
    epoch = int(record.epoch[moment])
    return f"epoch {epoch}" if epoch else "start"


def head_colour(head: int) -> str:
    """Colour of a head, by its number in its layer from 0; from the tenth on colours return.

    Args:
        head: The number.
    """
    return COLOURS[head % len(COLOURS)]


def ellipse(center: NDArray[np.floating], covariance: NDArray[np.floating], share: float) -> NDArray[np.floating]:
    """Points of the ellipse that holds a share of a Gaussian of two axes, (points, 2).

        {Δ + √(−2 ln(1 − share)) Σ^½ u : ‖u‖ = 1}

    Args:
        center: Δ, shape (2,).
        covariance: Σ, shape (2, 2).
        share: The share, below 1.
    """
    angles = np.linspace(0, 2 * np.pi, 121)
    values, vectors = np.linalg.eigh(covariance)
    radii = np.sqrt(np.maximum(values, 0) * -2 * np.log1p(-share))
    return center + np.stack([np.cos(angles), np.sin(angles)], axis=-1) * radii @ vectors.T


def _draw_layer(panel: "matplotlib.axes.Axes", record: HeadRecord, moment: int, layer: int) -> None:
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    (rows, columns), (row, column) = record.grid, record.query
    low, high = np.array([-row, -column]) - 0.5, np.array([rows - row, columns - column]) - 0.5
    margin = BEYOND * np.array([rows, columns])
    panel.set_xlim(low[1] - margin[1], high[1] + margin[1])
    panel.set_ylim(high[0] + margin[0], low[0] - margin[0])
    panel.set_aspect("equal")
    panel.vlines(np.arange(low[1], high[1] + 1), low[0], high[0], color=GRID, linewidth=0.5)
    panel.hlines(np.arange(low[0], high[0] + 1), low[1], high[1], color=GRID, linewidth=0.5)
    frame = Rectangle((low[1], low[0]), columns, rows, fill=False, edgecolor="#8a8f98", linewidth=0.9)
    panel.add_patch(frame)
    panel.add_patch(Rectangle((-0.5, -0.5), 1, 1, color="black", linewidth=0, zorder=3))
    chosen = record.layer == layer
    path, shapes = record.middles[: moment + 1, chosen], record.shapes(moment)[chosen]
    outside = 0
    for head, (places, covariance) in enumerate(zip(path.swapaxes(0, 1), shapes, strict=True)):
        colour, center = head_colour(head), places[-1]
        for share, dashes, linewidth in SHARES:
            points = ellipse(center, covariance, share)
            panel.plot(points[:, 1], points[:, 0], color=colour, linestyle=dashes, linewidth=linewidth)
        panel.plot(places[:, 1], places[:, 0], color=colour, linewidth=0.8, alpha=0.7)
        if (center < low - margin).any() or (center > high + margin).any():
            outside += 1
            continue
        panel.text(
            center[1], center[0], str(head + 1), color=colour, fontsize=7, fontweight="bold", ha="center", va="center",
            path_effects=[withStroke(linewidth=2.0, foreground="white")], zorder=5,
        )  # fmt: skip
    if outside:
        panel.set_xlabel(f"{outside} {'center' if outside == 1 else 'centers'} outside", fontsize=8, color=INK)
    panel.set_xticks([])
    panel.set_yticks([])
    for spine in panel.spines.values():
        spine.set_visible(False)
