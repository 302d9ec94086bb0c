"""Whether a computation runs as it is written, or is recorded and rewritten by a transform."""

import torch
from torch import Tensor
from torch.autograd import forward_ad


def is_plain_eager_on_cpu(*tensors: Tensor) -> bool:
    """Whether tensors are on a CPU and none of torch.compile, torch.export and torch.func is at work.

    Evaluations that work in small blocks are for such runs; the others take what is made of whole tensors.

    Args:
        tensors: The inputs.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return all(tensor.is_cpu and forward_ad.unpack_dual(tensor).tangent is None for tensor in tensors)
