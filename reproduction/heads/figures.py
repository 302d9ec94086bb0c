"""Figures and a table that show where the attention heads of a network attend."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from reproduction.heads.measure import LAYER_NUMBERS

Record = Mapping[str, NDArray]  # of `load_head_record`
# Shares of a Gaussian within the ellipses, and their line styles.
SHARES = {0.5: "-", 0.9: ":"}
ANGLES = np.linspace(0, 2 * np.pi, 121)
CIRCLE = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=-1)


def compare_layers(record: Record) -> pd.DataFrame:
    """Compare the attention of each layer before and after training, and with random parameters.

    A cell of the table, such as "1 → 9 (2.3)", gives the value before training, the value after
    training, and the mean over random parameters. The columns are those of `summarize_layer`.
    """
    table = pd.DataFrame(index=pd.RangeIndex(1, record["layer"].max() + 2, name="layer"))
    for name in LAYER_NUMBERS:
        rows = zip(record[name][0], record[name][-1], record[f"chance_{name}"], strict=True)
        table[name] = [f"{first:.3g} → {last:.3g} ({chance:.3g})" for first, last, chance in rows]
    return table


def draw_centers_of_heads(record: Record) -> Figure:
    """Draw to which part of the image each attention head attends, before and after training.

    Each panel shows one layer. The gray frame is the image, and the black square is the query. The
    number of a head is at the center of its Gaussian, or at the mean of its attention for other
    kernels. A line shows how the center moved during training. Ellipses contain 50 % (solid) and
    90 % (dotted) of a Gaussian with the covariance of the attention.

    Source: Cordonnier et al. 2020, Figures 2, 3, 7 and 10.
    """
    num_layers = record["layer"].max() + 1
    figure = Figure((2.2 * num_layers, 4.8), layout="constrained")
    axes = figure.subplots(2, num_layers, squeeze=False)
    for layer, (start, end) in enumerate(axes.T):
        _draw_layer(start, record, 0, layer)
        _draw_layer(end, record, len(record["epoch"]) - 1, layer)
    return figure


def _draw_layer(axis: Axes, record: Record, moment: int, layer: int) -> None:
    height, width = record["grid"]
    row, column = height // 2, width // 2
    axis.add_patch(Rectangle((-column - 0.5, -row - 0.5), width, height, fill=False, color="gray"))
    axis.add_patch(Rectangle((-0.5, -0.5), 1, 1, color="black"))
    heads = record["layer"] == layer
    centers = record["center"] if np.isfinite(record["center"]).all() else record["mean"]
    paths = centers[: moment + 1, heads].swapaxes(0, 1)
    covariances = record["covariance"][moment, heads]
    for head, (path, covariance) in enumerate(zip(paths, covariances, strict=True)):
        color = f"C{head}"
        axis.plot(path[:, 1], path[:, 0], color=color, linewidth=0.8)
        y, x = path[-1]
        axis.text(x, y, str(head + 1), color=color, ha="center", va="center", clip_on=True)
        for share, line_style in SHARES.items():
            ellipse = path[-1] + ellipse_around_zero(covariance, share)
            axis.plot(ellipse[:, 1], ellipse[:, 0], color=color, linestyle=line_style)
    axis.set(
        title=f"layer {layer + 1}, epoch {record['epoch'][moment]}",
        xlim=(-1.5 * column, 1.5 * column),
        ylim=(1.5 * row, -1.5 * row),
        xticks=[],
        yticks=[],
        aspect="equal",
    )


def ellipse_around_zero(covariance: NDArray, share: float) -> NDArray:
    """Return the outline of the ellipse that contains a share of a Gaussian with mean zero."""
    # Attention to a single token has covariance 0, which has no Cholesky decomposition.
    factor = np.linalg.cholesky(covariance + 1e-9 * np.eye(2))
    return math.sqrt(-2 * math.log1p(-share)) * CIRCLE @ factor.T


def draw_attention_maps(maps: Sequence[NDArray]) -> Figure:
    """Draw the attention weights of one query as an image, for each layer and head.

    A black frame marks the query. White is a weight of 0. The darkest blue is the largest weight of
    a head, which is written below its image.

    Source: Cordonnier et al. 2020, Figure 6.
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
            height, width = image.shape
            axis.add_patch(Rectangle((width // 2 - 0.5, height // 2 - 0.5), 1, 1, fill=False))
            axis.set(title=str(head + 1), xlabel=f"{image.max():.2f}")
    return figure
