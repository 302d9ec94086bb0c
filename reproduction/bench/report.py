"""What a benchmark found: how time and memory grow, its tables for the terminal, and its picture."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reproduction.bench.layers import BASELINE, FLASH, FLASH_TWO_SIDED, MULTIHEAD, PEER, SDPA
from teka.reporting.charts import add_legend, draw_line, dress_panel, make_figure, tick_decades
from teka.reporting.style import BLACK, INK, PALE, LineStyle
from teka.reporting.tables import Table

if TYPE_CHECKING:
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
COLOURS |= {
    "clipped": "#009E73",
    "clipped_features": "#009E73",
    "fourier": "#CC79A7",
    "rotary": "#56B4E9",
}
COLOURS |= {"quadratic": "#E69F00", "generalized_quadratic": "#7A4B00", "causal": "#3B2F8F"}
COLOURS |= {"rotary-causal": "#6A5FC1"}
MARKERS = {"squared_relu": "o", "softmax": "s", "positive": "^", "taylor2": "P", "constant": "h"}
MARKERS |= {SDPA: "D", MULTIHEAD: "d", PEER: "v", BASELINE: "X", FLASH: "<", FLASH_TWO_SIDED: ">"}
QUADRATIC = ("softmax", SDPA, MULTIHEAD)
OTHERS = (SDPA, MULTIHEAD, PEER, FLASH, FLASH_TWO_SIDED)
Row = Mapping[str, Any]


def log_log_slope(tokens: Sequence[int], values: Sequence[float]) -> dict[str, float] | None:
    """Least-squares slope of log value against log L ≥ log 1,024 and its standard error; None below three sizes."""
    kept = [
        (length, value)
        for length, value in zip(tokens, values, strict=True)
        if length >= FIRST_TOKENS
    ]
    if len(kept) < FEWEST_SIZES:
        return None
    slopes, covariance = np.polyfit(*np.log(kept).T, deg=1, cov=True)
    return {"slope": float(slopes[0]), "standard_error": math.sqrt(covariance[0, 0])}


def crossover(ours: Mapping[int, float], theirs: Mapping[int, float]) -> dict[str, object] | None:
    """From how many tokens on a layer is faster than another, of the seconds of both by number of tokens.

    At the last size that both have, "up_to", it must be faster by 5 %, else "tokens" is None. Between two sizes the
    logarithm of the ratio of times is taken to be linear in log L. None if no size has both.
    """
    shared = sorted(ours.keys() & theirs.keys())
    if not shared:
        return None
    lead = [math.log(ours[length] / theirs[length]) for length in shared]
    slower = [index for index, value in enumerate(lead) if value >= 0]
    if lead[-1] >= math.log(1 - MARGIN):
        tokens, where = None, "never within the range"
    elif not slower:
        tokens, where = float(shared[0]), "already at the smallest"
    else:
        left = slower[-1]
        part = lead[left] / (lead[left] - lead[left + 1])
        tokens, where = shared[left] * (shared[left + 1] / shared[left]) ** part, "between sizes"
    return {"tokens": tokens, "where": where, "up_to": shared[-1]}


def scaling(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Slopes of time and memory and the crossover with `scaled_dot_product_attention`, for every layer of the rows."""
    found = []
    lines = _lines(rows)
    seconds = {
        place: {row["tokens"]: float(row["seconds"]) for row in own} for place, own in lines.items()
    }
    sdpa = next((seconds[place] for place in lines if place[0] == SDPA), {})
    for (layer, backend), own in lines.items():
        tokens = [row["tokens"] for row in own]
        time, memory = (
            log_log_slope(tokens, [float(row[name]) for row in own])
            for name in ("seconds", "peak_bytes")
        )
        compared = None if layer in (BASELINE, SDPA) else crossover(seconds[layer, backend], sdpa)
        found.append(
            {
                "layer": layer,
                "backend": backend,
                "time": time,
                "memory": memory,
                "crossover": compared,
            }
        )
    return found


