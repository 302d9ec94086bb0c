"""Detection of how PyTorch executes a call: eagerly, to record a graph, or in a transform."""

from enum import Enum

import torch
from torch import Tensor
from torch._C import _get_dispatch_mode, _TorchDispatchModeKey
from torch.autograd.forward_ad import unpack_dual
from torch.nn import Parameter


class ExecutionMode(Enum):
    """Mode in which PyTorch executes the current call, such as eagerly or to record a graph.

    Code may read the elements of a tensor only in `EAGER` mode, for example to branch on them.
    """

    EAGER = "eager"
    RECORDING = "recording"  # torch.compile, torch.export or torch.onnx.export builds a graph
    TRANSFORMED = "transformed"  # torch.func, forward-mode differentiation or a Tensor subclass
    SHAPES_ONLY = "shapes only"  # meta or fake tensors, which have no elements


def is_in_functorch_transform() -> bool:
    """Return True if the current call is inside a transform of torch.func, such as `vmap`."""
    return torch._C._are_functorch_transforms_active()


def execution_mode(*tensors: Tensor) -> ExecutionMode:
    """Return the mode in which PyTorch executes a call with these tensors, such as `EAGER`.

    Raises:
        RuntimeError: `torch.jit.trace` records the call.
    """
    if torch.compiler.is_compiling():
        return ExecutionMode.RECORDING
    if torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
        raise RuntimeError(
            "teka does not support torch.jit.trace. Use torch.compile or torch.export."
        )
    if is_in_functorch_transform():
        return ExecutionMode.TRANSFORMED
    for tensor in tensors:
        if unpack_dual(tensor).tangent is not None:
            return ExecutionMode.TRANSFORMED
    for tensor in tensors:
        if tensor.is_meta or hasattr(tensor, "fake_mode"):
            return ExecutionMode.SHAPES_ONLY
        if type(tensor) not in (Tensor, Parameter):
            return ExecutionMode.TRANSFORMED
    return ExecutionMode.EAGER


def can_read_elements(tensor: Tensor) -> bool:
    """Return True if the current code may read the elements of a tensor, for example to branch.

    This is False for empty tensors, outside of `EAGER` mode, and while a CUDA graph is captured.
    """
    if execution_mode(tensor) is not ExecutionMode.EAGER or tensor.numel() == 0:
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def can_cache_tensors(device: torch.device) -> bool:
    """Return True if a tensor that this call creates on a device may be cached for later calls.

    This is False, for example, if the call is compiled or in inference mode, because the tensor
    could then not be used outside of this call.
    """
    if execution_mode() is not ExecutionMode.EAGER or torch.is_inference_mode_enabled():
        return False
    if _get_dispatch_mode(_TorchDispatchModeKey.FAKE) is not None:  # torch.compile cannot trace it
        return False
    return not (device.type == "cuda" and torch.cuda.is_current_stream_capturing())


def has_dynamic_size(*sizes: int) -> bool:
    """Return True if one of the sizes is dynamic in the graph that PyTorch records.

    A dynamic size is a variable of the graph, not a number. Code must not branch on such a size
    under `torch.export`, because the exported graph would contain only one of the branches.

    Args:
        sizes: Sizes of tensors, such as the number of tokens.
    """
    for size in sizes:
        if isinstance(size, torch.SymInt):
            return True
    is_exporting = getattr(torch.compiler, "is_exporting", None)  # since PyTorch 2.7
    if is_exporting is None or not is_exporting() or not torch.compiler.is_dynamo_compiling():
        return False
    # torch.export(strict=True) uses Dynamo, which shows every size as an int.
    from torch.fx.experimental import symbolic_shapes

    has_static_value = getattr(symbolic_shapes, "has_static_value", None)
    return has_static_value is not None and not all(has_static_value(size) for size in sizes)
