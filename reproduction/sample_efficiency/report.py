"""Tables of the accuracy of models by number of training images."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from reproduction.study.cells import read_cells
from reproduction.study.report import format_mean, format_number, write_page
from reproduction.study.study import Study

LEVELS = ["data", "training", "model"]
REFERENCE = ("as published", "rotary (default)")
REFERENCE_IMAGES = 1000
QUANTITIES = {
    "accuracy": "Test images as published: accuracy (%)",
    "moved_accuracy": "Test images at random positions: accuracy (%)",
    "consistency": "Same prediction for both (%)",
}
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


def compare_images_needed(cells: pd.DataFrame, quantity: str) -> pd.Series:
    """Return how many images each model needs to match the default model with 1,000 images.

    Args:
        cells: Table with one row for each model.
        quantity: Name of the column with the accuracy.

    Returns:
        The numbers of images of each model, as text of `_format_geometric_mean`.
    """
    levels = ["data", "seed", "training", "model"]
    table = cells.set_index([*levels, "num_images"])[quantity]
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
    """Write tables of the trained models to `summary.md`, and return the text."""
    cells = read_cells(study, folder).reset_index()
    tables = {}
    for quantity, heading in QUANTITIES.items():
        groups = cells.groupby([*LEVELS, "num_images"], sort=False)[quantity]
        tables[heading] = groups.agg(format_mean).unstack(sort=False).sort_index(axis=1)
    needed = {
        "as published": compare_images_needed(cells, "accuracy"),
        "at random positions": compare_images_needed(cells, "moved_accuracy"),
    }
    heading = f"Images needed for the accuracy of the default at {REFERENCE_IMAGES:,}"
    tables[heading] = pd.DataFrame(needed)
    seconds = f"CPU seconds of a training, median: {format_number(cells.process_seconds.median())}."
    return write_page(folder / "summary.md", study, cells, tables, f"{NOTES}\n\n{seconds}")
