"""What teka uses of torch and Lightning beyond their documented interfaces: where they change it, this file does."""

import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch._C import _get_dispatch_mode, _TorchDispatchModeKey
from torch.autograd import forward_ad
from torch.func import functionalize
from torch.fx._pytree import register_pytree_flatten_spec
from torch.nn import Parameter
from torch.serialization import add_safe_globals
from torch.utils import checkpoint as torch_checkpoint
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import register_pytree_node

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
else:  # a build of torch for one process has none
    ProcessGroup = getattr(torch.distributed, "ProcessGroup", type(None))


T = TypeVar("T")
Capture: TypeAlias = Callable[[], Callable[[], AbstractContextManager[object]]]
WITHOUT_FLOAT64 = {"mps"}  # Apple's GPUs


def replace(one: T, **changes: object) -> T:
    """`dataclasses.replace`, which `torch.compile` of torch 2.6 cannot follow."""
    known: Any = one
    return type(one)(
        **{**{field.name: getattr(one, field.name) for field in fields(known)}, **changes}
    )


def without_tensors(kind: type[T], write: Callable[[T], object], read: Callable[[Any], T]) -> None:
    """Let models that are exported or mapped take objects of a class, as parts of the program and not its inputs.

    Args:
        kind: The class; its objects hold no tensors and are compared by what they hold.
        write: What JSON is to hold of one, in the file of an exported program.
        read: The object again.
    """
    register_pytree_node(
        kind,
        lambda one: ([], one),
        lambda _, one: one,
        serialized_type_name=f"{kind.__module__}.{kind.__qualname__}",
        to_dumpable_context=write,
        from_dumpable_context=read,
        flatten_with_keys_fn=lambda one: ([], one),
    )
    register_pytree_flatten_spec(kind, lambda one, spec: [], lambda one, spec: True)
    add_safe_globals([kind])


def restore_in_recomputation(capture: Capture) -> bool:
    """Make `torch.utils.checkpoint` recompute under the ambient state of the forward pass.

    PyTorch captures random numbers and autocast when a checkpoint is entered, and nothing else. Its backward pass may
    run after a context manager has been left, within another one, or in another thread.

    Args:
        capture: Reads the present state of this thread when a checkpoint is entered, and returns a function that makes
            a context manager with that state, which is entered around each recomputation.

    Returns:
        True, or False if this version of PyTorch lacks the undocumented classes that this function wraps.
    """
    checkpoint: Any = torch_checkpoint
    if not (hasattr(checkpoint, "CheckpointFunction") and hasattr(checkpoint, "_CheckpointFrame")):
        return False
    reentrant_forward = checkpoint.CheckpointFunction.forward
    make_frame = checkpoint._CheckpointFrame.__init__

    def recomputed(function: Callable[..., T]) -> Callable[..., T]:
        restore = capture()

        def call(*args: object, **kwargs: object) -> T:
            with restore():
                return function(*args, **kwargs)

        return call

    @wraps(reentrant_forward)
    def forward(ctx: Any, function: Callable, *args: object) -> object:
        return reentrant_forward(ctx, recomputed(function), *args)

    @wraps(make_frame)
    def init(self: object, recompute: Callable, *args: object, **kwargs: object) -> None:
        make_frame(self, recomputed(recompute), *args, **kwargs)

    checkpoint.CheckpointFunction.forward = staticmethod(forward)
    checkpoint._CheckpointFrame.__init__ = init
    return True


