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


def are_transforms_active() -> bool:
    """Return True within a transform of torch.func, such as `vmap`."""
    return torch._C._are_functorch_transforms_active()


def execution_mode(*tensors: Tensor) -> ExecutionMode:
    """Return how PyTorch executes a call with these tensors, for example eagerly.

    Raises:
        RuntimeError: `torch.jit.trace` records the call.
    """
    if torch.compiler.is_compiling():
        return ExecutionMode.RECORDING
    if torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
        raise RuntimeError(
            "teka does not support torch.jit.trace. Use torch.compile or torch.export."
        )
    if are_transforms_active():
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


def is_readable(tensor: Tensor) -> bool:
    """Return True if the elements of a tensor exist and can be read now."""
    if execution_mode(tensor) is not ExecutionMode.EAGER or tensor.numel() == 0:
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def can_cache_tensors(device: torch.device) -> bool:
    """Return True if tensors that are created on a device now can be reused in later calls.

    They cannot if, for example, the current call is compiled or in inference mode.
    """
    if execution_mode() is not ExecutionMode.EAGER or torch.is_inference_mode_enabled():
        return False
    if _get_dispatch_mode(_TorchDispatchModeKey.FAKE) is not None:  # torch.compile cannot trace it
        return False
    return not (device.type == "cuda" and torch.cuda.is_current_stream_capturing())


def has_dynamic_size(*sizes: int) -> bool:
    """Return True if one of the sizes is a variable of the graph that PyTorch records.

    Code must not branch on such a size in `torch.export`, because the exported graph would contain
    only one of the branches.
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
