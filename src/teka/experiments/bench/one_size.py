"""All layers at one size: what is timed, what is left out, and the rows."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from teka.experiments.bench.budget import Budget
from teka.experiments.bench.entrant import Entrant, make_tokens
from teka.experiments.bench.foretell import foretell_bytes, foretell_seconds, largest_bytes
from teka.experiments.bench.layers import SDPA, YARDSTICK, Layer
from teka.experiments.bench.measure import Cost, measure_cost, seconds, time_in_rounds
from teka.experiments.bench.rehearse import rehearse
from teka.experiments.bench.settings import Settings

Row = dict[str, object]


@dataclass(frozen=True)
class _Foretold:
    """A layer that may be timed, and the seconds that a step of it will take."""

    entrant: Entrant
    seconds: float


def try_out(entrants: Sequence[Entrant], num_tokens: int, settings: Settings) -> None:
    """Measure a step of every layer that has no fault, to foretell from it what more tokens cost."""
    tokens = make_tokens(num_tokens, settings)
    for entrant in entrants:
        if entrant.fault is None:
            step = entrant.step(tokens, settings.direction)
            cost = measure_cost(step)
            entrant.known[num_tokens] = Cost(seconds(step), cost.peak_bytes, cost.flops)


def measure_size(
    entrants: Sequence[Entrant],
    lengths: Sequence[int],
    settings: Settings,
    budget: Budget,
    progress: Callable[[str], None],
) -> tuple[list[Row], list[Row]]:
    """Measure all layers at one number of tokens.

    Args:
        entrants: The layers, the yardstick first; what is measured is added to what is known of them.
        lengths: This number of tokens, and those that are still to come.
        settings: Sizes, repetitions and limits.
        budget: The time that is left.
        progress: Called with a line before each round.

    Returns:
        A row for each layer that was timed, and an entry with the reason for each that was not.
    """
    num_tokens = lengths[0]
    tokens = make_tokens(num_tokens, settings)
    candidates: list[_Foretold] = []
    reasons: dict[Layer, str] = {}
    for entrant in entrants if budget.left() > 0 else ():
        progress(f"{entrant.layer.name} ({entrant.layer.backend}): foretelling its cost")
        found = _foretell(entrant, tokens, settings)
        if isinstance(found, str):
            reasons[entrant.layer] = found
        else:
            candidates.append(found)
    timed = _within(budget, candidates)
    for one in candidates:
        if one not in timed:
            reasons[one.entrant.layer] = f"no time left of budget_seconds = {settings.budget_seconds:g}"
    if not candidates:
        reasons = {one.layer: f"no time left of budget_seconds = {settings.budget_seconds:g}" for one in entrants}
    if not timed or timed[0].entrant.layer.name != YARDSTICK:
        for one in timed:
            reasons[one.entrant.layer] = "the four matrix products, which all else is compared with, are not timed"
        timed = []
    left_out = [
        {**_place(entrant.layer, num_tokens), "reason": reasons[entrant.layer]}
        for entrant in entrants
        if entrant.layer in reasons
    ]
    rows = _rows([one.entrant for one in timed], tokens, lengths, settings, budget, progress) if timed else []
    return rows, left_out


def _foretell(entrant: Entrant, tokens: Float[Tensor, "batch tokens dim"], settings: Settings) -> _Foretold | str:
    """The time of a step, or why there must be none."""
    if entrant.fault is not None:
        return entrant.fault
    num_tokens = tokens.shape[1]
    needed = foretell_seconds(entrant.known, num_tokens)
    if needed > settings.max_seconds:
        return f"a step would take about {needed:.2g} s, more than max_seconds = {settings.max_seconds:g}"
    # A rehearsal calls every operation of a step, which takes its time: only where memory may be short.
    if largest_bytes(entrant.known, num_tokens) > settings.max_bytes:
        peak_bytes, about = rehearse(entrant.step(tokens, settings.direction)), ""
        if peak_bytes is None:
            peak_bytes, about = foretell_bytes(entrant.known, num_tokens), "about "
        if peak_bytes > settings.max_bytes:
            return f"needs {about}{peak_bytes / 1e9:.3g} GB, more than max_bytes = {settings.max_bytes:.3g}"
    return _Foretold(entrant, needed)


def _within(budget: Budget, candidates: Sequence[_Foretold]) -> list[_Foretold]:
    """The layers for which there is time: the slowest go first, until the others can run twice."""
    timed, left = list(candidates), budget.left()
    while timed and 2 * sum(one.seconds for one in timed) > left:
        timed.remove(max(timed[1:] or timed, key=lambda one: one.seconds))
    return timed if left > 0 else []


def _rows(
    entrants: Sequence[Entrant],
    tokens: Float[Tensor, "batch tokens dim"],
    lengths: Sequence[int],
    settings: Settings,
    budget: Budget,
    progress: Callable[[str], None],
) -> list[Row]:
    steps = [entrant.step(tokens, settings.direction) for entrant in entrants]
    pace = budget.pace(lengths)
    costs = []
    for entrant, step in zip(entrants, steps, strict=True):
        progress(f"{entrant.layer.name} ({entrant.layer.backend}): memory")
        costs.append(measure_cost(step))
    columns = time_in_rounds(
        steps,
        repeats=settings.repeats,
        warmup=settings.warmup,
        pace=pace,
        round_seconds=sum(cost.seconds for cost in costs),
        progress=progress,
    )
    names = [entrant.layer.name for entrant in entrants]
    rival = columns[names.index(SDPA)] if SDPA in names else None
    rows: list[Row] = []
    for entrant, cost, column in zip(entrants, costs, columns, strict=True):
        median = statistics.median(column)
        low, high = np.quantile(column, (0.25, 0.75)).tolist()
        entrant.known[tokens.shape[1]] = Cost(median, cost.peak_bytes, cost.flops)
        row = {
            **_place(entrant.layer, tokens.shape[1]),
            "rounds": len(column),
            "seconds": median,
            "iqr": high - low,
            "ratio_to_gemms": _ratio(column, columns[0]),
            "ratio_to_sdpa": None if rival is None else _ratio(column, rival),
            "peak_bytes": cost.peak_bytes,
            "flops": cost.flops,
            "flops_ratio_to_gemms": cost.flops / costs[0].flops,
            "gflops_per_second": cost.flops / median / 1e9,
        }
        rows.append(row)
    return rows


def _ratio(mine: Sequence[float], others: Sequence[float]) -> float:
    """Median over the rounds of the ratio within a round."""
    return statistics.median(one / other for one, other in zip(mine, others, strict=True))


def _place(layer: Layer, num_tokens: int) -> Row:
    return {
        "layer": layer.name,
        "backend": layer.backend,
        "tokens": num_tokens,
        "grid": list(layer.grid(num_tokens).shape),
    }
