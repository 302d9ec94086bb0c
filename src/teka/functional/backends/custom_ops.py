"""Maps that are computed by hand, in loops over parts that stay in a CPU's cache: each one node of a compiled graph."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from teka.functional.shapes import Gradients


class ByHand(ABC):
    """A map of tensors, and what its gradients need beside these."""

    @abstractmethod
    def outputs(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The value, and after it what gradients need."""

    @abstractmethod
    def new_outputs(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Tensors of the outputs' shapes."""

    @abstractmethod
    def output_gradients(
        self,
        gradient: Tensor,
        tensors: Sequence[Tensor],
        outputs: Sequence[Tensor],
        needs: Sequence[bool],
    ) -> Gradients:
        """Gradients of the tensors, at least of those that need one, from that of the value."""


# Those that compiled graphs may hold, by their names.
MAPS: dict[str, ByHand] = {}
# Of both operators; torch 2.6 reads no annotation of a sequence.
INPUTS = "str name, Tensor[] tensors"


def by_hand(name: str, tensors: Sequence[Tensor]) -> Tensor:
    """The value of a map of `MAPS`, while a graph is recorded."""
    return outputs_by_hand(name, list(tensors))[0]


@custom_op("teka::outputs_by_hand", mutates_args=(), schema=f"({INPUTS}) -> Tensor[]")
def outputs_by_hand(name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of a map."""
    return MAPS[name].outputs(tensors)


def in_order_of(like: Tensor, tensor: Tensor) -> Tensor:
    """A tensor in the order in memory that `torch.empty_like` gives one like another."""
    expected = torch.empty_like(like)
    return tensor if tensor.stride() == expected.stride() else expected.copy_(tensor)


@outputs_by_hand.register_fake
def _(name, tensors):
    return MAPS[name].new_outputs(tensors)


@custom_op(
    "teka::gradients_by_hand",
    mutates_args=(),
    schema=f"(Tensor gradient, {INPUTS}, Tensor[] outputs, bool[] needs) -> Tensor[]",
)
def gradients_by_hand(
    gradient: Tensor,
    name: str,
    tensors: Sequence[Tensor],
    outputs: Sequence[Tensor],
    needs: Sequence[bool],
) -> list[Tensor]:
    """Gradients of the tensors that need one, and of no other."""
    found = MAPS[name].output_gradients(gradient, tensors, outputs, needs)
    triples = zip(tensors, found, needs, strict=True)
    return [
        in_order_of(tensor, one) for tensor, one, needed in triples if needed and one is not None
    ]


@gradients_by_hand.register_fake
def _(gradient, name, tensors, outputs, needs):
    return [torch.empty_like(one) for one, needed in zip(tensors, needs, strict=True) if needed]


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.name, tensors = inputs
    ctx.num_tensors = len(tensors)
    ctx.save_for_backward(*tensors, *output)


def _gradients(ctx: Any, of_outputs: list[Tensor]) -> tuple[None, list[Tensor | None]]:
    saved = ctx.saved_tensors  # once, as torch.utils.checkpoint asks for
    tensors, outputs = saved[: ctx.num_tensors], saved[ctx.num_tensors :]
    needs = ctx.needs_input_grad[1]
    found = iter(gradients_by_hand(of_outputs[0], ctx.name, tensors, outputs, needs))
    return None, [next(found) if needed else None for needed in needs]


outputs_by_hand.register_autograd(_gradients, setup_context=_save)
