"""The shift curve: accuracy against shift, one panel for each axis, one line for each model."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from teka.audit.page.direct_labels import LineLabel, label_lines, stretch_for
from teka.audit.page.notation import signed
from teka.audit.page.require import require
from teka.errors import unknown_name
from teka.files import write_bytes
from teka.training.report.model_result import AXES
from teka.training.report.results import Report

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

LAYOUTS = ("beside", "stacked")
"""Panels beside each other for a wide page, or stacked for a narrow one."""

# Okabe and Ito's colours, which colour-blind readers tell apart, but for the two that are pale on white; the markers
# and dashes repeat the difference for those who see or print no colour.
STYLES = (
    ("#D55E00", "o", "-"),
    ("#0072B2", "s", "-"),
    ("#009E73", "^", (0, (3, 2))),
    ("#000000", "D", (0, (1, 1.2))),
    ("#CC79A7", "v", (0, (5, 1, 1, 1, 1, 1))),
    ("#7A6A00", "P", (0, (8, 2))),
)
INK, GRID = "#1c2430", "#dfe3e8"
DIRECTIONS = {"dx": "shift to the right, dx (pixels)", "dy": "shift downwards, dy (pixels)"}


def draw_shift_curve(report: Report, *, layout: Literal["beside", "stacked"] = "beside") -> "matplotlib.figure.Figure":
    """Draw accuracy against shift, the mean over seeds of each model, with its band.

    The band spans the lowest and highest accuracy over seeds; for a single seed it is the Wilson interval, if known.
    Lines are labelled at their ends when the panels are beside each other, by a legend when they are stacked.

    Args:
        report: The results.
        layout: "beside" or "stacked".

    Returns:
        A figure that belongs to no window and no global state.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: The layout is unknown.
    """
    if layout not in LAYOUTS:
        raise unknown_name("layout", layout, LAYOUTS)
    require("matplotlib")
    from matplotlib.figure import Figure

    axes = [axis for axis in AXES if report.shifts(axis)]
    rows, columns = (len(axes), 1) if layout == "stacked" else (1, len(axes))
    stretch = stretch_for([label.name for label in _labels(report, axes[-1])])
    size = (4.2, 0.8 + 2.6 * rows) if layout == "stacked" else (2.0 + 4.0 * columns, 4.0 * stretch)
    figure = Figure(figsize=size, dpi=150, layout="constrained", facecolor="white")
    panels = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
    for panel, axis in zip(panels, axes, strict=True):
        _draw_panel(panel, report, axis)
        if panel is panels[0] or layout == "stacked":
            panel.set_ylabel("accuracy (%)", color=INK)
    if layout == "stacked":
        # The space keeps names that begin with an underscore in the legend, which leaves them out otherwise.
        names = [f" {group.name}" for group in report.groups]
        legend = figure.legend(
            panels[0].get_lines(), names, loc="outside upper left", frameon=False, fontsize=9, handlelength=3.2
        )
        for text in legend.get_texts():
            text.set_parse_math(False)  # A name is not a formula, even with a dollar sign.
    else:
        label_lines(panels[-1], _labels(report, axes[-1]), INK, stretch)
    return figure


def _labels(report: Report, axis: str) -> list[LineLabel]:
    labels = []
    for group, (colour, *_) in zip(report.groups, _styles(report), strict=True):
        curve = group.accuracy(axis)
        if curve:
            shift = max(curve)
            labels.append(LineLabel(group.name, colour, shift, 100 * curve[shift]))
    return labels


def _styles(report: Report) -> list[tuple]:
    """Colour, marker and dashes of each model; from the seventh on, colours return with other markers and dashes."""
    indices = [divmod(index, len(STYLES)) for index in range(len(report.groups))]
    return [(STYLES[at][0], *STYLES[(at + round_) % len(STYLES)][1:]) for round_, at in indices]


def _draw_panel(panel: "matplotlib.axes.Axes", report: Report, axis: str) -> None:
    groups, styles, shifts = report.groups, _styles(report), report.shifts(axis)
    size = min(1.0, max(0.5, 9 / len(shifts)))
    for index, (group, (colour, marker, dashes)) in enumerate(zip(groups, styles, strict=True)):
        # Earlier lines are wider and later ones dashed, so that curves that lie on one another are all seen.
        above = len(groups) - 1 - index
        curve, band = group.accuracy(axis), group.band(axis)
        low, high = ([100 * limits[side] for limits in band.values()] for side in (0, 1))
        panel.fill_between(list(band), low, high, color=colour, alpha=0.16, linewidth=0)
        panel.plot(
            list(curve), [100 * value for value in curve.values()], color=colour, marker=marker, linestyle=dashes,
            linewidth=1.6 + 0.6 * min(above, 4), markersize=size * (5 + 1.5 * min(above, 4)),
            markeredgecolor="white", markeredgewidth=0.6 * size,
        )  # fmt: skip
    every = -(-len(shifts) // 9)
    ticks = [shift for shift in shifts if shift % every == 0] or shifts
    panel.set_xticks(ticks, [signed(shift) for shift in ticks])
    panel.set_xlabel(DIRECTIONS[axis], color=INK)
    lowest = min(group.lowest.accuracy for group in groups)
    panel.set_ylim(0 if lowest < 0.6 else 10 * int(10 * lowest - 0.5), 102)
    panel.grid(axis="y", color=GRID, linewidth=0.8)
    panel.set_axisbelow(True)
    panel.tick_params(colors=INK, labelsize=9, length=0)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)
    panel.spines["bottom"].set_color(GRID)


def encode_png(figure: "matplotlib.figure.Figure") -> bytes:
    """The figure as a PNG at its own resolution.

    Args:
        figure: The figure.
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": "teka"})
    return buffer.getvalue()


def write_shift_curve(report: Report, path: str | Path) -> Path:
    """Draw the shift curve and write it as a PNG, whole or not at all.

    Args:
        report: The results.
        path: The target.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: The folder does not exist or cannot be written.
    """
    write_bytes(Path(path), encode_png(draw_shift_curve(report)))
    return Path(path)
