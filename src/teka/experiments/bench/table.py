"""The tables of a benchmark as plain text for the terminal."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

HEADS = ("layer", "rounds", "ms", "± iqr", "× GEMMs", "× SDPA", "× FLOPs", "GFLOP/s", "peak MB")
SCALING_HEADS = ("layer", "time ~ L^", "memory ~ L^", "faster than SDPA from")
NOTHING = "–"


def place_name(layer: str, backend: str) -> str:
    """A layer and how it is computed, in words: "squared_relu × rotation (toeplitz)"."""
    name = layer.replace("-", " × ").replace(" × causal", ", causal")
    return name if backend in ("torch", layer) else f"{name} ({backend})"


def bench_table(result: Mapping[str, Any]) -> str:
    """The rows as aligned text, one block a size; how layers grow; what was left out and why; and on what machine.

    "× GEMMs" is the time and "× FLOPs" the arithmetic of matrix products as a multiple of the four matrix products that
    every layer contains: where the first is the larger of the two, the layer is that much slower than its arithmetic.
    "× SDPA" is the time as a multiple of that of `scaled_dot_product_attention` between the same projections.

    Args:
        result: What `bench` returned or `bench.json` holds.
    """
    blocks = []
    for tokens in dict.fromkeys(row["tokens"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["tokens"] == tokens]
        side = math.isqrt(tokens)
        blocks.append(_block(f"{tokens:,} tokens ({side}×{side})", HEADS, [_cells(row) for row in rows]))
    title = "growth with the number of tokens L from 1,024 on, ± standard error"
    blocks.append(_block(title, SCALING_HEADS, [_scaling_cells(one) for one in result["scaling"]]))
    if result["left_out"]:
        blocks.append("\n".join(_left_out(result["left_out"])))
    return "\n\n".join([*blocks, conditions(result)])


def conditions(result: Mapping[str, Any]) -> str:
    """A sentence that names the machine, the threads, the versions, the date and the sizes."""
    settings = result["settings"]
    direction = settings["direction"].replace("_", " and ")
    return (
        f"Measured {result['date']} on {result['hardware']} with torch {result['torch']} and teka {result['teka']}: "
        f"{direction}, batch {settings['batch']}, dim {settings['dim']}, {settings['heads']} heads, float32, "
        f"{settings['device']}; medians over the rounds."
    )


def _block(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [heads, *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    lines = [_line(row, widths) for row in cells]
    return "\n".join([title, lines[0], "-" * len(lines[0]), *lines[1:]])


def _left_out(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        f"not timed: {place_name(entry['layer'], entry['backend'])} at {entry['tokens']:,} tokens: {entry['reason']}"
        for entry in entries
    ]


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


def _crossover(crossover: Mapping[str, Any] | None) -> str:
    if crossover is None:
        return NOTHING
    if crossover["tokens"] is None:
        return f"never up to {crossover['up_to']:,}"
    first = f"{crossover['tokens']:,.0f}"
    return f"{first}, the smallest" if crossover["where"] == "already at the smallest" else first


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    name, *numbers = cells
    columns = [f"{cell:>{width}}" for cell, width in zip(numbers, widths[1:], strict=True)]
    return "  ".join([f"{name:<{widths[0]}}", *columns])
