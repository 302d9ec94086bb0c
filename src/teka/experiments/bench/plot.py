"""The picture of a benchmark: time and peak memory against tokens."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from teka.audit.page.charts import spread
from teka.audit.page.template import require
from teka.experiments.bench.layers import SDPA, YARDSTICK
from teka.experiments.bench.table import conditions, place_name

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

INK, GRID = "#1c2430", "#dfe3e8"
BLACK, GREY = "#000000", "#8a8f98"
# Okabe and Ito's colours, which colour-blind readers tell apart, and two dark ones, one for each kind of position.
COLOURS = {"": "#0072B2", "rotation": "#D55E00", "rotation_joint": "#D55E00"}
COLOURS |= {"clipped": "#009E73", "clipped_features": "#009E73", "fourier": "#CC79A7", "rotary": "#56B4E9"}
COLOURS |= {"quadratic": "#E69F00", "generalized_quadratic": "#7A4B00", "causal": "#3B2F8F"}
MARKERS = {"squared_relu": "o", "softmax": "s", "positive": "^", "taylor2": "P", "constant": "h"}
MARKERS |= {SDPA: "D", "performer_pytorch": "v", YARDSTICK: "X"}
NOT_TEKA = (SDPA, "performer_pytorch")
QUADRATIC = ("softmax", SDPA)
LABEL_HEIGHT = 0.037
"""Height of a label as a share of the panel's."""
LABEL_PLACE = 1.05
"""Where labels begin, as a share of the panel's width."""

Lines = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]


def draw_bench(result: Mapping[str, Any]) -> "matplotlib.figure.Figure":
    """Draw what `bench` returned: seconds a step above peak memory, both against tokens.

    The colour tells the position, the marker the content kernel, and dashes and hollow markers that all pairs of tokens
    are computed.

    Args:
        result: What `bench` returned or `bench.json` holds.

    Returns:
        A figure that belongs to no window and no global state.

    Raises:
        ImportError: matplotlib is not installed.
    """
    require("matplotlib")
    from matplotlib.figure import Figure

    lines: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in result["rows"]:
        lines.setdefault((row["layer"], row["backend"]), []).append(row)
    figure = Figure(figsize=(12, 12.5), dpi=150, facecolor="white")
    times, memory = figure.subplots(2, 1, sharex=True)
    figure.subplots_adjust(left=0.07, right=0.70, top=0.965, bottom=0.115, hspace=0.12)
    sizes = sorted({row["tokens"] for row in result["rows"]})
    direction = result["settings"]["direction"].replace("_", " and ")
    for panel, quantity, factor, title in (
        (times, "seconds", 1e3, f"Milliseconds a step, {direction}"),
        (memory, "peak_bytes", 1e-6, "Peak memory of a step in MB, beyond tokens and parameters"),
    ):
        _draw_lines(panel, lines, quantity, factor)
        _dress(panel, sizes)
        panel.set_title(title, loc="left", fontsize=11.5, color=INK)
        _label(panel, lines, quantity, factor, sizes[-1])
    memory.set_xlabel("tokens", color=INK, fontsize=10.5)
    figure.text(0.07, 0.02, _caption(result), color=INK, fontsize=9.5, va="bottom", parse_math=False)
    return figure


def _caption(result: Mapping[str, Any]) -> str:
    key = "Colour: position; marker: content kernel; black and grey: not teka; dashed and hollow: every pair of tokens."
    return "\n".join([key, *textwrap.wrap(conditions(result), 140)])


def _draw_lines(panel: "matplotlib.axes.Axes", lines: Lines, quantity: str, factor: float) -> None:
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    for (layer, backend), rows in lines.items():
        is_yardstick = layer == YARDSTICK
        style = line_style(layer, backend)
        panel.plot(
            [row["tokens"] for row in rows],
            [factor * row[quantity] for row in rows],
            color=style.colour,
            marker=style.marker,
            linestyle=style.dashes,
            linewidth=3.0 if is_yardstick else 1.6,
            markersize=6.5,
            markerfacecolor=style.fill,
            markeredgecolor=style.edge,
            markeredgewidth=1.4 if style.is_hollow else 0.6,
            zorder=1.5 if is_yardstick else 2,
        )


