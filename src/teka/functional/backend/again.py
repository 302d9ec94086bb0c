"""Intermediate values that are made again in the backward pass, and not kept for it."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def again_in_backward(function: Callable[..., Tensor], *arguments: object) -> Tensor:
    """function(*arguments), computed again in the backward pass, if there is to be one.

    The transforms of torch.func know no such thing; under them everything is kept.

    Args:
        function: A function without randomness.
        arguments: Its arguments.
    """
    if not torch.is_grad_enabled():
        return function(*arguments)
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        return function(*arguments)
    output = checkpoint(function, *arguments, use_reentrant=False)
    assert isinstance(output, Tensor)
    return output
