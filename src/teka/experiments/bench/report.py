"""What a benchmark found: how time and memory grow, its tables for the terminal, and its picture."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from teka.audit.page.charts import dress_panel, spread
from teka.audit.page.style import BLACK, INK, PALE
from teka.audit.page.tables import Table
from teka.errors import require
from teka.experiments.bench.layers import BASELINE, SDPA

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

FIRST_TOKENS = 1024
"""Slopes are taken from here on: at fewer tokens the time is that of calling operations."""
FEWEST_SIZES = 3
"""Sizes that a slope needs, so that it has a standard error."""
MARGIN = 0.05
"""Share of the time by which a layer must be ahead at the last size to be called faster: less is noise."""
HEADS = ("layer", "rounds", "ms", "± iqr", "× GEMMs", "× SDPA", "× FLOPs", "GFLOP/s", "peak MB")
SCALING_HEADS = ("layer", "time ~ L^", "memory ~ L^", "faster than SDPA from")
NOTHING = "–"
# Okabe and Ito's colours, which colour-blind readers tell apart, and two dark ones, one for each kind of position.
COLOURS = {"": "#0072B2", "rotation": "#D55E00", "rotation_joint": "#D55E00"}
COLOURS |= {"clipped": "#009E73", "clipped_features": "#009E73", "fourier": "#CC79A7", "rotary": "#56B4E9"}
COLOURS |= {"quadratic": "#E69F00", "generalized_quadratic": "#7A4B00", "causal": "#3B2F8F"}
MARKERS = {"squared_relu": "o", "softmax": "s", "positive": "^", "taylor2": "P", "constant": "h"}
MARKERS |= {SDPA: "D", "performer_pytorch": "v", BASELINE: "X"}
NOT_TEKA = (SDPA, "performer_pytorch")
QUADRATIC = ("softmax", SDPA)
LABEL_HEIGHT = 0.037
"""Height of a label as a share of the panel's."""
LABEL_PLACE = 1.05
"""Where labels begin, as a share of the panel's width."""

Lines = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]


class Slope(NamedTuple):
    """Power of L by which a quantity grows, and its standard error."""

    slope: float
    standard_error: float


def log_log_slope(tokens: Sequence[int], values: Sequence[float]) -> Slope | None:
    """Least-squares slope of log value against log L over L ≥ 1,024, None with fewer than three such sizes.

    b = Σ (x − x̄)(y − ȳ) / Σ (x − x̄)², with standard error √(Σ residual² / ((n − 2) Σ (x − x̄)²)).
    """
    logarithms = np.log(
        [(length, value) for length, value in zip(tokens, values, strict=True) if length >= FIRST_TOKENS]
    )
    if len(logarithms) < FEWEST_SIZES:
        return None
    x, y = (logarithms - logarithms.mean(axis=0)).T
    slope = float(x @ y / (x @ x))
    residual = y - slope * x
    return Slope(slope, math.sqrt(float(residual @ residual) / ((len(x) - 2) * float(x @ x))))


def crossover(ours: Mapping[int, float], theirs: Mapping[int, float]) -> dict[str, object] | None:
    """From how many tokens on a layer is faster than another, of the seconds of both by number of tokens.

    At the last size that both have it must be faster by 5 %, so that noise between equals makes no crossover. Between
    two sizes the logarithm of the ratio of times is taken to be linear in log L.

    Returns:
        "tokens", or None where it is not faster at the last size; "where" in words; "up_to", the last size that both
        have. None if no size has both.
    """
    shared = sorted(ours.keys() & theirs.keys())
    if not shared:
        return None
    lead = [math.log(ours[length] / theirs[length]) for length in shared]
    if lead[-1] >= math.log(1 - MARGIN):
        return {"tokens": None, "where": "never within the range", "up_to": shared[-1]}
    slower = [index for index, value in enumerate(lead) if value >= 0]
    if not slower:
        return {"tokens": float(shared[0]), "where": "already at the smallest", "up_to": shared[-1]}
    left = slower[-1]
    part = lead[left] / (lead[left] - lead[left + 1])
    tokens = shared[left] * (shared[left + 1] / shared[left]) ** part
    return {"tokens": tokens, "where": "between sizes", "up_to": shared[-1]}


