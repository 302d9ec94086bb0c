"""Pictures that matplotlib draws: panels, their scales, lines with bands, dots with intervals, labels at lines' ends.

Nothing here touches matplotlib's global state, and importing it does not import matplotlib.
"""

import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from jaxtyping import Float64, Real

from teka.errors import require
from teka.reporting.formatting import write_step
from teka.reporting.style import GRID, INK, LineStyle, chosen_ticks, line_style

if TYPE_CHECKING:
    import matplotlib.artist
    import matplotlib.axes
    import matplotlib.axis
    import matplotlib.figure

WIDTH, DPI = 9.0, 200  # inches, and dots to each: twice the 900 pixels of a page
NEAREST_ERROR = (
    0.02  # error in % at which the scale of accuracies ends, as that of no errors is at infinity
)
MARGIN = 0.05
TICKS = ((0, 50, 90, 99, 99.9), (80, 95, 98, 99.5, 99.8), (20, 40, 60, 70, 85, 96, 97), range(100))
FEWEST_TICKS = 3
CHARACTERS = 24  # longest line of a label; longer names are wrapped
LINE_HEIGHT, GAP = (
    0.062,
    0.012,
)  # of a label's line, and between labels, as shares of the height of a usual panel
TOP = 1.03  # highest place for a label's upper edge, as a share of a panel's height
LegendPlace = Literal[
    "outside upper left", "outside lower left", "outside lower center", "outside right upper"
]
Numbers = Sequence[float | int] | np.ndarray


@dataclass(frozen=True)
class ShareCurve:
    """A share along an axis, from the lowest place to the highest, and its band at those places where it is known."""

    name: str
    values: Mapping[int, float | int]
    band: Mapping[int, tuple[float | int, float | int]] = field(default_factory=dict)


def make_figure(
    width: float | int, height: float | int, dpi: int = DPI
) -> "matplotlib.figure.Figure":
    """A white figure of so many inches that belongs to no window and no global state."""
    require("matplotlib", "reports need", "teka[report]")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=dpi, layout="constrained", facecolor="white")


def make_panels(
    figure: "matplotlib.figure.Figure", count: int, beside: int
) -> "list[matplotlib.axes.Axes]":
    """Panels in rows of so many, which share their vertical axes."""
    places = list(figure.subplots(-(-count // beside), beside, squeeze=False, sharey=True).flat)
    for place in places[count:]:
        place.set_visible(False)
    return places[:count]


def encode_png(figure: "matplotlib.figure.Figure") -> bytes:
    """The figure as a PNG at its own resolution."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": "teka"})
    return buffer.getvalue()


def dress_panel(
    panel: "matplotlib.axes.Axes", title: str, grid: Literal["", "x", "y", "both"]
) -> None:
    """Title, quiet spines, and grid lines along one axis or both."""
    panel.set_title(title, loc="left", fontsize=10, color=INK, parse_math=False)
    if grid:
        panel.grid(axis=grid, color=GRID, linewidth=0.7)
    panel.set_axisbelow(True)
    panel.tick_params(which="both", colors=INK, labelsize=8.5, length=0)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)
    panel.spines["bottom"].set_color(GRID)


def name_rows(panel: "matplotlib.axes.Axes", rows: Sequence[str]) -> None:
    """Put names on the vertical axis, the first at the top."""
    panel.set_yticks(range(len(rows)), rows)
    for text in panel.get_yticklabels():
        text.set_parse_math(False)  # A name is not a formula, even with a dollar sign.
    panel.set_ylim(len(rows) - 0.5, -0.5)


def add_legend(
    figure: "matplotlib.figure.Figure",
    handles: "Sequence[matplotlib.artist.Artist]",
    names: Sequence[str],
    *,
    place: LegendPlace = "outside upper left",
    columns: int = 1,
    handle_length: float = 2.0,
) -> None:
    """A legend without a frame that shows every name as it is, beside the panels."""
    # The space keeps names that begin with an underscore in the legend, which leaves them out otherwise.
    legend = figure.legend(
        handles, [f" {name}" for name in names], loc=place, ncols=columns, frameon=False, fontsize=9,
        handlelength=handle_length, handletextpad=0.3,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)


def draw_line(
    panel: "matplotlib.axes.Axes",
    style: LineStyle,
    places: Numbers,
    values: Numbers,
    *,
    band: tuple[Numbers, Numbers] | None = None,
    opacity: float = 0.16,
    width: float | int = 1.6,
    size: float | int = 4.5,
    label: str | None = None,
) -> None:
    """A line with markers of a size, above the band between two ends."""
    if band is not None:
        panel.fill_between(places, *band, color=style.colour, alpha=opacity, linewidth=0)
    panel.plot(
        places, values, color=style.colour, marker=style.marker, linestyle=style.linestyle, linewidth=width,
        markersize=size, markeredgecolor="white", markeredgewidth=0.1 * size, label=label,
    )  # fmt: skip


def tick_decades(axis: "matplotlib.axis.Axis") -> None:
    """Ticks of a logarithmic axis with its limits, at 1, 2 and 5 of every power of ten unless it has many of these."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    axis.set_major_locator(
        LogLocator(subs=(1.0,) if high / low > 1000 else (1.0, 2.0, 5.0), numticks=20)
    )
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:,g}" if value < 1 else f"{value:,.0f}")
    )
    axis.set_minor_formatter(NullFormatter())


