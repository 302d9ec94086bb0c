"""All layers at one size: what is timed, what is left out, and the rows."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from teka.bench.entrant import Entrant, make_tokens
from teka.bench.layers import YARDSTICK, Layer
from teka.bench.measure import peak_bytes, time_in_rounds
from teka.bench.rehearse import Rehearsal, rehearse
from teka.bench.settings import Settings
from teka.bench.step import Step
from teka.errors import wrong_value
from teka.grid import Grid


@dataclass(frozen=True)
class _Timed:
    layer: Layer
    step: Step
    rehearsal: Rehearsal


def measure_size(
    entrants: Sequence[Entrant], side: int, settings: Settings, progress: Callable[[str], None]
) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Measure all layers on a square grid.

    Args:
        entrants: The layers, the yardstick first.
        side: Side of the grid.
        settings: Sizes, repetitions and limits.
        progress: Called with a line before each round.

    Returns:
        A row for each layer that was timed, and an entry with the reason for each that was not.

    Raises:
        ValueError: Not even the yardstick fits into `max_bytes`.
    """
    tokens, grid = make_tokens(side, settings), Grid((side, side))
    timed, left_out = [], []
    for entrant in entrants:
        step = Step(entrant.module, tokens, grid)
        rehearsal = None if entrant.fault else rehearse(step)
        if rehearsal is not None and rehearsal.peak_bytes <= settings.max_bytes:
            timed.append(_Timed(entrant.layer, step, rehearsal))
            continue
        reason = entrant.fault
        if rehearsal is not None:
            reason = f"needs {rehearsal.peak_bytes / 1e9:.3g} GB, more than max_bytes = {settings.max_bytes:.3g}"
            if entrant.layer.name == YARDSTICK:
                expected = f"at least the {rehearsal.peak_bytes} bytes of the four matrix products at side {side}"
                raise wrong_value("max_bytes", settings.max_bytes, expected)
        left_out.append({**_place(entrant.layer, grid), "reason": reason})
    return _rows(timed, settings, progress), left_out


def _rows(timed: list[_Timed], settings: Settings, progress: Callable[[str], None]) -> list[dict[str, object]]:
    steps = [one.step for one in timed]
    seconds = time_in_rounds(steps, repeats=settings.repeats, warmup=settings.warmup, progress=progress)
    rows = []
    for one, column in zip(timed, seconds, strict=True):
        median = statistics.median(column)
        low, high = np.quantile(column, (0.25, 0.75)).tolist()
        flops = one.rehearsal.flops
        ratios = [mine / gemms for mine, gemms in zip(column, seconds[0], strict=True)]
        row = {
            **_place(one.layer, one.step.grid),
            "seconds": median,
            "iqr": high - low,
            "ratio_to_gemms": statistics.median(ratios),
            "peak_bytes": peak_bytes(one.step),
            "flops": flops,
            "flops_ratio_to_gemms": flops / timed[0].rehearsal.flops,
            "gflops_per_second": flops / median / 1e9,
        }
        rows.append(row)
    return rows


def _place(layer: Layer, grid: Grid) -> dict[str, object]:
    return {"layer": layer.name, "backend": layer.backend, "side": grid.shape[0], "tokens": grid.num_tokens}
