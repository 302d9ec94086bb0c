"""What teka uses of torch beyond its documented interface, in one place: where torch changes it, this file does."""

from types import ModuleType

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter


def is_transformed(*tensors: Tensor) -> bool:
    """Whether a transform of torch.func or forward-mode differentiation is at work."""
    if torch._C._are_functorch_transforms_active():
        return True
    return any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


def is_plain_eager(*tensors: Tensor) -> bool:
    """Whether none of torch.compile, torch.export, torch.func and forward-mode differentiation is at work.

    Evaluations that write into slices of their results are for such runs; the others take what is made of whole
    tensors.
    """
    return not torch.compiler.is_compiling() and not is_transformed(*tensors)


def is_plain_eager_on_cpu(*tensors: Tensor) -> bool:
    """Whether that is so and the tensors are on a CPU, where work in small blocks stays in the cache."""
    return all(tensor.is_cpu for tensor in tensors) and is_plain_eager(*tensors)


def has_numbers(tensor: Tensor) -> bool:
    """Whether there are numbers to look at, and not only a computation that is recorded or rehearsed."""
    if not is_plain_eager(tensor) or type(tensor) not in (Tensor, Parameter) or tensor.numel() == 0:
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def is_recorded(tensor: Tensor) -> bool:
    """Whether a computation is recorded or rewritten by anything of torch, so that a tensor has no numbers now."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or torch._C._is_tracing():
        return True
    return bool(torch._C._len_torch_dispatch_stack()) or type(tensor) not in (Tensor, Parameter)


def keeps_tensors(device: torch.device) -> bool:
    """Whether a tensor that is made now from plain numbers is an ordinary one, which later calls may use too."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or torch._C._is_tracing():
        return False
    if torch._C._len_torch_dispatch_stack() or torch.is_inference_mode_enabled():
        return False
    return not (device.type == "cuda" and torch.cuda.is_current_stream_capturing())


def fake_tensors() -> ModuleType:
    """The module of tensors without numbers, with which the memory of a step is rehearsed; it is slow to import."""
    from torch._subclasses import fake_tensor

    return fake_tensor
