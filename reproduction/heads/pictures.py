"""Heads as pictures: centers with ellipses, attention maps, how they went over training, and as a moving picture."""

import io
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from reproduction.heads.record import HeadRecord
from teka.errors import require
from teka.reporting.charts import (
    LineLabel,
    draw_line,
    dress_panel,
    label_lines,
    make_figure,
    stretch_for,
)
from teka.reporting.style import GRID, INK, PALE, line_style

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure
    from PIL.Image import Image

SHADES = ("#ffffff", "#cfe3f2", "#7fb4da", "#0072B2", "#10304a")
PANEL = 2.15  # inches of a layer's panel
CELL = 0.82  # inches of a map
COLUMNS = 6
SHARES = ((0.9, ":", 0.9), (0.5, "-", 1.4))
"""Shares of a Gaussian within its ellipses, with the style and the width of their lines."""
BEYOND = 0.25  # how far outside the image centers are shown, as a share of its sides
ACCURACIES = (("held-out images", "validation_accuracy"), ("training images", "train_accuracy"))
PANELS = (
    ("window_3", "offsets of 3 × 3 taken"),
    ("local", "heads that look at one place"),
    ("spread", "spread (tokens, median)"),
)
MARKED = 12  # points up to which a line has markers
FRAMES, FRAME_DPI = 30, 110
FRAME_COLOURS, NEARLY_WHITE = 64, 240
FRAME_MILLISECONDS, LAST_MILLISECONDS = 150, 2500


def draw_head_centers(record: HeadRecord, moments: Sequence[int]) -> "matplotlib.figure.Figure":
    """Draw the heads of every layer at some moments, one below another (Cordonnier et al. 2020, Figures 2, 3, 7, 10).

    The frame is the image as the query, the black square, sees it. Ellipses hold 50 % (solid) and 90 % (dotted) of a
    Gaussian with the head's center and covariance; a line leads from where it was at first.
    """
    columns = min(record.num_layers, COLUMNS)
    lines = math.ceil(record.num_layers / columns)
    height, width = record.grid
    figure = make_figure(
        PANEL * columns + 0.1, (PANEL * height / width + 0.3) * lines * len(moments) + 0.1
    )
    panels = figure.subplots(lines * len(moments), columns, squeeze=False).reshape(len(moments), -1)
    for moment, own in zip(moments, panels, strict=True):
        for layer, panel in enumerate(own):
            if layer < record.num_layers:
                _draw_layer(panel, record, moment, layer)
            else:
                panel.set_axis_off()
    return figure


def ellipse(
    center: NDArray[np.floating], covariance: NDArray[np.floating], share: float
) -> NDArray[np.floating]:
    """Points of the ellipse that holds a share of a Gaussian: {Δ + √(−2 ln(1 − share)) Σ^½ u : ‖u‖ = 1}."""
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
    (top, left), (bottom, right) = low - margin, high + margin
    panel.set(xlim=(left, right), ylim=(bottom, top), aspect="equal")
    panel.vlines(np.arange(low[1], high[1] + 1), low[0], high[0], color=GRID, linewidth=0.5)
    panel.hlines(np.arange(low[0], high[0] + 1), low[1], high[1], color=GRID, linewidth=0.5)
    panel.add_patch(
        Rectangle((low[1], low[0]), columns, rows, fill=False, edgecolor=PALE, linewidth=0.9)
    )
    panel.add_patch(Rectangle((-0.5, -0.5), 1, 1, color="black", linewidth=0, zorder=3))
    chosen = record.layer == layer
    path, shapes = record.middles[: moment + 1, chosen], record.shapes(moment)[chosen]
    outside = 0
    for head, (places, covariance) in enumerate(zip(path.swapaxes(0, 1), shapes, strict=True)):
        colour, center = line_style(head).colour, places[-1]
        for share, dashes, linewidth in SHARES:
            points = ellipse(center, covariance, share)
            panel.plot(
                points[:, 1], points[:, 0], color=colour, linestyle=dashes, linewidth=linewidth
            )
        panel.plot(places[:, 1], places[:, 0], color=colour, linewidth=0.8, alpha=0.7)
        if (center < low - margin).any() or (center > high + margin).any():
            outside += 1
            continue
        panel.text(
            center[1], center[0], str(head + 1), color=colour, fontsize=7, fontweight="bold", ha="center", va="center",
            path_effects=[withStroke(linewidth=2.0, foreground="white")], zorder=5,
        )  # fmt: skip
    if outside:
        panel.set_xlabel(
            f"{outside} {'center' if outside == 1 else 'centers'} outside", fontsize=8, color=INK
        )
    panel.set_title(f"layer {layer + 1}, {record.when(moment)}", fontsize=9, color=INK)
    panel.set(xticks=[], yticks=[])
    panel.spines[:].set_visible(False)


