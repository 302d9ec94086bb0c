"""Tables and a figure of the accuracy of models by number of training images."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from reproduction.study.report import format_mean, format_number, margin_of_error, write_page
from reproduction.study.results import read_results_table
from reproduction.study.study import Study
from teka.files import write_bytes
from teka.reporting.plots import line_color, to_png

LEVELS = ["data", "training", "model"]
REFERENCE = ("as published", "rotary (default)")
REFERENCE_IMAGES = 1000
QUANTITIES = {
    "accuracy": "Test images as published: accuracy (%)",
    "moved_accuracy": "Test images at random positions: accuracy (%)",
    "consistency": "Same prediction for both (%)",
}
# Lines of the figure: training, model and label.
LINES = (
    (*REFERENCE, "rotary (default)"),
    ("as published", "absolute", "absolute positions"),
    ("random shifts", "absolute", "absolute positions + shifts"),
    ("as published", "ResNet-18", "ResNet-18"),
    ("random shifts", "ResNet-18", "ResNet-18 + shifts"),
)
LABEL_DISTANCE = 4  # between the labels of two lines, in percent
NOTES = """The tables give means over seeds ± half of the 95 % interval (Student's t).

The last table counts the training images that a model needs to be as accurate as the default model
with 1,000 images and the same seed. The counts are interpolated on a logarithmic scale. The table
gives the geometric mean over seeds, with the lowest and the highest seed in parentheses."""


def interpolate_images_needed(accuracy: pd.Series, target: float) -> float:
    """Return the number of training images with which a model reaches an accuracy.

    Args:
        accuracy: Accuracy by number of images, ascending.
        target: Accuracy to reach.

    Returns:
        The number of images, interpolated between the measured numbers. It is at least the smallest
        measured number, and infinity if the accuracy is never reached.
    """
    highest = np.maximum.accumulate(accuracy.to_numpy())
    counts = np.log(accuracy.index.to_numpy(dtype=float))
    return float(np.exp(np.interp(target, highest, counts, right=np.inf)))


def compare_images_needed(results: pd.DataFrame, quantity: str) -> pd.Series:
    """Return how many images each model needs to match the default model with 1,000 images.

    Args:
        results: Table with one row for each model.
        quantity: Name of the column with the accuracy.

    Returns:
        The numbers of images of each model, as text of `_format_geometric_mean`.
    """
    levels = ["data", "seed", "training", "model"]
    table = results.set_index([*levels, "num_images"])[quantity]
    curves = table.unstack("num_images", sort=False).sort_index(axis=1)
    needed: dict[Any, float] = {}
    for name, curve in curves.iterrows():
        reference = (*name[:2], *REFERENCE)
        if reference in curves.index and REFERENCE_IMAGES in curves:
            target = curves.loc[reference, REFERENCE_IMAGES]
            needed[name] = interpolate_images_needed(curve.dropna(), target)
    index = pd.MultiIndex.from_tuples(needed, names=levels)
    counts = pd.Series(needed.values(), index, dtype=float).dropna()
    return counts.groupby(level=LEVELS, sort=False).agg(_format_geometric_mean)


def _format_geometric_mean(counts: pd.Series) -> str:
    """Format numbers as their geometric mean, followed by the smallest and the largest one."""
    values = np.exp(np.log(counts).mean()), counts.min(), counts.max()
    texts = [format_number(value) if np.isfinite(value) else "not reached" for value in values]
    return texts[0] if len(set(texts)) == 1 else f"{texts[0]} ({texts[1]} to {texts[2]})"


def write_report(study: Study, folder: Path) -> str:
    """Write `summary.md` and `accuracy.png` about the trained models, and return the text."""
    results = read_results_table(study, folder).reset_index()
    tables = {}
    for quantity, heading in QUANTITIES.items():
        groups = results.groupby([*LEVELS, "num_images"], sort=False)[quantity]
        tables[heading] = groups.agg(format_mean).unstack(sort=False).sort_index(axis=1)
    needed = {
        "as published": compare_images_needed(results, "accuracy"),
        "at random positions": compare_images_needed(results, "moved_accuracy"),
    }
    heading = f"Images needed for the accuracy of the default at {REFERENCE_IMAGES:,}"
    tables[heading] = pd.DataFrame(needed)
    write_bytes(folder / "accuracy.png", to_png(draw_accuracies(results)))
    seconds = (
        f"CPU seconds of a training, median: {format_number(results.process_seconds.median())}."
    )
    return write_page(folder / "summary.md", study, results, tables, f"{NOTES}\n\n{seconds}")


def draw_accuracies(results: pd.DataFrame) -> Figure:
    """Draw the accuracy on moved test images by number of training images, for each data set."""
    panels = results.data.unique()
    figure = Figure((1 + 4.5 * len(panels), 4), dpi=130, layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, data in zip(axes, panels, strict=True):
        ends = []
        for index, (training, model, label) in enumerate(LINES):
            is_shown = (
                (results.data == data) & (results.training == training) & (results.model == model)
            )
            groups = results[is_shown].groupby("num_images").moved_accuracy
            if not is_shown.any():
                continue
            mean, half = 100 * groups.mean(), 100 * margin_of_error(groups)
            color = line_color(index)
            axis.errorbar(mean.index, mean, half.fillna(0), color=color, marker="o", markersize=3)
            ends.append((mean.iloc[-1], mean.index[-1], label, color))
        height = -np.inf
        # Labels of lines that end close together are moved up, so that they do not overlap.
        for accuracy, num_images, label, color in sorted(ends):
            height = max(accuracy, height + LABEL_DISTANCE)
            position = (1.1 * num_images, height)
            text = axis.annotate(label, position, color=color, fontsize=8, va="center")
            text.set_in_layout(False)
        axis.set(title=data, xscale="log", xlabel="training images", xlim=(80, 900_000))
        axis.grid(axis="y", color="#dfe3e8")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("accuracy on moved test images (%)")
    return figure
