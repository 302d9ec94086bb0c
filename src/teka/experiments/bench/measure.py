"""Measure a step: seconds, memory and arithmetic."""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from teka.experiments.bench.allocations import Allocations
from teka.experiments.bench.budget import Pace
from teka.experiments.bench.step import Step
from teka.flops import flop_counter


@dataclass(frozen=True)
class Cost:
    """What a step costs.

    Args:
        seconds: Wall time.
        peak_bytes: Most bytes of tensors allocated at once, beyond tokens and parameters, gradients included.
        flops: Floating-point operations of its matrix products, two for each multiply-add; sums, transforms and
            functions of single numbers do not count.
    """

    seconds: float
    peak_bytes: int
    flops: int


def seconds(step: Step) -> float:
    """Wall time of one step, on a GPU until it has finished; the gradients are freed off the clock."""
    _wait(step)
    start = time.perf_counter()
    step()
    _wait(step)
    elapsed = time.perf_counter() - start
    step.clear()
    return elapsed


def time_in_rounds(
    steps: Sequence[Step],
    *,
    repeats: int,
    warmup: int,
    pace: Pace,
    round_seconds: float,
    progress: Callable[[str], None],
) -> list[list[float]]:
    """Seconds of every step in every round, the steps by turns: A B C A B C …, so that drift hits all alike.

    The garbage collector waits until the rounds are over, as in `timeit`.

    Args:
        steps: The steps.
        repeats: Rounds that count, at most.
        warmup: Rounds before them that do not, at most.
        pace: How many of them there is time for.
        round_seconds: What a round will take, about.
        progress: Called with a line before each round.

    Returns:
        For each step its seconds in the rounds that count.
    """
    rounds: list[list[float]] = []
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()
    try:
        for index in range(warmup):
            if not pace.allows_warmup(round_seconds, repeats):
                break
            progress(f"warm-up {index + 1} of {warmup}")
            round_seconds = sum(seconds(step) for step in steps)
        while len(rounds) < repeats and pace.allows_round(len(rounds), round_seconds):
            progress(f"round {len(rounds) + 1} of {repeats}")
            rounds.append([seconds(step) for step in steps])
            round_seconds = sum(rounds[-1])
    finally:
        if collecting:
            gc.enable()
    return [list(column) for column in zip(*rounds, strict=True)]


def measure_cost(step: Step) -> Cost:
    """Memory and arithmetic of a step, and its seconds with the counting, which slows small steps down.

    Memory on a CPU is that of `Allocations`; on a GPU the allocator's own count, which also sees what operations take
    for themselves.
    """
    _wait(step)
    start = time.perf_counter()
    with flop_counter() as counter:
        if step.tokens.is_cuda:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            step()
            peak = torch.cuda.max_memory_allocated() - before
        else:
            with Allocations() as allocations:
                step()
            peak = allocations.peak
    _wait(step)
    elapsed = time.perf_counter() - start
    step.clear()
    return Cost(elapsed, peak, counter.get_total_flops())


def _wait(step: Step) -> None:
    if step.tokens.is_cuda:
        torch.cuda.synchronize()
