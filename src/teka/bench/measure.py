"""Measure a step: seconds and memory."""

import gc
import time
from collections.abc import Callable, Sequence

import torch

from teka.bench.allocations import Allocations
from teka.bench.step import Step


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
    steps: Sequence[Step], *, repeats: int, warmup: int, progress: Callable[[str], None]
) -> list[list[float]]:
    """Seconds of every step in every round, the steps by turns: A B C A B C …, so that drift hits all alike.

    The garbage collector waits until the rounds are over, as in `timeit`.

    Args:
        steps: The steps.
        repeats: Rounds that count.
        warmup: Rounds before them that do not.
        progress: Called with a line before each round.

    Returns:
        For each step its seconds in the rounds that count.
    """
    rounds = []
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()
    try:
        for index in range(warmup + repeats):
            progress(f"round {index + 1} of {warmup + repeats}")
            rounds.append([seconds(step) for step in steps])
    finally:
        if collecting:
            gc.enable()
    return [list(column) for column in zip(*rounds[warmup:], strict=True)]


def peak_bytes(step: Step) -> int:
    """Most bytes of tensors allocated at once during a step, beyond tokens and parameters, gradients included.

    On a CPU from `Allocations`; on a GPU from the allocator's own count, which also sees what operations take for
    themselves.
    """
    if step.tokens.is_cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        peak = torch.cuda.max_memory_allocated() - before
    else:
        with Allocations() as allocations:
            step()
        peak = allocations.peak
    step.clear()
    return peak


def _wait(step: Step) -> None:
    if step.tokens.is_cuda:
        torch.cuda.synchronize()
