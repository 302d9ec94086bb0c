"""Tables and a figure of accuracy against the number of training images."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from reproduction.sample_efficiency.train import read_cells
from reproduction.study.report import format_mean, half_width, to_markdown
from reproduction.study.study import Study
from teka.errors import wrong_value
from teka.files import write_bytes
from teka.reporting.formatting import significant
from teka.reporting.plots import line_color, to_png

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
NOTES = """Means over seeds ± half of the 95 % interval (Student's t). The last table has the
number of training images with which a model reaches the accuracy of the default at 1,000 images of
the same seed, interpolated on a logarithmic scale: the geometric mean over seeds, and the lowest
and highest seed."""


def read_table(study: Study, folder: Path) -> pd.DataFrame:
    """Return the finished cells as rows, in the order of the study.

    Raises:
        ValueError: The folder has no finished cells.
    """
    saved = read_cells(folder)
    rows = [saved[cell.name] for cell in study.cells() if cell.name in saved]
    if not rows:
        raise wrong_value("out", str(folder), "a folder with finished cells")
    return pd.DataFrame(rows)


def images_needed(accuracy: pd.Series, target: float) -> float:
    """Return the number of training images with which a model reaches an accuracy.

    Args:
        accuracy: Accuracy by number of images, ascending.
        target: Accuracy to reach.

    Returns:
        The number, or infinity if no number is large enough. The smallest number of images if it
        is enough.
    """
    highest = np.maximum.accumulate(accuracy.to_numpy())
    counts = np.log(accuracy.index.to_numpy(dtype=float))
    return float(np.exp(np.interp(target, highest, counts, right=np.inf)))


def images_table(cells: pd.DataFrame, quantity: str) -> pd.Series:
    """Return the images that every model needs to reach the default at 1,000 images, as text."""
    needed: dict[tuple[str, str, str], list[float]] = {}
    for (data, _), group in cells.groupby(["data", "seed"], sort=False):
        curves = group.pivot_table(quantity, "num_images", ["training", "model"], sort=False)
        if REFERENCE not in curves or REFERENCE_IMAGES not in curves.index:
            continue
        target = curves.loc[REFERENCE_IMAGES, REFERENCE]
        for key, curve in curves.items():
            count = images_needed(curve.dropna().sort_index(), target)
            needed.setdefault((str(data), *key), []).append(count)
    texts = {key: _format_counts(counts) for key, counts in needed.items()}
    return pd.Series(texts, dtype=object).rename_axis(["data", "training", "model"])


def _format_counts(counts: list[float]) -> str:
    """Return the geometric mean of numbers of images, the smallest and the largest, as text."""
    values = (np.exp(np.mean(np.log(counts))), min(counts), max(counts))
    mean, lowest, highest = (
        significant(value) if np.isfinite(value) else "not reached" for value in values
    )
    return f"{mean} ({lowest} to {highest})"


def write_report(study: Study, folder: Path) -> str:
    """Write `summary.md` and `accuracy.png` of the finished cells, and return the tables."""
    cells = read_table(study, folder)
    parts = [f"# {study.name}", study.description.strip()]
    for quantity, heading in QUANTITIES.items():
        groups = cells.groupby(["data", "training", "model", "num_images"], sort=False)[quantity]
        table = groups.agg(format_mean).unstack(sort=False).sort_index(axis=1)
        parts += [f"## {heading}", to_markdown(table)]
    needed = pd.DataFrame({name: images_table(cells, name) for name in list(QUANTITIES)[:2]})
    needed.columns = ["as published", "at random positions"]
    parts += [f"## Images needed for the accuracy of the default at {REFERENCE_IMAGES:,}"]
    parts += [to_markdown(needed), NOTES, describe(study, cells)]
    text = "\n\n".join(parts)
    write_bytes(folder / "summary.md", f"{text}\n".encode())
    write_bytes(folder / "accuracy.png", to_png(draw(cells)))
    return text


def describe(study: Study, cells: pd.DataFrame) -> str:
    """Describe the progress, the time and the hardware of the finished cells."""
    seconds = cells.process_seconds.agg(["median", "min", "max"]).round()
    hardware = ", ".join(sorted(set(cells.hardware)))
    return (
        f"{len(cells)} of {len(study.cells())} runs finished. CPU seconds of a training: "
        f"{seconds['median']:.0f} ({seconds['min']:.0f} to {seconds['max']:.0f}); {hardware}; "
        f"PyTorch {', '.join(sorted(set(cells.torch)))}."
    )


def draw(cells: pd.DataFrame) -> Figure:
    """Draw the accuracy on moved test images in one panel per data set, with 95 % intervals."""
    panels = cells.data.unique()
    figure = Figure((1 + 4.5 * len(panels), 4), dpi=130, layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, data in zip(axes, panels, strict=True):
        for index, (training, model, label) in enumerate(LINES):
            is_shown = (cells.data == data) & (cells.training == training) & (cells.model == model)
            groups = cells[is_shown].groupby("num_images").moved_accuracy
            if not is_shown.any():
                continue
            mean, half = 100 * groups.mean(), 100 * half_width(groups)
            color = line_color(index)
            axis.errorbar(mean.index, mean, half.fillna(0), color=color, marker="o", markersize=3)
            end = (mean.index[-1], mean.iloc[-1])
            axis.annotate(label, end, (6, -3), textcoords="offset points", color=color, fontsize=8)
        axis.set(title=data, xscale="log", xlabel="training images", xlim=(80, 900_000))
        axis.grid(axis="y", color="#dfe3e8")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("accuracy on moved test images (%)")
    return figure
