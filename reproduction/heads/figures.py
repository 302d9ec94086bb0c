"""Figures of where the attention heads of a network attend, and the command `heads`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from reproduction.heads.attention_patterns import RESEMBLANCE_METRICS, compute_attention_maps
from reproduction.heads.prune import require_self_attention_network
from reproduction.heads.record import HEADS_FILE
from teka.files import make_directory
from teka.training import restore
from teka.training.checkpoint import CHECKPOINTS, LAST, load_weights

Record = Mapping[str, NDArray]  # content of the file of a `HeadRecorder`
NUM_IMAGES = 100


def plot_heads(run: Path, /, *, out: Path | None = None, data_dir: str | None = None) -> None:
    """Plot which tokens the attention heads of a self_attention network attend to.

    The first figure shows how the attention centers move during training, and the second figure
    shows attention maps. A table shows how closely the heads resemble a convolution, for example
    how many offsets of a 3 × 3 window they attend to.

    Args:
        run: Folder of a finished run.
        out: Folder for the figures, by default heads/ in the folder of the run.
        data_dir: Folder with the files of the data set.
    """
    trained = restore(run, data_dir=data_dir)
    model = require_self_attention_network(trained)
    record = dict(np.load(run / HEADS_FILE, allow_pickle=False))
    # The record ends with the last epoch, which need not be the best one.
    load_weights(model, run / CHECKPOINTS / LAST)
    maps = compute_attention_maps(model, trained.dataset.test.images[:NUM_IMAGES])
    folder = make_directory("out", out or run / "heads")
    draw_attention_centers(record).savefig(folder / "head_centers.png")
    draw_attention_maps(maps).savefig(folder / "attention_maps.png")
    print("Attention before → after training (mean over random initializations):")
    print(make_resemblance_table(record).to_string(), f"written: {folder}", sep="\n\n")


def make_resemblance_table(record: Record) -> pd.DataFrame:
    """Return a table of how closely the heads of each layer resemble a convolution.

    The columns are the metrics of `measure_resemblance_to_convolution`. An entry such as
    "1 → 9 (2.3)" gives the value before training, the value after training and, in parentheses, the
    mean over random initializations.
    """
    table = pd.DataFrame(index=pd.RangeIndex(1, record["layer"].max() + 2, name="layer"))
    for name in RESEMBLANCE_METRICS:
        rows = zip(record[name][0], record[name][-1], record[f"chance_{name}"], strict=True)
        table[name] = [f"{first:.3g} → {last:.3g} ({chance:.3g})" for first, last, chance in rows]
    return table


def draw_attention_centers(record: Record) -> Figure:
    """Draw how the center of each head's attention moves during training.

    Each panel shows one layer. The gray frame is the image, and the black square is the query. A
    colored line is the path of one head's center, and the head's number marks the end of training.
    The center is that of the Gaussian if the attention is a Gaussian, and otherwise the mean offset
    weighted by the attention.

    Source: Cordonnier et al. 2020, Figures 3 and 7.
    """
    num_layers = record["layer"].max() + 1
    figure = Figure((2.2 * num_layers, 2.4), layout="constrained")
    height, width = record["grid"]
    row, column = height // 2, width // 2
    centers = record["center"] if np.isfinite(record["center"]).all() else record["mean"]
    for layer, axis in enumerate(figure.subplots(1, num_layers, squeeze=False)[0]):
        axis.add_patch(
            Rectangle((-column - 0.5, -row - 0.5), width, height, fill=False, color="gray")
        )
        axis.add_patch(Rectangle((-0.5, -0.5), 1, 1, color="black"))
        paths = centers[:, record["layer"] == layer].transpose(1, 2, 0)
        for head, (rows, columns) in enumerate(paths):
            axis.plot(columns, rows, color=f"C{head}")
            axis.text(columns[-1], rows[-1], str(head + 1), color=f"C{head}", clip_on=True)
        axis.set(title=f"layer {layer + 1}", xticks=[], yticks=[], aspect="equal")
        axis.set(xlim=(-1.5 * column, 1.5 * column), ylim=(1.5 * row, -1.5 * row))
    return figure


def draw_attention_maps(maps: Sequence[NDArray]) -> Figure:
    """Draw one query's attention weights as an image for each layer and head.

    A black frame marks the query. White is a weight of 0, and the darkest blue is the head's
    largest weight, which is printed below the image.

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
