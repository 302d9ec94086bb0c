"""All layers at one size: cases made ready, what they will cost, what is timed by when, what is left out and why."""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import nn

from reproduction.bench import measure
from reproduction.bench.layers import BASELINE, SDPA, Layer, Settings, Step, Tokens
from reproduction.bench.measure import BAND, Cost, Progress, estimate_peak_memory, measure_cost

Row = dict[str, object]
CHECKED_TOKENS = 256
"""Number of tokens at which fast paths are compared with their dense twins, which are cheap there."""
LEAST_POWER, LARGEST_POWER = 1.0, 2.0
"""Between linear and quadratic in the number of tokens, as every layer is where it takes long."""


@dataclass(frozen=True)
class Case:
    """A layer with weights, why it must not be timed, if so, and what a step cost at each number of tokens so far."""

    layer: Layer
    module: nn.Module
    fault: str | None
    known: dict[int, Cost] = field(default_factory=dict)

    def step(self, tokens: Tokens, settings: Settings) -> Step:
        """A pass of this layer over some tokens."""
        return Step(
            self.module,
            tokens,
            self.layer.grid(tokens.shape[1]),
            settings.direction,
            settings.precision,
        )


def make_case(layer: Layer, settings: Settings) -> Case:
    """Make a layer and compare it with its dense twin, in float32 whatever the precision of its steps."""
    module = layer.make(settings.dim, settings.heads).to(settings.device, torch.float32)
    with torch.no_grad():
        for parameter in module.parameters():
            # Parameters that begin at 0, such as distance embeddings, would hide errors from the comparison.
            if not parameter.any():
                parameter.normal_()
    found = measure.disagreement(
        Step(module, make_tokens(CHECKED_TOKENS, settings), layer.grid(CHECKED_TOKENS))
    )
    if found is None or found[1] <= BAND:
        return Case(layer, module, None)
    what, error = found
    return Case(
        layer,
        module,
        f"error: differs from its dense twin by {error:.2g} of the dense one's size ({what})",
    )


def make_tokens(num_tokens: int, settings: Settings) -> Tokens:
    """Tokens ~ N(0, 1) that require a gradient."""
    shape = (settings.batch, num_tokens, settings.dim)
    return torch.randn(shape, dtype=torch.float32, device=settings.device, requires_grad=True)


def extrapolate(known: Mapping[int, Cost], num_tokens: int, quantity: str) -> float:
    """A step's "seconds" or "peak_bytes", 0 before any, by the power of L of the last two sizes, from 1 to 2, or 1."""
    points = [(length, float(getattr(cost, quantity))) for length, cost in known.items()][-2:]
    if not points:
        return 0.0
    length, value = points[-1]
    before, less = points[0]
    power = LEAST_POWER if before == length else math.log(value / less) / math.log(length / before)
    return value * (num_tokens / length) ** min(max(power, LEAST_POWER), LARGEST_POWER)


@dataclass(frozen=True)
class Budget:
    """Seconds for a whole benchmark, which run from the making of this."""

    seconds: float
    start: float = field(default_factory=lambda: time.perf_counter())

    def left(self) -> float:
        """Seconds that are left, 0 at least."""
        return max(0.0, self.seconds - (time.perf_counter() - self.start))

    def deadline(self, lengths: Sequence[int]) -> float:
        """Until when the first of the sizes to come may be timed: its share goes by the root of its tokens."""
        roots = [math.sqrt(length) for length in lengths]
        return time.perf_counter() + self.left() * roots[0] / sum(roots)


def try_out(cases: Sequence[Case], num_tokens: int, settings: Settings) -> None:
    """Measure a step of every layer that has no fault, to extrapolate from it what more tokens cost."""
    tokens = make_tokens(num_tokens, settings)
    for case in cases:
        if case.fault is None:
            step = case.step(tokens, settings)
            case.known[num_tokens] = replace(measure_cost(step), seconds=measure.seconds(step))