def draw_attention_maps(
    maps: Sequence[NDArray[np.floating]], query: tuple[int, int]
) -> "matplotlib.figure.Figure":
    """Draw the weights that a token gives to all tokens, by layer and head (Cordonnier et al. 2020, Figure 6)."""
    most = max(len(layer) for layer in maps)
    _, rows, columns = maps[0].shape
    figure = make_figure(CELL * most + 0.5, (CELL * rows / columns + 0.2) * len(maps) + 0.3)
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle

    shades = LinearSegmentedColormap.from_list("weights", SHADES)
    panels = figure.subplots(len(maps), most, squeeze=False)
    for layer, (line, weights) in enumerate(zip(panels, maps, strict=True)):
        for head, panel in enumerate(line):
            if head >= len(weights):
                panel.set_axis_off()
                continue
            panel.imshow(
                weights[head],
                cmap=shades,
                vmin=0,
                vmax=weights[head].max(),
                interpolation="nearest",
            )
            square = Rectangle(
                (query[1] - 0.5, query[0] - 0.5), 1, 1, fill=False, edgecolor="black", linewidth=1.4
            )
            panel.add_patch(square)
            panel.set(xticks=[], yticks=[])
            panel.spines[:].set_color("#c3c9d1")
            panel.set_xlabel(f"{weights[head].max():.2f}", fontsize=7, color=INK, labelpad=1.5)
            if layer == 0 or len(maps[layer - 1]) <= head:
                panel.set_title(
                    str(head + 1),
                    fontsize=8,
                    color=line_style(head).colour,
                    fontweight="bold",
                    pad=3,
                )
        line[0].set_ylabel(f"layer {layer + 1}", fontsize=8.5, color=INK)
    return figure


def draw_head_accuracy(
    record: HeadRecord, before: HeadRecord | None = None
) -> "matplotlib.figure.Figure | None":
    """Draw accuracy against epochs, where it was measured, after that before pruning, if any.

    Source: Cordonnier et al. 2020, Figures 4 and 8.
    """
    pruned_at = 0.0 if before is None else float(before.epoch[-1])
    curves = {
        name: curve for name, key in ACCURACIES if np.isfinite(curve := getattr(record, key)).any()
    }
    if not curves:
        return None
    figure = make_figure(6.4, 3.0)
    panel = figure.subplots()
    labels = []
    for index, (name, curve) in enumerate(curves.items()):
        known = np.isfinite(curve)
        _draw_line(panel, pruned_at + record.epoch[known], 100 * curve[known], index)
        ends = pruned_at + float(record.epoch[known][-1]), float(100 * curve[known][-1])
        labels.append(LineLabel(name, line_style(index).colour, *ends))
        if before is not None:
            earlier = getattr(before, dict(ACCURACIES)[name])
            known = np.isfinite(earlier)
            _draw_line(panel, before.epoch[known], 100 * earlier[known], index)
    if before is not None:
        panel.axvline(pruned_at, color=PALE, linestyle=(0, (2, 2)), linewidth=1.2)
        panel.annotate(
            "pruned",
            (pruned_at, 4),
            xytext=(4, 0),
            textcoords="offset points",
            fontsize=8,
            color=INK,
        )
    panel.set_ylim(0, 102)
    panel.set_ylabel("accuracy (%)", fontsize=9, color=INK)
    _dress(panel, "")
    label_lines(panel, labels)
    return figure


