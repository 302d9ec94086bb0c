"""Tables and a plot of the accuracy against the number of training images."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import gmean

from reproduction.study.results import read_results_table
from reproduction.study.study import Study
from reproduction.study.summary_page import (
    compute_margin_of_error,
    format_mean_percentage,
    format_number,
    write_results_page,
)
from teka.reporting.plots import line_color

LEVELS = ["data", "training", "model"]
REFERENCE = ("as published", "rotary (default)")
REFERENCE_IMAGES = 1000
QUANTITIES = {
    "accuracy": "Test images as published: accuracy (%)",
    "moved_accuracy": "Test images at random positions: accuracy (%)",
    "consistency": "Same prediction for both (%)",
}
# Training method and model of each line in the plot.
LINES = (
    REFERENCE,
    ("as published", "absolute"),
    ("random shifts", "absolute"),
    ("as published", "ResNet-18"),
    ("random shifts", "ResNet-18"),
)
NOTES = """Percentages are means over seeds. With several seeds, ± is followed by
half of the 95 % interval of the mean (Student's t).

The last table gives the number of training images that a model needs to be as accurate as the
default model with 1,000 images and the same seed. The number is interpolated between the measured
numbers of images on a logarithmic scale, and averaged over seeds (geometric mean)."""


def estimate_images_needed(accuracy: pd.Series, target: float) -> float:
    """Estimate how many training images a model needs to reach a target accuracy.

    Args:
        accuracy: Accuracy for each number of training images, in ascending order.
        target: Accuracy to reach.

    Returns:
        The number of images, interpolated between the measured numbers. It is at least the smallest
        measured number, and infinity if the target is never reached.
    """
    highest = np.maximum.accumulate(accuracy.to_numpy())
    counts = np.log(accuracy.index.to_numpy(dtype=float))
    return float(np.exp(np.interp(target, highest, counts, right=np.inf)))


def estimate_images_needed_by_model(results: pd.DataFrame, accuracy_column: str) -> pd.Series:
    """Estimate how many training images each model needs to match the default model.

    The target is the default model's accuracy with 1,000 images and the same seed.

    Args:
        results: Table with one row for each trained model.
        accuracy_column: Name of the column with the accuracy.

    Returns:
        For each model, the geometric mean over seeds, formatted as text.
    """
    index = ["data", "seed", "training", "model"]
    table = results.set_index([*index, "num_images"])[accuracy_column]
    curves = table.unstack("num_images", sort=False).sort_index(axis=1)
    targets = {
        name[:2]: curve.get(REFERENCE_IMAGES, np.nan)
        for name, curve in curves.iterrows()
        if name[2:] == REFERENCE
    }
    needed = pd.Series(
        {
            name: estimate_images_needed(curve.dropna(), targets.get(name[:2], np.nan))
            for name, curve in curves.iterrows()
        }
    )
    means = needed.dropna().rename_axis(index).groupby(level=LEVELS, sort=False).agg(gmean)
    means = means.replace(np.inf, np.nan)
    return means.map(format_number, na_action="ignore").fillna("not reached")


def write_sample_efficiency_page(study: Study, folder: Path) -> str:
    """Write `summary.md` and `accuracy.png`, which compare the accuracy of the trained models.

    Return the text of the page `summary.md`.
    """
    results = read_results_table(study, folder).reset_index()
    tables = {}
    for quantity, heading in QUANTITIES.items():
        groups = results.groupby([*LEVELS, "num_images"], sort=False)[quantity]
        tables[heading] = groups.agg(format_mean_percentage).unstack(sort=False).sort_index(axis=1)
    heading = f"Images needed for the accuracy of the default at {REFERENCE_IMAGES:,}"
    tables[heading] = pd.DataFrame(
        {
            "as published": estimate_images_needed_by_model(results, "accuracy"),
            "at random positions": estimate_images_needed_by_model(results, "moved_accuracy"),
        }
    )
    draw_accuracies(results).savefig(folder / "accuracy.png")
    seconds = format_number(results.process_seconds.median())
    notes = f"{NOTES}\n\nThe median training run took {seconds} CPU seconds."
    return write_results_page(folder / "summary.md", study, results, tables, notes)


def draw_accuracies(results: pd.DataFrame) -> Figure:
    """Plot the accuracy on shifted test images against the number of training images."""
    panels = results.groupby("data", sort=False)
    figure = Figure((5 * len(panels), 4), dpi=130, layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (data, panel) in zip(axes, panels, strict=True):
        for index, (training, model) in enumerate(LINES):
            rows = panel[(panel.training == training) & (panel.model == model)]
            groups = rows.groupby("num_images").moved_accuracy
            mean, half = 100 * groups.mean(), 100 * compute_margin_of_error(groups).fillna(0)
            label = f"{model}, {training}"
            color = line_color(index)
            axis.errorbar(
                mean.index, mean, half, label=label, color=color, marker="o", markersize=3
            )
        axis.set(title=data, xscale="log", xlabel="training images")
        axis.set_ylabel("accuracy on moved test images (%)")
        axis.legend(fontsize="x-small")
    return figure