def measure_size(
    cases: Sequence[Case],
    lengths: Sequence[int],
    settings: Settings,
    budget: Budget,
    progress: Progress,
) -> tuple[list[Row], list[Row]]:
    """Rows of all layers, the baseline first, at the first of the sizes to come, and why some were not timed."""
    tokens = make_tokens(lengths[0], settings)
    reasons = {
        case.layer: f"no time left of budget_seconds = {settings.budget_seconds:g}"
        for case in cases
    }
    needed: list[tuple[Case, float]] = []
    for case in cases if budget.left() > 0 else ():
        progress(f"{case.layer.name} ({case.layer.backend}): estimating its cost")
        found = _estimate(case, tokens, settings)
        if isinstance(found, str):
            reasons[case.layer] = found
        else:
            needed.append((case, found))
    timed, costs = [], []
    for case in _within(budget, needed):
        progress(f"{case.layer.name} ({case.layer.backend}): memory")
        try:
            costs.append(measure_cost(case.step(tokens, settings)))
            timed.append(case)
        except torch.OutOfMemoryError:
            reasons[case.layer] = (
                f"a step runs out of the GPU's memory, with max_bytes = {settings.max_bytes:.3g}"
            )
    if timed and timed[0].layer.name != BASELINE:
        missing = "the four matrix products, which all else is compared with, are not timed"
        reasons |= {case.layer: missing for case in timed}
        timed = []
    untimed = [case.layer for case in cases if case not in timed]
    left_out = [{**_place(layer, lengths[0]), "reason": reasons[layer]} for layer in untimed]
    rows = (
        _rows(timed, costs, tokens, settings, budget.deadline(lengths), progress) if timed else []
    )
    return rows, left_out


def _estimate(case: Case, tokens: Tokens, settings: Settings) -> float | str:
    """The seconds of a step, or why there must be none."""
    if case.fault is not None:
        return case.fault
    num_tokens = tokens.shape[1]
    needed = extrapolate(case.known, num_tokens, "seconds")
    if needed > settings.max_seconds:
        return f"a step would take about {needed:.2g} s, more than max_seconds = {settings.max_seconds:g}"
    # To go through shapes calls every operation of a step, which takes its time: only where memory may be short.
    bounds = [
        cost.peak_bytes * (num_tokens / size) ** LARGEST_POWER for size, cost in case.known.items()
    ]
    if not bounds or bounds[-1] > settings.max_bytes:
        # Kernels that are compiled on a GPU cannot be gone through, and what they take is measured with theirs.
        peak_bytes, about = (
            None if tokens.is_cuda else estimate_peak_memory(case.step(tokens, settings)),
            "",
        )
        if peak_bytes is None:
            peak_bytes, about = extrapolate(case.known, num_tokens, "peak_bytes"), "about "
        if peak_bytes > settings.max_bytes:
            return f"needs {about}{peak_bytes / 1e9:.3g} GB, more than max_bytes = {settings.max_bytes:.3g}"
    return needed


def _within(budget: Budget, needed: Sequence[tuple[Case, float]]) -> list[Case]:
    """The layers for which there is time: the slowest go first, until the others' rounds and their memory's fit."""
    timed, left = list(needed), budget.left()
    while timed and (1 + measure.FEWEST_ROUNDS) * sum(one for _, one in timed) > left:
        timed.remove(max(timed[1:] or timed, key=lambda one: one[1]))
    return [case for case, _ in timed] if left > 0 else []


def _rows(
    cases: Sequence[Case],
    costs: Sequence[Cost],
    tokens: Tokens,
    settings: Settings,
    deadline: float,
    progress: Progress,
) -> list[Row]:
    steps = [case.step(tokens, settings) for case in cases]
    columns = measure.time_in_rounds(steps, settings.repeats, settings.warmup, deadline, progress)
    names = [case.layer.name for case in cases]
    sdpa = columns[names.index(SDPA)] if SDPA in names else None
    rows: list[Row] = []
    for case, cost, column in zip(cases, costs, columns, strict=True):
        median = statistics.median(column)
        low, high = np.quantile(column, (0.25, 0.75)).tolist()
        case.known[tokens.shape[1]] = replace(cost, seconds=median)
        rows.append(
            {
                **_place(case.layer, tokens.shape[1]),
                "rounds": len(column),
                "seconds": median,
                "iqr": high - low,
                "ratio_to_gemms": _ratio(column, columns[0]),
                "ratio_to_sdpa": None if sdpa is None else _ratio(column, sdpa),
                "peak_bytes": cost.peak_bytes,
                "flops": cost.flops,
                "flops_ratio_to_gemms": cost.flops / costs[0].flops,
                "gflops_per_second": cost.flops / median / 1e9,
            }
        )
    return rows


def _ratio(ours: Sequence[float], others: Sequence[float]) -> float:
    """Median over the rounds of the ratio within a round."""
    return statistics.median(one / other for one, other in zip(ours, others, strict=True))


def _place(layer: Layer, num_tokens: int) -> Row:
    sides = list(layer.grid(num_tokens).shape)
    return {"layer": layer.name, "backend": layer.backend, "tokens": num_tokens, "grid": sides}
