"""How heads and accuracy went, epoch by epoch."""

from typing import TYPE_CHECKING

import numpy as np

from teka.audit.page.direct_labels import LineLabel, label_lines, stretch_for
from teka.audit.page.require import require
from teka.experiments.study.report.plot import COLOURS, DASHES, INK, MARKERS, PALE, dress_panel, make_figure
from teka.training.heads.record import HeadRecord

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

ACCURACIES = (("held-out images", "validation_accuracy"), ("training images", "train_accuracy"))
PANELS = (
    ("window_3", "offsets of 3 × 3 taken"),
    ("local", "heads that look at one place"),
    ("spread", "spread (tokens, median)"),
)
MARKED = 12
"""Points up to which a line has markers."""


def draw_head_accuracy(record: HeadRecord) -> "matplotlib.figure.Figure | None":
    """Draw accuracy against epochs, on training and on held-out images; None where none was measured.

    Source: Cordonnier et al. 2020, Figures 4 and 8.

    Args:
        record: The heads, with the accuracies of their training.

    Returns:
        A figure that belongs to no window and no global state.

    Raises:
        ImportError: matplotlib is not installed.
    """
    require("matplotlib")
    curves = {name: getattr(record, key) for name, key in ACCURACIES}
    curves = {name: curve for name, curve in curves.items() if np.isfinite(curve).any()}
    if not curves:
        return None
    figure = make_figure(6.4, 3.0)
    panel = figure.subplots()
    labels = []
    for index, (name, curve) in enumerate(curves.items()):
        known = np.isfinite(curve)
        epochs, percents = record.epoch[known], 100 * curve[known]
        _draw_line(panel, epochs, percents, index)
        labels.append(LineLabel(name, COLOURS[index], float(epochs[-1]), float(percents[-1])))
    panel.set_ylim(0, 102)
    panel.set_ylabel("accuracy (%)", fontsize=9, color=INK)
    _name_epochs(panel)
    dress_panel(panel, "", "y")
    label_lines(panel, labels, INK)
    return figure


def draw_head_progress(record: HeadRecord) -> "matplotlib.figure.Figure":
    """Draw against epochs how near the heads of each layer are to the grid of a convolution's window.

    The grey line is what random initial parameters give, in the mean over 200 draws and the layers.

    Args:
        record: The heads.

    Returns:
        A figure that belongs to no window and no global state.

    Raises:
        ImportError: matplotlib is not installed.
    """
    require("matplotlib")
    ends = record.numbers[PANELS[-1][0]][-1]
    labels = [
        LineLabel(f"layer {layer + 1}", COLOURS[layer % len(COLOURS)], float(record.epoch[-1]), float(end))
        for layer, end in enumerate(ends)
    ]
    chance = float(record.chance[PANELS[-1][0]].mean())
    labels.append(LineLabel("random start", PALE, float(record.epoch[-1]), chance))
    stretch = stretch_for([label.name for label in labels])
    figure = make_figure(9.6, 2.9 * stretch)
    panels = list(figure.subplots(1, len(PANELS)))
    for panel, (name, title) in zip(panels, PANELS, strict=True):
        for layer, line in enumerate(record.numbers[name].T):
            _draw_line(panel, record.epoch, line, layer)
        panel.axhline(float(record.chance[name].mean()), color=PALE, linestyle=(0, (2, 2)), linewidth=1.2)
        top = {"window_3": 9.0, "local": float(record.numbers["heads"].max())}.get(name)
        panel.set_ylim(0, None if top is None else 1.04 * top)
        _name_epochs(panel)
        dress_panel(panel, title, "y")
    label_lines(panels[-1], labels, INK, stretch)
    return figure


def _draw_line(panel: "matplotlib.axes.Axes", epochs: np.ndarray, values: np.ndarray, index: int) -> None:
    panel.plot(
        epochs, values, color=COLOURS[index % len(COLOURS)], linestyle=DASHES[index % len(DASHES)], linewidth=1.6,
        marker=MARKERS[index % len(MARKERS)] if len(epochs) <= MARKED else None, markersize=4,
        markeredgecolor="white", markeredgewidth=0.4,
    )  # fmt: skip


def _name_epochs(panel: "matplotlib.axes.Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    panel.set_xlabel("epochs", fontsize=9, color=INK)
    panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))