def scaling(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, object]]:
    """Slopes of time and memory and the crossover with `scaled_dot_product_attention`, for every layer of the rows.

    Returns:
        For each layer "layer", "backend", "time" and "memory" (each with "slope" and "standard_error", or None with
        fewer than three sizes of 1,024 tokens or more) and "crossover" (see there; None for what is not compared).
    """
    found = []
    lines = _lines(rows)
    seconds = {place: {row["tokens"]: float(row["seconds"]) for row in own} for place, own in lines.items()}
    sdpa = next((seconds[place] for place in lines if place[0] == SDPA), {})
    for (layer, backend), own in lines.items():
        tokens = [row["tokens"] for row in own]
        slopes = [log_log_slope(tokens, [float(row[name]) for row in own]) for name in ("seconds", "peak_bytes")]
        time, memory = (None if slope is None else slope._asdict() for slope in slopes)
        compared = None if layer in (BASELINE, SDPA) else crossover(seconds[layer, backend], sdpa)
        found.append({"layer": layer, "backend": backend, "time": time, "memory": memory, "crossover": compared})
    return found


def _lines(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """The rows of each layer."""
    lines: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        lines.setdefault((row["layer"], row["backend"]), []).append(row)
    return lines


def bench_table(result: Mapping[str, Any]) -> str:
    """The rows as aligned text, one block a size; how layers grow; what was left out and why; and on what machine.

    "× GEMMs" is the time and "× FLOPs" the arithmetic of matrix products as a multiple of the four matrix products that
    every layer contains: where the first is the larger of the two, the layer is that much slower than its arithmetic.
    "× SDPA" is the time as a multiple of that of `scaled_dot_product_attention` between the same projections.
    """
    tables = []
    for tokens in dict.fromkeys(row["tokens"] for row in result["rows"]):
        rows = tuple(_cells(row) for row in result["rows"] if row["tokens"] == tokens)
        side = math.isqrt(tokens)
        tables.append(Table(f"{tokens:,} tokens ({side}×{side})", HEADS, rows))
    title = "growth with the number of tokens L from 1,024 on, ± standard error"
    tables.append(Table(title, SCALING_HEADS, tuple(map(_scaling_cells, result["scaling"]))))
    blocks = [table.plain() for table in tables]
    if result["left_out"]:
        blocks.append("\n".join(map(_left_out, result["left_out"])))
    return "\n\n".join([*blocks, conditions(result)])


def place_name(layer: str, backend: str) -> str:
    """A layer and how it is computed, in words: "squared_relu × rotation (toeplitz)"."""
    name = layer.replace("-", " × ").replace(" × causal", ", causal")
    return name if backend in ("torch", layer) else f"{name} ({backend})"


def conditions(result: Mapping[str, Any]) -> str:
    """A sentence that names the machine, the threads, the versions, the date and the sizes."""
    settings = result["settings"]
    direction = settings["direction"].replace("_", " and ")
    return (
        f"Measured {result['date']} on {result['hardware']} with torch {result['torch']} and teka {result['teka']}: "
        f"{direction}, batch {settings['batch']}, dim {settings['dim']}, {settings['heads']} heads, float32, "
        f"{settings['device']}; medians over the rounds."
    )


def _left_out(entry: Mapping[str, Any]) -> str:
    return f"not timed: {place_name(entry['layer'], entry['backend'])} at {entry['tokens']:,} tokens: {entry['reason']}"


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        place_name(row["layer"], row["backend"]),
        f"{row['rounds']}",
        f"{1e3 * row['seconds']:,.1f}",
        f"{1e3 * row['iqr']:,.1f}",
        f"{row['ratio_to_gemms']:.2f}",
        NOTHING if row["ratio_to_sdpa"] is None else f"{row['ratio_to_sdpa']:.2f}",
        f"{row['flops_ratio_to_gemms']:.2f}",
        f"{row['gflops_per_second']:.1f}",
        f"{row['peak_bytes'] / 1e6:,.1f}",
    )


def _scaling_cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    slopes = [
        NOTHING if slope is None else f"{slope['slope']:.2f} ± {slope['standard_error']:.2f}"
        for slope in (one["time"], one["memory"])
    ]
    return (place_name(one["layer"], one["backend"]), *slopes, _crossover(one["crossover"]))


