"""Whether a computation runs as it is written, or is recorded and rewritten by a transform."""

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter


def is_plain_eager(*tensors: Tensor) -> bool:
    """Whether none of torch.compile, torch.export, torch.func and forward-mode differentiation is at work.

    Evaluations that write into slices of their results are for such runs; the others take what is made of whole
    tensors.

    Args:
        tensors: The inputs.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return all(forward_ad.unpack_dual(tensor).tangent is None for tensor in tensors)


def is_plain_eager_on_cpu(*tensors: Tensor) -> bool:
    """Whether that is so and the tensors are on a CPU, where work in small blocks stays in the cache.

    Args:
        tensors: The inputs.
    """
    return all(tensor.is_cpu for tensor in tensors) and is_plain_eager(*tensors)


def has_numbers(tensor: Tensor) -> bool:
    """Whether there are numbers to look at, and not only a computation that is recorded or rehearsed.

    Args:
        tensor: An input.
    """
    if not is_plain_eager(tensor) or type(tensor) not in (Tensor, Parameter) or tensor.numel() == 0:
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())
