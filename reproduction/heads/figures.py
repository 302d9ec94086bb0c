"""Figures of where the heads of a network attend."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.animation import PillowWriter
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from reproduction.heads.measure import LAYER_NUMBERS
from reproduction.heads.record import ACCURACIES

Record = Mapping[str, NDArray]  # of `load_head_record`
MAX_COLUMNS = 6
# Shares of a Gaussian within the ellipses, and their line styles.
SHARES = {0.5: "-", 0.9: ":"}
CIRCLE = np.linspace(0, 2 * np.pi, 121)
MARGIN = 0.25  # around the image, as a share of its sides
MIN_PRECISION = 1e-6  # of a Gaussian that is drawn: a standard deviation of 1,000 tokens
PROGRESS = {
    "window_3": "offsets of 3 × 3 taken",
    "local": "heads that attend to one token",
    "spread": "spread (tokens, median)",
}
MAX_FRAMES = 30
NUM_LAST_FRAMES = 18


def describe_heads(record: Record) -> pd.DataFrame:
    """Return the numbers of each layer as "before → after training (random parameters)"."""
    table = pd.DataFrame(index=pd.RangeIndex(1, len(record["chance_heads"]) + 1, name="layer"))
    for name in LAYER_NUMBERS:
        rows = zip(record[name][0], record[name][-1], record[f"chance_{name}"], strict=True)
        table[name] = [f"{first:.3g} → {last:.3g} ({chance:.3g})" for first, last, chance in rows]
    return table


def draw_head_centers(
    record: Record, moments: Sequence[int], figure: Figure | None = None
) -> Figure:
    """Draw the heads of every layer (Cordonnier et al. 2020, Figures 2, 3, 7 and 10).

    The frame is the image around the query in its middle, the black square. Ellipses contain 50 %
    (solid) and 90 % (dotted) of a Gaussian with the center and covariance of a head. A line shows
    the path of the center since the start of the training.

    Args:
        record: The record of the heads.
        moments: Indices of the moments to draw, one group of rows each.
        figure: Figure to draw into; a new one by default.
    """
    num_layers = len(record["chance_heads"])
    num_columns = min(num_layers, MAX_COLUMNS)
    num_rows = math.ceil(num_layers / num_columns) * len(moments)
    figure = figure or Figure((2.2 * num_columns, 2.4 * num_rows), layout="constrained")
    axes = figure.subplots(num_rows, num_columns, squeeze=False)
    for moment, group in zip(moments, axes.reshape(len(moments), -1), strict=True):
        for layer, axis in enumerate(group):
            if layer < num_layers:
                _draw_layer(axis, record, moment, layer)
            else:
                axis.set_axis_off()
    return figure


def _draw_layer(axis: Axes, record: Record, moment: int, layer: int) -> None:
    (height, width), (row, column) = record["grid"], record["query"]
    axis.add_patch(Rectangle((-column - 0.5, -row - 0.5), width, height, fill=False, color="gray"))
    axis.add_patch(Rectangle((-0.5, -0.5), 1, 1, color="black"))
    heads = record["layer"] == layer
    paths, covariances = record["mean"], record["covariance"][moment, heads]
    if np.isfinite(record["center"]).all():
        paths = record["center"]
        precisions = record["precision"][moment, heads]
        covariances = np.linalg.inv(precisions + MIN_PRECISION * np.eye(2))
    paths = paths[: moment + 1, heads].swapaxes(0, 1)
    for head, (path, covariance) in enumerate(zip(paths, covariances, strict=True)):
        color = f"C{head}"
        axis.plot(path[:, 1], path[:, 0], color=color, linewidth=0.8)
        y, x = path[-1]
        axis.text(x, y, str(head + 1), color=color, ha="center", va="center", clip_on=True)
        for share, line_style in SHARES.items():
            ellipse = path[-1] + ellipse_around_zero(covariance, share)
            axis.plot(ellipse[:, 1], ellipse[:, 0], color=color, linestyle=line_style)
    epoch = record["epoch"][moment]
    axis.set(
        title=f"layer {layer + 1}, {f'epoch {epoch}' if epoch else 'start'}",
        xlim=(-column - MARGIN * width, width - column + MARGIN * width),
        ylim=(height - row + MARGIN * height, -row - MARGIN * height),
        xticks=[],
        yticks=[],
        aspect="equal",
    )


def ellipse_around_zero(covariance: NDArray, share: float) -> NDArray:
    """Return points of the ellipse that contains a share of a Gaussian with mean zero."""
    variances, vectors = np.linalg.eigh(covariance)
    axes = vectors * np.sqrt(-2 * np.log1p(-share) * np.maximum(variances, 0))
    return np.stack([np.cos(CIRCLE), np.sin(CIRCLE)], axis=-1) @ axes.T


def draw_attention_maps(maps: Sequence[NDArray], query: tuple[int, int]) -> Figure:
    """Draw the attention weights of one query by layer and head (Cordonnier et al. 2020, Figure 6).

    White is 0. The darkest blue is the largest weight of each map, which is written below it.
    """
    num_columns = max(map(len, maps))
    figure = Figure((0.9 * num_columns + 0.5, 1.2 * len(maps) + 0.3), layout="constrained")
    axes = figure.subplots(len(maps), num_columns, squeeze=False)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[], frame_on=False)
    for layer, weights in enumerate(maps):
        axes[layer, 0].set_ylabel(f"layer {layer + 1}")
        for head, image in enumerate(weights):
            axis = axes[layer, head]
            axis.imshow(image, cmap="Blues", vmin=0)
            axis.add_patch(Rectangle((query[1] - 0.5, query[0] - 0.5), 1, 1, fill=False))
            axis.set(title=str(head + 1), xlabel=f"{image.max():.2f}")
    return figure


def draw_accuracy(records: Sequence[Record]) -> Figure:
    """Draw the accuracy against epochs (Cordonnier et al. 2020, Figures 4 and 8).

    Args:
        records: Records of consecutive trainings, such as before and after pruning.
    """
    figure = Figure((6.4, 3.0), layout="constrained")
    axis = figure.subplots()
    for index, name in enumerate(ACCURACIES):
        start = 0
        for record in records:
            label = name.replace("_", " ") if start == 0 else None
            axis.plot(start + record["epoch"], 100 * record[name], f"C{index}", label=label)
            start += record["epoch"][-1]
    for record in records[:-1]:
        axis.axvline(record["epoch"][-1], color="gray", linestyle="--", label="pruned")
    axis.set(xlabel="epochs", ylabel="accuracy (%)", ylim=(0, 102))
    axis.legend()
    return figure


def draw_progress(record: Record) -> Figure:
    """Draw against epochs how close each layer is to the window of a convolution.

    Gray lines are the means over random initial parameters.
    """
    figure = Figure((9.6, 3.0), layout="constrained")
    axes = figure.subplots(1, len(PROGRESS))
    for axis, (name, title) in zip(axes, PROGRESS.items(), strict=True):
        for layer, values in enumerate(record[name].T):
            axis.plot(record["epoch"], values, label=f"layer {layer + 1}")
        chance = record[f"chance_{name}"].mean()
        axis.axhline(chance, color="gray", linestyle="--", label="random")
        axis.set(title=title, xlabel="epochs")
        axis.set_ylim(bottom=0)
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes[-1].legend(fontsize="small")
    return figure


def save_animation(record: Record, path: Path) -> None:
    """Save the heads over training as a GIF that stays on the last frame."""
    last = len(record["epoch"]) - 1
    moments = np.unique(np.linspace(0, last, MAX_FRAMES).round().astype(int)).tolist()
    figure = draw_head_centers(record, moments[:1])
    writer = PillowWriter(fps=7)
    with writer.saving(figure, str(path), dpi=100):
        for moment in [*moments, *[last] * NUM_LAST_FRAMES]:
            figure.clear()
            draw_head_centers(record, [moment], figure)
            writer.grab_frame()
