"""Foretell the memory that a step will take, from shapes alone."""

from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.func import functional_call

from teka.experiments.bench.allocations import Allocations
from teka.experiments.bench.step import Step
from teka.grid import Grid


def rehearse(step: Step) -> int | None:
    """Run a step on tensors that have shapes but no numbers, and so neither time nor memory to speak of.

    Args:
        step: The step; a layer with random features must have run once, as it looks at its numbers the first time.

    Returns:
        Most bytes allocated at once, beyond tokens and parameters; None if that depends on the numbers, as where a
        backend computes those rows again that rounding may have spoilt.
    """
    fake = FakeTensorMode()
    state = [*step.module.named_parameters(), *step.module.named_buffers()]
    tensors: dict[str, Tensor] = {name: fake.from_tensor(tensor) for name, tensor in state}

    def stand_in(tokens: Tensor, grid: Grid) -> Tensor:
        return functional_call(step.module, tensors, (tokens, grid))

    tokens = fake.from_tensor(step.tokens)
    try:
        with fake, Allocations() as allocations:
            step.run(stand_in, tokens)
    except (DataDependentOutputException, DynamicOutputShapeException):
        return None
    return allocations.peak