def draw_curves(panels: Mapping[str, Sequence[ShareCurve]]) -> "matplotlib.figure.Figure":
    """Draw shares in % along one axis or several, beside each other on one scale, with labels at lines' ends."""
    last = list(panels.values())[-1]
    stretch = stretch_for([curve.name for curve in last if curve.values])
    figure = make_figure(2.0 + 4.0 * len(panels), 4.0 * stretch, dpi=150)
    places = make_panels(figure, len(panels), len(panels))
    lowest = min(
        value for curves in panels.values() for curve in curves for value in curve.values.values()
    )
    for panel, (title, curves) in zip(places, panels.items(), strict=True):
        steps = sorted({step for curve in curves for step in curve.values})
        share = min(1.0, max(0.5, 9 / len(steps)))
        for index, curve in enumerate(curves):
            # Earlier lines are wider and later ones dashed, so that curves that lie on one another are all seen.
            above, style = min(len(curves) - 1 - index, 4), line_style(index)
            low, high = ([100 * limits[end] for limits in curve.band.values()] for end in (0, 1))
            percents = [100 * value for value in curve.values.values()]
            options = {
                "width": 1.6 + 0.6 * above,
                "size": share * (5 + 1.5 * above),
                "label": curve.name,
            }
            draw_line(
                panel,
                style,
                list(curve.values),
                percents,
                band=(low, high) if low else None,
                **options,
            )
        ticks = [steps[at] for at in chosen_ticks(steps)]
        panel.set_xticks(ticks, [write_step(step) for step in ticks])
        dress_panel(panel, "", "y")
        panel.set_xlabel(title, color=INK)
        bottom = 0 if lowest < 0.6 else 10 * int(10 * lowest - 0.5)
        panel.set_ylim(bottom, 102)  # no marker at 100 is cut
        panel.set_yticks([tick for tick in panel.get_yticks() if bottom <= tick <= 100])
    places[0].set_ylabel("accuracy (%)", color=INK)
    labels = [
        LineLabel(
            curve.name, line_style(at).colour, end := max(curve.values), 100 * curve.values[end]
        )
        for at, curve in enumerate(last)
        if curve.values
    ]
    label_lines(places[-1], labels, stretch)
    return figure


def limit_percent(shares: Sequence[float]) -> Float64[np.ndarray, " shares"]:
    """Shares in %, held to what the scale of accuracies can show."""
    return np.clip(100 * np.asarray(shares, dtype=float), 0.0, 100 - NEAREST_ERROR)


