"""Foretell what a step will cost, from shapes alone."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from teka.bench.allocations import Allocations
from teka.bench.step import Step


@dataclass(frozen=True)
class Rehearsal:
    """What a step will cost.

    Args:
        flops: Floating-point operations of its matrix products, two for each multiply-add; sums and functions of single
            numbers do not count.
        peak_bytes: Most bytes allocated at once, beyond tokens and parameters.
    """

    flops: int
    peak_bytes: int


def rehearse(step: Step) -> Rehearsal:
    """Run a step on tensors that have shapes but no numbers, and so neither time nor memory to speak of.

    Args:
        step: The step; a layer with random features must have run once, as it looks at its numbers the first time.
    """
    fake = FakeTensorMode()
    state = [*step.module.named_parameters(), *step.module.named_buffers()]
    tensors: dict[str, Tensor] = {name: fake.from_tensor(tensor) for name, tensor in state}
    tokens = fake.from_tensor(step.tokens)
    counter = FlopCounterMode(display=False, custom_mapping=FUSED)
    with fake, counter, Allocations() as allocations:
        functional_call(step.module, tensors, (tokens, step.grid)).backward(tokens.detach())
    return Rehearsal(counter.get_total_flops(), allocations.peak)


def _fused_flops(query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, out_shape: Any, **__: Any) -> int:
    return sdpa_flop_count(query, key, value)


def _fused_backward_flops(
    gradient: torch.Size, query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, out_shape: Any, **__: Any
) -> int:
    return sdpa_backward_flop_count(gradient, query, key, value)


# torch's counter knows the fused attention of a GPU but not that of a CPU, which does the same products.
FUSED = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _fused_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _fused_backward_flops,
}
