"""How time and memory grow with the number of tokens, and from how many on a layer beats exact attention."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from teka.experiments.bench.layers import SDPA, YARDSTICK

FIRST_TOKENS = 1024
"""Slopes are taken from here on: at fewer tokens the time is that of calling operations."""
FEWEST_SIZES = 3
"""Sizes that a slope needs, so that it has a standard error."""

MARGIN = 0.05
"""Share of the time by which a layer must be ahead at the last size to be called faster: less is noise."""


class Slope(NamedTuple):
    """Power of L by which a quantity grows, and its standard error."""

    slope: float
    standard_error: float


def log_log_slope(tokens: Sequence[int], values: Sequence[float]) -> Slope | None:
    """Least-squares slope of log value against log L over L ≥ 1,024, None with fewer than three such sizes.

    b = Σ (x − x̄)(y − ȳ) / Σ (x − x̄)², with standard error √(Σ residual² / ((n − 2) Σ (x − x̄)²)).

    Args:
        tokens: Numbers of tokens L.
        values: The quantity at each.
    """
    points = [
        (math.log(length), math.log(value))
        for length, value in zip(tokens, values, strict=True)
        if length >= FIRST_TOKENS
    ]
    if len(points) < FEWEST_SIZES:
        return None
    x, y = np.array(points).T
    x, y = x - x.mean(), y - y.mean()
    slope = float(x @ y / (x @ x))
    residual = y - slope * x
    return Slope(slope, math.sqrt(float(residual @ residual) / ((len(points) - 2) * float(x @ x))))


def crossover(mine: Mapping[int, float], rival: Mapping[int, float]) -> dict[str, object] | None:
    """From how many tokens on a layer is faster than another, at every size that both have been timed at.

    At the last of these it must be faster by 5 %, so that noise between equals makes no crossover. Between two sizes
    the logarithm of the ratio of times is taken to be linear in log L.

    Args:
        mine: Seconds of the layer by number of tokens.
        rival: Seconds of the other.

    Returns:
        "tokens", or None where it is not faster at the last size; "where" in words; "up_to", the last size that both
        have. None if no size has both.
    """
    shared = sorted(mine.keys() & rival.keys())
    if not shared:
        return None
    lead = [math.log(mine[length] / rival[length]) for length in shared]
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
    """Slopes of time and memory and the crossover with `scaled_dot_product_attention`, for every layer.

    Args:
        rows: The rows of a benchmark.

    Returns:
        For each layer "layer", "backend", "time" and "memory" (each with "slope" and "standard_error", or None with
        fewer than three sizes of 1,024 tokens or more) and "crossover" (see there; None for what is not compared).
    """
    found = []
    rival = {row["tokens"]: float(row["seconds"]) for row in rows if row["layer"] == SDPA}
    for layer, backend in dict.fromkeys((row["layer"], row["backend"]) for row in rows):
        own = [row for row in rows if (row["layer"], row["backend"]) == (layer, backend)]
        tokens = [row["tokens"] for row in own]
        slopes = [
            log_log_slope(tokens, [float(row[quantity]) for row in own]) for quantity in ("seconds", "peak_bytes")
        ]
        time, memory = (None if slope is None else slope._asdict() for slope in slopes)
        seconds = {row["tokens"]: float(row["seconds"]) for row in own}
        compared = None if layer in (YARDSTICK, SDPA) else crossover(seconds, rival)
        found.append({"layer": layer, "backend": backend, "time": time, "memory": memory, "crossover": compared})
    return found
