"""What layers check of the tokens that they are given."""

import torch
from torch import Tensor, nn

from teka.checks import check_tensor
from teka.errors import wrong_value


def check_tokens(argument: str, tokens: Tensor, *sizes: str | int, first: nn.Module) -> None:
    """Check that tokens, or images, have a shape, and the dtype of the weights that they are to meet.

    A map that is not torch's own may take any dtype, and so may any map in mixed precision, where torch casts.

    Args:
        argument: The argument's name.
        tokens: What was given.
        sizes: Every size, or its name where it may be any.
        first: A map of the layer.

    Raises:
        ValueError: Another shape or dtype.
    """
    check_tensor(argument, tokens, *sizes)
    if type(first) not in (nn.Linear, nn.Conv2d) or torch.compiler.is_compiling():
        return
    assert isinstance(first.weight, Tensor)
    dtypes = (tokens.dtype, first.weight.dtype)
    is_cast = torch.float64 not in dtypes and torch.is_autocast_enabled(tokens.device.type)
    if dtypes[0] != dtypes[1] and not is_cast:
        raise wrong_value(argument, tokens.dtype, f"{dtypes[1]}, as the layer's weights are")