def _dress(panel: "matplotlib.axes.Axes", sizes: Sequence[int]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    panel.set_xticks(sizes, [f"{size:,}" for size in sizes])
    panel.xaxis.set_minor_formatter(NullFormatter())
    low, high = panel.get_ylim()
    panel.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 3e3 else (1.0, 2.0, 5.0), numticks=20))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}" if value < 1 else f"{value:,.0f}"))
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.tick_params(which="both", colors=INK, labelsize=10, length=0, labelbottom=True)
    panel.grid(axis="y", color=GRID, linewidth=0.8)
    panel.set_axisbelow(True)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)
    panel.spines["bottom"].set_color(GRID)


class LineStyle(NamedTuple):
    """How a line looks."""

    colour: str
    marker: str
    dashes: str | tuple[int, tuple[float, ...]]
    is_hollow: bool

    @property
    def fill(self) -> str:
        """Colour within the marker."""
        return "white" if self.is_hollow else self.colour

    @property
    def edge(self) -> str:
        """Colour of the marker's edge."""
        return self.colour if self.is_hollow else "white"


def line_style(layer: str, backend: str) -> LineStyle:
    """Colour by position, marker by content kernel, dashed and hollow where all pairs of tokens are computed."""
    kernel, _, relative = layer.partition("-")
    colour = COLOURS.get(relative, BLACK)
    if kernel in NOT_TEKA or kernel == YARDSTICK:
        colour = GREY if kernel == YARDSTICK else BLACK
    all_pairs = backend == "dense" or kernel in QUADRATIC
    return LineStyle(colour, MARKERS[kernel], (0, (4, 2)) if all_pairs else "-", all_pairs)


def _label(panel: "matplotlib.axes.Axes", lines: Lines, quantity: str, factor: float, last: int) -> None:
    """Write names to the right: those of lines that reach the last size at their ends, then those of the others."""
    ends = [
        _End(layer, backend, rows[-1]["tokens"], factor * rows[-1][quantity])
        for (layer, backend), rows in lines.items()
    ]
    full = [end for end in ends if end.tokens == last]
    early = sorted((end for end in ends if end.tokens < last), key=lambda end: (-end.tokens, -end.value))
    to_fraction = panel.transData + panel.transAxes.inverted()
    heights = [float(to_fraction.transform((end.tokens, end.value))[1]) for end in full]
    floor = LABEL_HEIGHT * (len(early) + 1.5) if early else 0.0
    for end, height in zip(full, spread(heights, [LABEL_HEIGHT] * len(full), floor, 1.02), strict=True):
        _write_name(panel, end, height)
        panel.annotate(
            "",
            xy=(end.tokens, end.value),
            xytext=(LABEL_PLACE, height),
            textcoords="axes fraction",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": line_style(end.layer, end.backend).colour,
                "linewidth": 0.9,
                "alpha": 0.55,
                "shrinkA": 4,
                "shrinkB": 5,
            },
        )
    for place, end in enumerate(early):
        _write_name(panel, end, LABEL_HEIGHT * (len(early) - place - 0.5))
    if early:
        height = LABEL_HEIGHT * (len(early) + 0.5)
        text = f"not timed at {last:,} tokens:"
        panel.text(LABEL_PLACE - 0.01, height, text, transform=panel.transAxes, va="center", fontsize=10, color=INK)


class _End(NamedTuple):
    """The last point of a layer's line."""

    layer: str
    backend: str
    tokens: int
    value: float


def _write_name(panel: "matplotlib.axes.Axes", end: _End, height: float) -> None:
    """A line's marker and name at some height to the right of the panel."""
    style = line_style(end.layer, end.backend)
    panel.scatter(
        [LABEL_PLACE],
        [height],
        s=30,
        facecolor=style.fill,
        edgecolor=style.edge,
        marker=style.marker,
        linewidths=1.4 if style.is_hollow else 0.0,
        transform=panel.transAxes,
        clip_on=False,
    )
    panel.text(
        LABEL_PLACE + 0.013,
        height,
        place_name(end.layer, end.backend),
        transform=panel.transAxes,
        va="center",
        fontsize=10,
        color=INK,
        parse_math=False,
    )