def is_transformed(*tensors: Tensor) -> bool:
    """Whether a transform of torch.func or forward-mode differentiation is at work; what is compiled is not asked."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or any(map(has_tangent, tensors))


def has_tangent(tensor: Tensor) -> bool:
    """Whether forward-mode differentiation is at work on a tensor."""
    return forward_ad.unpack_dual(tensor).tangent is not None


def records_graph() -> bool:
    """Whether torch.compile, torch.export, torch.jit.trace or make_fx records operations, for other numbers."""
    return torch.compiler.is_compiling() or is_traced() or is_made_fx()


def is_made_fx() -> bool:
    """Whether make_fx records operations, by itself or in torch.func.linearize."""
    return _get_dispatch_mode(_TorchDispatchModeKey.PROXY) is not None


def as_recorded(function: Callable[..., T]) -> Callable[..., T]:
    """The function, without operations in place for torch.func.linearize, which takes a new tensor for a constant."""
    return (
        function if torch.compiler.is_compiling() or not is_made_fx() else functionalize(function)
    )


def is_traced() -> bool:
    """Whether torch.jit.trace records operations."""
    return torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]


def is_compiled() -> bool:
    """Whether torch.compile records operations as they are, for this process alone; of torch 2.6 it is not known."""
    is_exporting = getattr(torch.compiler, "is_exporting", None)
    if is_exporting is None or not torch.compiler.is_compiling():
        return False
    return not is_exporting() and not torch._C._are_functorch_transforms_active()


def is_dynamic(*sizes: int) -> bool:
    """Return True if one of these sizes may change in a graph that torch.export records, so that no branch may test it.

    torch.compile may test a size: it compiles again for other sizes.
    """
    for size in sizes:
        if isinstance(size, torch.SymInt):
            return True
    is_exporting = getattr(torch.compiler, "is_exporting", None)
    if is_exporting is None or not is_exporting() or not torch.compiler.is_dynamo_compiling():
        return False
    # Dynamo, which exports with strict=True, shows every size as an int.
    from torch.fx.experimental import symbolic_shapes

    has_static_value = getattr(symbolic_shapes, "has_static_value", None)
    return has_static_value is not None and not all(has_static_value(size) for size in sizes)


def is_plain_eager(*tensors: Tensor) -> bool:
    """Whether none of these, torch.func and forward-mode differentiation is at work."""
    return not records_graph() and not is_transformed(*tensors)


def is_plain_eager_on_cpu(*tensors: Tensor) -> bool:
    """Whether that is so and the tensors are on a CPU, where work in small blocks stays in the cache."""
    return all(tensor.is_cpu for tensor in tensors) and is_plain_eager(*tensors)


def without_autocast(device_type: str) -> AbstractContextManager[object]:
    """A block that computes in the dtypes it is given; where it would anyway there is nothing in an exported graph."""
    # On the device without numbers torch refuses the question.
    is_enabled = device_type != "meta" and torch.is_autocast_enabled(device_type)
    return torch.autocast(device_type, enabled=False) if is_enabled else nullcontext()


def by_hand(backward: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """A backward pass by hand: in the dtypes it is given, under autocast too, and of many gradients in turn."""
    known: Any = torch  # of what follows its types tell nothing

    @wraps(backward)
    def plain(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        with without_autocast(gradients[0].device.type):
            if records_graph() or not any(
                map(known._C._functorch.is_legacy_batchedtensor, gradients)
            ):
                return backward(ctx, *gradients)
            # Of `is_grads_batched` and `vectorize`, by a transform that knows few operations and none in place.
            level = known._C._vmapmode_increment_nesting() - 1
            known._C._vmapmode_decrement_nesting()
            of_each = [
                known._remove_batch_dim(one, level, 1, 0) for one in gradients
            ]  # of one that has no batch once
            size = max(map(len, of_each))
            of_each = [one.expand(size, *one.shape[1:]) for one in of_each]
            found = [backward(ctx, *those) for those in zip(*of_each, strict=True)]
        return tuple(
            None if each[0] is None else known._add_batch_dim(torch.stack(each), 0, level)
            for each in zip(*found, strict=True)
        )

    return plain


def has_numbers(tensor: Tensor) -> bool:
    """Whether there are numbers to look at, and not only a computation that is recorded or rehearsed."""
    if (
        tensor.is_meta
        or not is_plain_eager(tensor)
        or type(tensor) not in (Tensor, Parameter)
        or tensor.numel() == 0
    ):
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def is_rehearsed(tensor: Tensor) -> bool:
    """Whether a computation is gone through for its shapes alone, to be counted and not kept: what is usual may be."""
    if not is_plain_eager() or has_numbers(tensor) or not torch._C._len_torch_dispatch_stack():
        return False
    return any(getattr(mode, "only_looks", False) for mode in _get_current_dispatch_mode_stack())


def is_recorded(tensor: Tensor) -> bool:
    """Whether a computation is recorded or rewritten by anything of torch, so that a tensor has no numbers now."""
    if records_graph() or torch._C._are_functorch_transforms_active():
        return True
    return bool(torch._C._len_torch_dispatch_stack()) or type(tensor) not in (Tensor, Parameter)


def is_batched(tensor: Tensor) -> bool:
    """Return True if torch.func.vmap has hidden a batch dimension of a tensor, whose elements cannot be read then."""
    return torch._C._functorch.is_batchedtensor(tensor)  # pyright: ignore[reportAttributeAccessIssue]


def uncompiled() -> AbstractContextManager[object]:
    """A block in which what torch.compile made runs as it is written, with the hooks that modules have by then."""
    # Without the module, which is slow to import, nothing is compiled.
    return (
        torch.compiler.set_stance("force_eager")
        if "torch._dynamo" in sys.modules
        else nullcontext()
    )


def keeps_tensors(device: torch.device) -> bool:
    """Whether a tensor made now is an ordinary one, for later calls too; so under modes that only look."""
    if records_graph() or torch._C._are_functorch_transforms_active():
        return False
    modes = _get_current_dispatch_mode_stack() if torch._C._len_torch_dispatch_stack() else ()
    if torch.is_inference_mode_enabled() or not all(
        getattr(mode, "only_looks", False) for mode in modes
    ):
        return False
    return not (device.type == "cuda" and torch.cuda.is_current_stream_capturing())


def widest(device: torch.device) -> torch.dtype:
    """The floating dtype of most digits that a device has."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def precise(tensor: Tensor) -> Tensor:
    """The tensor in float64, or in float32 on a device that has none."""
    return tensor.to(widest(tensor.device))


def in_float64(tensor: Tensor) -> Tensor:
    """The tensor in float64, on the CPU where its device has none."""
    return (tensor if widest(tensor.device) == torch.float64 else tensor.cpu()).double()


def fake_tensors() -> ModuleType:
    """The module of tensors without numbers, with which the memory of a step is rehearsed; it is slow to import."""
    from torch._subclasses import fake_tensor

    return fake_tensor


def process_rank(new: int | None = None) -> int:
    """Which of the processes that Lightning trains with this is, 0 without others; a new one is set thereafter."""
    from lightning.pytorch.utilities import rank_zero_only

    rank = getattr(rank_zero_only, "rank", 0)
    if new is not None:
        setattr(rank_zero_only, "rank", new)  # noqa: B010, Lightning declares it nowhere
    return rank


def makers_flops(device: torch.device, dtype: torch.dtype) -> int | None:
    """The most operations a second that a GPU's maker names for a type, by Lightning's table; None beyond it."""
    from lightning.fabric.utilities.throughput import get_available_flops

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(FLOPs not found|does not support).*")
        return get_available_flops(device, dtype)