def _lines(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """The rows of each layer."""
    lines: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        lines.setdefault((row["layer"], row["backend"]), []).append(row)
    return lines


def bench_table(result: Row) -> str:
    """The rows as aligned text, one block a size; how layers grow; what was left out and why; and on what machine.

    "× GEMMs" is the time and "× FLOPs" the arithmetic as a multiple of the four matrix products, "× SDPA" the time as a
    multiple of that of `scaled_dot_product_attention` between the same projections.
    """
    tables = []
    for tokens in dict.fromkeys(row["tokens"] for row in result["rows"]):
        rows = tuple(_cells(row) for row in result["rows"] if row["tokens"] == tokens)
        side = math.isqrt(tokens)
        tables.append(Table(f"{tokens:,} tokens ({side}×{side})", HEADS, rows))
    title = "growth with the number of tokens L from 1,024 on, ± standard error"
    tables.append(Table(title, SCALING_HEADS, tuple(map(_scaling_cells, result["scaling"]))))
    blocks = [table.plain() for table in tables]
    left_out = [
        f"not timed: {place_name(one['layer'], one['backend'])} at {one['tokens']:,} tokens: {one['reason']}"
        for one in result["left_out"]
    ]
    return "\n\n".join([*blocks, *(["\n".join(left_out)] if left_out else []), conditions(result)])


def place_name(layer: str, backend: str) -> str:
    """A layer and how it is computed, in words: "squared_relu × rotation (toeplitz)"."""
    name = layer.replace("-", " × ").replace(" × causal", ", causal")
    return name if backend in ("torch", layer) else f"{name} ({backend})"


def conditions(result: Row) -> str:
    """A sentence that names the machine, the threads, the versions, the date and the sizes."""
    settings = result["settings"]
    direction = settings["direction"].replace("_", " and ")
    return (
        f"Measured {result['date']} on {result['hardware']} with torch {result['torch']} and teka {result['teka']}: "
        f"{direction}, batch {settings['batch']}, dim {settings['dim']}, {settings['heads']} heads, "
        f"{settings['precision']}, {settings['device']}; medians over the rounds."
    )


def _cells(row: Row) -> tuple[str, ...]:
    return (
        place_name(row["layer"], row["backend"]),
        f"{row['rounds']}",
        _milliseconds(row["seconds"]),
        _milliseconds(row["iqr"]),
        f"{row['ratio_to_gemms']:.2f}",
        NOTHING if row["ratio_to_sdpa"] is None else f"{row['ratio_to_sdpa']:.2f}",
        f"{row['flops_ratio_to_gemms']:.2f}",
        f"{row['gflops_per_second']:,.1f}",
        f"{row['peak_bytes'] / 1e6:,.1f}",
    )


def _milliseconds(seconds: float) -> str:
    """To a microsecond below ten milliseconds, as steps of a GPU take."""
    return f"{1e3 * seconds:,.1f}" if seconds >= 0.01 else f"{1e3 * seconds:.3f}"


def _scaling_cells(one: Row) -> tuple[str, ...]:
    slopes = [
        NOTHING if slope is None else f"{slope['slope']:.2f} ± {slope['standard_error']:.2f}"
        for slope in (one["time"], one["memory"])
    ]
    return (place_name(one["layer"], one["backend"]), *slopes, _crossover(one["crossover"]))


def _crossover(found: Row | None) -> str:
    if found is None:
        return NOTHING
    if found["tokens"] is None:
        return f"never up to {found['up_to']:,}"
    first = f"{found['tokens']:,.0f}"
    return f"{first}, the smallest" if found["where"] == "already at the smallest" else first


def draw_bench(result: Row) -> "matplotlib.figure.Figure":
    """Draw what `bench` gave: seconds a step above peak memory against tokens; the legend names the slowest first."""
    lines = _lines(result["rows"])
    figure = make_figure(12, 12, dpi=150)
    times, memory = figure.subplots(2, 1)
    direction = result["settings"]["direction"].replace("_", " and ")
    for panel, quantity, factor, title in (
        (times, "seconds", 1e3, f"Milliseconds a step, {direction}"),
        (memory, "peak_bytes", 1e-6, "Peak memory of a step in MB, beyond tokens and parameters"),
    ):
        for place, rows in lines.items():
            tokens, values = ([row[name] for row in rows] for name in ("tokens", quantity))
            draw_line(
                panel, line_style(*place), tokens, [factor * value for value in values], size=6.5
            )
        dress_panel(panel, title, "y")
        panel.set_xscale("log")
        panel.set_yscale("log")
        sizes = sorted({row["tokens"] for row in result["rows"]})
        panel.set_xticks(sizes, [f"{size:,}" for size in sizes])
        panel.set_xticks([], minor=True)
        tick_decades(panel.yaxis)
    last = max(row["tokens"] for row in result["rows"])
    ends = {place: rows[-1] for place, rows in lines.items()}
    order = sorted(ends, key=lambda place: (-ends[place]["tokens"], -ends[place]["seconds"]))
    names = [
        place_name(*place)
        + ("" if ends[place]["tokens"] == last else f"\nup to {ends[place]['tokens']:,} tokens")
        for place in order
    ]
    handles = dict(zip(lines, times.get_lines(), strict=True))
    add_legend(
        figure,
        [handles[place] for place in order],
        names,
        place="outside right upper",
        handle_length=3.2,
    )
    key = "Colour: position; marker: content kernel; black and grey: not teka; dashed: every pair of tokens."
    caption = "\n".join(["tokens", "", key, *textwrap.wrap(conditions(result), 110)])
    memory.set_xlabel(caption, color=INK, fontsize=9.5, parse_math=False)
    return figure


def line_style(layer: str, backend: str) -> LineStyle:
    """Colour by position, marker by content kernel, dashed where all pairs of tokens are computed."""
    kernel, _, relative = layer.partition("-")
    colour = PALE if kernel == BASELINE else BLACK if kernel in OTHERS else COLOURS[relative]
    return LineStyle(
        colour, MARKERS[kernel], (4, 2) if backend == "dense" or kernel in QUADRATIC else ()
    )
