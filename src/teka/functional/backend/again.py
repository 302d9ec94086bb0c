"""Intermediate values that are made again in the backward pass, and not kept for it."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from teka.functional.eager import is_plain_eager


def again_in_backward(function: Callable[..., Tensor], *arguments: object) -> Tensor:
    """function(*arguments), computed again in the backward pass, if there is to be one.

    The transforms of torch.func know no such thing; under them everything is kept.

    Args:
        function: A function without randomness.
        arguments: Its arguments.
    """
    if not torch.is_grad_enabled() or not (torch.compiler.is_compiling() or is_plain_eager()):
        return function(*arguments)
    output = checkpoint(function, *arguments, use_reentrant=False)
    assert isinstance(output, Tensor)
    return output