def set_accuracy_scale(
    panel: "matplotlib.axes.Axes", axis: Literal["x", "y"], shares: Sequence[float], ticks: int
) -> None:
    """Scale an axis of accuracies in % by the logarithm of the error: 98 and 99 lie as far apart as 90 and 95."""
    heights = _height(limit_percent(shares))
    low, high = float(heights.min()), float(heights.max())
    margin = MARGIN * max(high - low, 0.05)
    low, high = max(low - margin, float(_height(np.zeros(1))[0])), high + margin
    places = _choose_ticks(low, high, ticks)
    scale, limits = (
        (panel.set_xscale, panel.set_xlim) if axis == "x" else (panel.set_yscale, panel.set_ylim)
    )
    scale("function", functions=(_height, _from_height))
    limits(*_from_height(np.array([low, high])))
    (panel.set_xticks if axis == "x" else panel.set_yticks)(
        places, [f"{place:g}" for place in places]
    )


def _height(percents: Real[np.ndarray, "*shape"]) -> Float64[np.ndarray, "*shape"]:
    return -np.log10(np.maximum(100 - np.asarray(percents, dtype=float), NEAREST_ERROR / 2))


def _from_height(heights: Real[np.ndarray, "*shape"]) -> Float64[np.ndarray, "*shape"]:
    return 100 - 10 ** -np.asarray(heights, dtype=float)


def _choose_ticks(low: float, high: float, count: int) -> list[float]:
    """Round accuracies first, as many as lie far enough apart; tenths and less where the axis is shorter than that."""
    chosen: list[tuple[float, float]] = []
    first, last = _from_height(np.array([low, high]))
    for decimals in range(4):
        fine = np.round(np.arange(first, last, 10.0**-decimals), decimals).tolist()
        for place in [*(tick for round_ in TICKS for tick in round_), *(fine if decimals else [])]:
            height = float(_height(np.array([place]))[0])
            if low <= height <= high and all(
                abs(height - other) >= (high - low) / count for other, _ in chosen
            ):
                chosen.append((height, float(place)))
        if len(chosen) >= FEWEST_TICKS:
            break
    return [place for _, place in sorted(chosen)]


def spread(
    heights: Sequence[float], sizes: Sequence[float], low: float, high: float
) -> list[float]:
    """Where the middle of each label goes so that none overlaps, moved as little as their order needs.

    Heights and sizes are of the labels as they would like to be; they run over at `low` if they do not fit.
    """
    order = sorted(range(len(heights)), key=lambda index: -heights[index])
    placed = list(heights)
    floor, ceiling = low + sum(sizes), high
    for index in order:
        # Not above what is left, and high enough that those below still fit.
        upper_edge = min(max(min(heights[index] + sizes[index] / 2, ceiling), floor), ceiling)
        placed[index] = upper_edge - sizes[index] / 2
        ceiling = upper_edge - sizes[index]
        floor -= sizes[index]
    return placed


class LineLabel(NamedTuple):
    """A line's name and colour, and where the line ends, in the panel's units."""

    name: str
    colour: str
    x: float | int
    y: float | int


def stretch_for(names: Sequence[str]) -> float:
    """How many times as high as usual a panel has to be to label lines of these names, at least 1."""
    return max(1.0, sum(_size(textwrap.fill(name, CHARACTERS)) for name in names) / TOP)


def label_lines(
    panel: "matplotlib.axes.Axes", labels: Sequence[LineLabel], stretch: float = 1.0
) -> None:
    """Write each line's name to the right of its end, in a panel with its limits, `stretch` times as high as usual."""
    texts = [textwrap.fill(label.name, CHARACTERS) for label in labels]
    sizes = [_size(text) / stretch for text in texts]
    to_fraction = panel.transData + panel.transAxes.inverted()
    heights = spread(
        [float(to_fraction.transform((label.x, label.y))[1]) for label in labels], sizes, 0.0, TOP
    )
    for label, text, height in zip(labels, texts, heights, strict=True):
        tie = {
            "arrowstyle": "-",
            "color": label.colour,
            "linewidth": 1.2,
            "relpos": (0, 0.5),
            "shrinkB": 5,
        }
        tie["patchA"] = (
            None  # not cut off at the text's frame, where a steep line would end beside another name
        )
        panel.annotate(
            text, xy=(label.x, label.y), xytext=(1.06, height), textcoords="axes fraction", va="center", ha="left",
            fontsize=9, color=INK, annotation_clip=False, parse_math=False, arrowprops=tie,
        )  # fmt: skip


def _size(text: str) -> float:
    return LINE_HEIGHT * (1 + text.count("\n")) + GAP