def draw_head_progress(record: HeadRecord) -> "matplotlib.figure.Figure":
    """Draw against epochs how near the heads of each layer are to a window of a convolution; chance is grey."""
    end, last = float(record.epoch[-1]), PANELS[-1][0]
    ends = enumerate(record.numbers[last][-1].tolist())
    labels = [
        LineLabel(f"layer {layer + 1}", line_style(layer).colour, end, value)
        for layer, value in ends
    ]
    labels.append(LineLabel("random start", PALE, end, float(record.chance[last].mean())))
    stretch = stretch_for([label.name for label in labels])
    figure = make_figure(9.6, 2.9 * stretch)
    panels = list(figure.subplots(1, len(PANELS)))
    for panel, (name, title) in zip(panels, PANELS, strict=True):
        for layer, line in enumerate(record.numbers[name].T):
            _draw_line(panel, record.epoch, line, layer)
        panel.axhline(
            float(record.chance[name].mean()), color=PALE, linestyle=(0, (2, 2)), linewidth=1.2
        )
        top = {"window_3": 9.0, "local": float(record.numbers["heads"].max())}.get(name)
        panel.set_ylim(0, None if top is None else 1.04 * top)
        _dress(panel, title)
    label_lines(panels[-1], labels, stretch)
    return figure


def _draw_line(
    panel: "matplotlib.axes.Axes", epochs: np.ndarray, values: np.ndarray, index: int
) -> None:
    style = line_style(index)
    draw_line(
        panel, style if len(epochs) <= MARKED else style._replace(marker=""), epochs, values, size=4
    )


def _dress(panel: "matplotlib.axes.Axes", title: str) -> None:
    """Epochs as whole numbers along a panel."""
    from matplotlib.ticker import MaxNLocator

    dress_panel(panel, title, "y")
    panel.set_xlabel("epochs", fontsize=9, color=INK)
    panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def choose_moments(record: HeadRecord, count: int = FRAMES) -> list[int]:
    """Moments at equal distances, with both ends, or all where they are few."""
    last = len(record.epoch) - 1
    return sorted({round(place) for place in np.linspace(0, last, min(count, last + 1))})


def draw_frames(
    record: HeadRecord, moments: Sequence[int], progress: Callable[[int, int], object] | None = None
) -> "list[Image]":
    """The picture of the heads at each moment, in few colours; `progress` is called with those done and of all."""
    require("PIL", "reports need", "teka[report]")
    from PIL import Image

    frames = []
    for moment in moments:
        buffer = io.BytesIO()
        draw_head_centers(record, [moment]).savefig(buffer, format="png", dpi=FRAME_DPI)
        frames.append(Image.open(buffer, formats=["PNG"]).convert("RGB"))  # our own
        if progress is not None:
            progress(len(frames), len(moments))
    # The same palette in all, so that what stands still does not flicker; what is nearly white is paper.
    palette = frames[-1].quantize(FRAME_COLOURS)
    triples = np.array(palette.getpalette(), dtype=np.uint8).reshape(-1, 3)
    triples[(triples >= NEARLY_WHITE).all(axis=1)] = 255
    palette.putpalette(triples.tobytes())
    return [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]


def encode_frames(frames: "Sequence[Image]", format: Literal["PNG", "GIF"]) -> bytes:
    """The only frame as a PNG, or the frames as a GIF that repeats, and stays on the last for a while."""
    durations = [*[FRAME_MILLISECONDS] * (len(frames) - 1), LAST_MILLISECONDS]
    moving = {"save_all": True, "append_images": frames[1:], "duration": durations, "loop": 0}
    buffer = io.BytesIO()
    frames[0].save(buffer, format, optimize=True, **(moving if format == "GIF" else {}))
    return buffer.getvalue()
