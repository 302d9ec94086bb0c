"""The table of a benchmark as plain text for the terminal."""

from collections.abc import Mapping
from typing import Any

HEADS = ("layer", "ms", "± iqr", "× GEMMs", "× FLOPs", "GFLOP/s", "peak MB")


def place_name(layer: str, backend: str) -> str:
    """A layer and how it is computed, in words: "squared_relu × rotation (toeplitz)"."""
    name = layer.replace("-", " × ")
    return name if backend in ("torch", layer) else f"{name} ({backend})"


def bench_table(result: Mapping[str, Any]) -> str:
    """The rows as aligned text, one block a size, then what was left out and why.

    "× GEMMs" is the time and "× FLOPs" the arithmetic of matrix products as a multiple of the four matrix products that
    every layer contains: where the first is the larger of the two, the layer is that much slower than its arithmetic.

    Args:
        result: What `bench` returned or `bench.json` holds.
    """
    blocks = []
    for side in dict.fromkeys(row["side"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["side"] == side]
        cells = [HEADS, *(_cells(row) for row in rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(HEADS))]
        lines = [_line(row, widths) for row in cells]
        title = f"{side}×{side} = {side**2:,} tokens"
        blocks.append("\n".join([title, lines[0], "-" * len(lines[0]), *lines[1:]]))
    left_out = [_left_out(entry) for entry in result["left_out"]]
    return "\n\n".join([*blocks, *(["\n".join(left_out)] if left_out else [])])


def _left_out(entry: Mapping[str, Any]) -> str:
    layer = place_name(entry["layer"], entry["backend"])
    return f"not timed: {layer} at {entry['side']}×{entry['side']}: {entry['reason']}"


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        place_name(row["layer"], row["backend"]),
        f"{1e3 * row['seconds']:.1f}",
        f"{1e3 * row['iqr']:.1f}",
        f"{row['ratio_to_gemms']:.2f}",
        f"{row['flops_ratio_to_gemms']:.2f}",
        f"{row['gflops_per_second']:.1f}",
        f"{row['peak_bytes'] / 1e6:.1f}",
    )


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    name, *numbers = cells
    columns = [f"{cell:>{width}}" for cell, width in zip(numbers, widths[1:], strict=True)]
    return "  ".join([f"{name:<{widths[0]}}", *columns])