def _crossover(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return NOTHING
    if found["tokens"] is None:
        return f"never up to {found['up_to']:,}"
    first = f"{found['tokens']:,.0f}"
    return f"{first}, the smallest" if found["where"] == "already at the smallest" else first


def draw_bench(result: Mapping[str, Any]) -> "matplotlib.figure.Figure":
    """Draw what `bench` returned or `bench.json` holds: seconds a step above peak memory, both against tokens.

    The colour tells the position, the marker the content kernel, and dashes and hollow markers that all pairs of tokens
    are computed.
    """
    lines = _lines(result["rows"])
    require("matplotlib", "reports need", "teka[report]")
    from matplotlib.figure import Figure

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
        dress_panel(panel, title, "y")
        _scale(panel, sizes)
        _label(panel, lines, quantity, factor, sizes[-1])
    memory.set_xlabel("tokens", color=INK, fontsize=10.5)
    key = "Colour: position; marker: content kernel; black and grey: not teka; dashed and hollow: every pair of tokens."
    caption = "\n".join([key, *textwrap.wrap(conditions(result), 140)])
    figure.text(0.07, 0.02, caption, color=INK, fontsize=9.5, va="bottom", parse_math=False)
    return figure


class LineStyle(NamedTuple):
    """How a layer's line looks."""

    colour: str
    marker: str
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
    """Colour by position, marker by content kernel, hollow where all pairs of tokens are computed."""
    kernel, _, relative = layer.partition("-")
    colour = COLOURS.get(relative, BLACK)
    if kernel in NOT_TEKA or kernel == BASELINE:
        colour = PALE if kernel == BASELINE else BLACK
    return LineStyle(colour, MARKERS[kernel], backend == "dense" or kernel in QUADRATIC)


def _draw_lines(panel: "matplotlib.axes.Axes", lines: Lines, quantity: str, factor: float) -> None:
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    for (layer, backend), rows in lines.items():
        style, is_baseline = line_style(layer, backend), layer == BASELINE
        panel.plot(
            [row["tokens"] for row in rows],
            [factor * row[quantity] for row in rows],
            color=style.colour,
            linestyle=(0, (4, 2)) if style.is_hollow else "-",
            linewidth=3.0 if is_baseline else 1.6,
            markersize=6.5,
            zorder=1.5 if is_baseline else 2,
            marker=style.marker,
            markerfacecolor=style.fill,
            markeredgecolor=style.edge,
            markeredgewidth=1.4 if style.is_hollow else 0.6,
        )


def _scale(panel: "matplotlib.axes.Axes", sizes: Sequence[int]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    panel.set_xticks(sizes, [f"{size:,}" for size in sizes])
    panel.xaxis.set_minor_formatter(NullFormatter())
    low, high = panel.get_ylim()
    panel.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 3e3 else (1.0, 2.0, 5.0), numticks=20))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}" if value < 1 else f"{value:,.0f}"))
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.tick_params(labelbottom=True)


def _label(panel: "matplotlib.axes.Axes", lines: Lines, quantity: str, factor: float, last: int) -> None:
    """Write names to the right: those of lines that reach the last size at their ends, then those of the others."""
    ends = [(*place, rows[-1]["tokens"], factor * rows[-1][quantity]) for place, rows in lines.items()]
    full = [end for end in ends if end[2] == last]
    early = sorted((end for end in ends if end[2] < last), key=lambda end: (-end[2], -end[3]))
    to_fraction = panel.transData + panel.transAxes.inverted()
    heights = [float(to_fraction.transform(end[2:])[1]) for end in full]
    floor = LABEL_HEIGHT * (len(early) + 1.5) if early else 0.0
    for (*place, tokens, value), height in zip(
        full, spread(heights, [LABEL_HEIGHT] * len(full), floor, 1.02), strict=True
    ):
        arrow = {"arrowstyle": "-", "linewidth": 0.9, "alpha": 0.55, "shrinkA": 4, "shrinkB": 5}
        arrow["color"] = _write_name(panel, *place, height).colour
        panel.annotate(
            "", xy=(tokens, value), xytext=(LABEL_PLACE, height), textcoords="axes fraction", annotation_clip=False,
            arrowprops=arrow,
        )  # fmt: skip
    for at, (layer, backend, *_) in enumerate(early):
        _write_name(panel, layer, backend, LABEL_HEIGHT * (len(early) - at - 0.5))
    if early:
        height = LABEL_HEIGHT * (len(early) + 0.5)
        text = f"not timed at {last:,} tokens:"
        panel.text(LABEL_PLACE - 0.01, height, text, transform=panel.transAxes, va="center", fontsize=10, color=INK)


def _write_name(panel: "matplotlib.axes.Axes", layer: str, backend: str, height: float) -> LineStyle:
    """A line's marker and name at some height to the right of the panel."""
    style = line_style(layer, backend)
    panel.scatter(
        [LABEL_PLACE], [height], s=30, facecolor=style.fill, edgecolor=style.edge, marker=style.marker,
        linewidths=1.4 if style.is_hollow else 0.0, transform=panel.transAxes, clip_on=False,
    )  # fmt: skip
    panel.text(
        LABEL_PLACE + 0.013, height, place_name(layer, backend), transform=panel.transAxes, va="center", fontsize=10,
        color=INK, parse_math=False,
    )  # fmt: skip
    return style
