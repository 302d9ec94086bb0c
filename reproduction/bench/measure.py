"""Measure a step: seconds, memory and arithmetic, and how far it is from its dense twin."""

import copy
import gc
import math
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.benchmark import timer

from reproduction.bench.layers import Step
from teka.flops import flop_counter
from teka.nn import Attention

FEWEST_ROUNDS = 3  # that count
Progress = Callable[[str], None]
BAND = 1e-3
"""Largest relative difference from the dense twin in float32, in the output and in every gradient."""


class Allocations(TorchDispatchMode):
    """A context that counts the bytes of all tensors that are allocated in it and not yet freed, and their peak.

    A storage that an operation, also of the backward pass, returns and that was not among its inputs counts until
    nothing refers to it any more. What an operation takes and frees within itself is not seen: the tiles of torch's
    fused attention on a CPU, of constant size, and a Fourier transform's copy of its input.
    """

    def __init__(self) -> None:
        super().__init__()
        self.allocated = 0
        self.peak = 0
        self._known: weakref.WeakSet[UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run an operation and count what it allocated."""
        named = dict(kwargs or {})
        self._known.update(_storages((args, named)))
        result = func(*args, **named)
        for storage in _storages(result):
            if storage not in self._known:
                self._known.add(storage)
                self._allocate(storage)
        return result

    def _allocate(self, storage: UntypedStorage) -> None:
        self.allocated += storage.nbytes()
        self.peak = max(self.peak, self.allocated)
        weakref.finalize(storage, self._free, storage.nbytes()).atexit = False

    def _free(self, num_bytes: int) -> None:
        self.allocated -= num_bytes


def _storages(tree: object) -> list[UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


@dataclass(frozen=True)
class Cost:
    """Wall time, peak memory beyond tokens and parameters, and operations of matrix products, two a multiply-add."""

    seconds: float
    peak_bytes: int
    flops: int


def measure_cost(step: Step) -> Cost:
    """What a step costs, its seconds with the counting; memory on a GPU is what the allocator says of a pass before."""
    try:
        peak = _peak_of_gpu(step) if step.tokens.is_cuda else None
        start = timer()
        with flop_counter() as counter, Allocations() as allocations:
            step()
        elapsed = timer() - start
    finally:
        step.clear()
    return Cost(elapsed, allocations.peak if peak is None else peak, counter.get_total_flops())


def _peak_of_gpu(step: Step) -> int:
    """The most bytes of a pass that counts nothing, as what is compiled runs otherwise then.

    In one before, kernels are compiled, and libraries make memory for themselves that they keep.
    """
    step()
    step.clear()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    peak = torch.cuda.max_memory_allocated() - before
    step.clear()
    return peak


def estimate_peak_memory(step: Step) -> int | None:
    """Most bytes that a step will allocate at once, beyond tokens and parameters, by shapes; None if these do not say.

    A layer with random features must have run once, as it looks at its numbers the first time.
    """
    from torch._subclasses import fake_tensor as torch_fakes  # slow to import

    fake = torch_fakes.FakeTensorMode()
    with torch_fakes.FakeCopyMode(fake):
        twin = copy.deepcopy(step)
    try:
        with fake, Allocations() as allocations:
            twin()
    except (torch_fakes.DataDependentOutputException, torch_fakes.DynamicOutputShapeException):
        return None
    return allocations.peak


def seconds(step: Step) -> float:
    """Wall time of one step, on a GPU until it has finished; the gradients are freed off the clock."""
    start = timer()  # which waits for a GPU
    step()
    elapsed = timer() - start
    step.clear()
    return elapsed


def time_in_rounds(
    steps: Sequence[Step], repeats: int, warmup: int, deadline: float, progress: Progress
) -> list[list[float]]:
    """Seconds of each step in the rounds that count, by turns: A B C A B C …; no garbage is collected meanwhile.

    After the deadline by `time.perf_counter` no warm-up begins, and no more than three rounds count.
    """
    rounds: list[list[float]] = []
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()
    try:
        for index in range(warmup):
            if time.perf_counter() < deadline:
                progress(f"warm-up {index + 1} of {warmup}")
                for step in steps:
                    seconds(step)
        while len(rounds) < (
            repeats if time.perf_counter() < deadline else min(repeats, FEWEST_ROUNDS)
        ):
            progress(f"round {len(rounds) + 1} of {repeats}")
            rounds.append([seconds(step) for step in steps])
    finally:
        if collecting:
            gc.enable()
    return [list(column) for column in zip(*rounds, strict=True)]


def disagreement(step: Step) -> tuple[str, float] | None:
    """What of output and gradients has the largest ‖fast − dense‖ / ‖dense‖, or is NaN; None without a dense twin."""
    if not isinstance(step.module, Attention) or step.module.backend == "dense":
        return None
    twin = copy.deepcopy(step.module)
    twin.backend = "dense"
    fast, dense = _outcome(step), _outcome(Step(twin, step.tokens, step.grid))
    errors = {what: _relative_error(fast[what], dense[what]) for what in dense}
    return max(errors.items(), key=lambda one: (math.isnan(one[1]), one[1]))


def _outcome(step: Step) -> dict[str, Tensor]:
    """The output and, under their names, the gradients."""
    output = step.module(step.tokens, step.grid)
    parameters = dict(step.module.named_parameters())
    inputs = [step.tokens, *parameters.values()]
    # A parameter that the output does not depend on has a gradient of 0, and the twin must say so too.
    gradients = torch.autograd.grad(
        output, inputs, step.tokens.detach(), allow_unused=True, materialize_grads=True
    )
    names = ["gradient of tokens", *(f"gradient of {name}" for name in parameters)]
    return {"output": output.detach(), **dict(zip(names, gradients, strict=True))}


def _relative_error(fast: Tensor, dense: Tensor) -> float:
    """‖fast − dense‖ / ‖dense‖; 0 if both are 0."""
    difference, size = (
        float(tensor.double().norm()) for tensor in (fast.double() - dense.double(), dense)
    )
    if size == 0:
        return 0.0 if difference == 0 else math.inf if difference == difference else math.nan
    return difference / size
