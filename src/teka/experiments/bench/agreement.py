"""Check that a fast path computes what its dense twin does, before it is timed."""

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from teka.experiments.bench.step import Step
from teka.nn import Attention

BAND = 1e-3
"""Largest relative difference from the dense twin in float32, in the output and in every gradient."""


@dataclass(frozen=True)
class Disagreement:
    """The largest relative difference ‖fast − dense‖ / ‖dense‖ between a layer and its dense twin.

    Args:
        what: The output, or whose gradient.
        error: How much.
    """

    what: str
    error: float

    @property
    def is_acceptable(self) -> bool:
        """Whether it is within the band; NaN is not."""
        return self.error <= BAND


def disagreement(step: Step) -> Disagreement | None:
    """Compare output and all gradients of a step with those of the same layer computed densely.

    Args:
        step: The step.

    Returns:
        The largest difference, or None for a layer that has no dense twin: it is dense, or not teka's.
    """
    if not isinstance(step.module, Attention) or step.module.backend == "dense":
        return None
    twin = copy.deepcopy(step.module)
    twin.backend = "dense"
    fast, dense = _outcome(step), _outcome(Step(twin, step.tokens, step.grid))
    found = [Disagreement(what, _relative_error(fast[what], dense[what])) for what in dense]
    return next((one for one in found if one.error != one.error), max(found, key=lambda one: one.error))


def _outcome(step: Step) -> dict[str, Tensor]:
    """The output and, under their names, the gradients."""
    output = step.module(step.tokens, step.grid)
    parameters = dict(step.module.named_parameters())
    inputs = [step.tokens, *parameters.values()]
    # A parameter that the output does not depend on has a gradient of 0, and the twin must say so too.
    gradients = torch.autograd.grad(output, inputs, step.tokens.detach(), allow_unused=True, materialize_grads=True)
    names = ["gradient of tokens", *(f"gradient of {name}" for name in parameters)]
    return {"output": output.detach(), **dict(zip(names, gradients, strict=True))}


def _relative_error(fast: Tensor, dense: Tensor) -> float:
    """‖fast − dense‖ / ‖dense‖; 0 if both are 0."""
    difference, size = (float(tensor.double().norm()) for tensor in (fast.double() - dense.double(), dense))
    if size == 0:
        return 0.0 if difference == 0 else math.inf if difference == difference else math.nan
    return difference / size
