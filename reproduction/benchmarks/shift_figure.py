"""Script that draws the README's figure: the accuracy of three models on shifted test images.

    python reproduction/benchmarks/shift_figure.py

The script reads reproduction/benchmarks/demo_report.json, which `teka demo` has written, and
writes docs/images/shift.png.
"""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from teka.files import read_json

ROOT = Path(__file__).parents[2]
# Name in the report, label in the figure, shift at which the label is placed, and color.
LINES = (
    ("rotary, squared_relu", "relative positions (teka)", 4, "#0072B2"),
    ("rotary, squared_relu, strided", "the same after an ordinary stride of 2", 3, "#6b7280"),
    ("absolute, squared_relu", "absolute positions", 4, "#D55E00"),
)


def main() -> None:
    """Plot each model's accuracy against the vertical shift, with the mean and range over seeds."""
    models = read_json(Path(__file__).with_name("demo_report.json"))["models"]
    figure = Figure(figsize=(7.5, 3), dpi=160, layout="constrained")
    axes = figure.subplots()
    for name, label, label_step, color in LINES:
        curves = [model["accuracy_by_shift"]["dy"] for model in models if model["name"] == name]
        accuracy = (100 * pd.DataFrame(curves)).rename(columns=int).sort_index(axis=1)
        means = accuracy.mean()
        axes.fill_between(
            accuracy.columns, accuracy.min(), accuracy.max(), color=color, alpha=0.2, linewidth=0
        )
        axes.plot(means, color=color, marker="o", markersize=4)
        axes.annotate(
            label,
            (label_step, means[label_step]),
            (10, -4),
            textcoords="offset points",
            color=color,
        )
    axes.set(xlabel="vertical shift of the test images (pixels)", ylabel="accuracy (%)")
    axes.set(xticks=range(-4, 5), ylim=(0, 103), xlim=(-4.2, 4.2))
    axes.grid(axis="y", color="#dfe3e8")
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(ROOT / "docs" / "images" / "shift.png")


if __name__ == "__main__":
    main()
