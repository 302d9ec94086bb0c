"""Undocumented interfaces of PyTorch that teka needs, and workarounds for its versions."""

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch._C import _get_dispatch_mode, _TorchDispatchModeKey
from torch.fx._pytree import register_pytree_flatten_spec
from torch.serialization import add_safe_globals
from torch.utils._pytree import register_pytree_node

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
else:  # builds of PyTorch without distributed training lack this class
    ProcessGroup = getattr(torch.distributed, "ProcessGroup", type(None))

T = TypeVar("T")


def replace(instance: T, **changes: object) -> T:
    """Return a copy of a dataclass instance with changed fields, as `dataclasses.replace` does.

    `torch.compile` of PyTorch 2.6 cannot follow `dataclasses.replace`.
    """
    dataclass: Any = instance
    values = {field.name: getattr(instance, field.name) for field in fields(dataclass)}
    return type(instance)(**{**values, **changes})


def register_constant(kind: type[T], to_json: Callable[[T], Any], load: Callable[[Any], T]) -> None:
    """Register a class without tensors, so that torch.export and torch.func take its instances as constants.

    Args:
        kind: A class whose instances hold no tensors and compare by value.
        to_json: Convert an instance to JSON data for the file of an exported program.
        load: Convert the JSON data back to an instance.
    """
    register_pytree_node(
        kind,
        lambda instance: ([], instance),
        lambda _, instance: instance,
        serialized_type_name=f"{kind.__module__}.{kind.__qualname__}",
        to_dumpable_context=to_json,
        from_dumpable_context=load,
        flatten_with_keys_fn=lambda instance: ([], instance),
    )
    register_pytree_flatten_spec(kind, lambda instance, spec: [], lambda instance, spec: True)
    add_safe_globals([kind])


def are_transforms_active() -> bool:
    """Return True within a transform of torch.func."""
    return torch._C._are_functorch_transforms_active()


def is_fake_mode_active() -> bool:
    """Return True within FakeTensorMode, where new tensors have no elements."""
    return _get_dispatch_mode(_TorchDispatchModeKey.FAKE) is not None


def __getattr__(name: str) -> Any:
    # Old names, until all callers are converted.
    from importlib import import_module

    modes: Any = import_module("teka.execution_mode")
    precision: Any = import_module("teka.precision")

    def is_plain_eager(*tensors: Any) -> bool:
        return modes.execution_mode(*tensors) in (
            modes.ExecutionMode.EAGER,
            modes.ExecutionMode.SHAPES_ONLY,
        )

    def is_compiled() -> bool:
        is_exporting = getattr(torch.compiler, "is_exporting", None)
        if is_exporting is None or not torch.compiler.is_compiling():
            return False
        return not is_exporting() and not torch._C._are_functorch_transforms_active()

    old = {
        "records_graph": torch.compiler.is_compiling,
        "is_transformed": lambda *tensors: (
            modes.execution_mode(*tensors) is modes.ExecutionMode.TRANSFORMED
        ),
        "has_tangent": lambda tensor: (
            torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None
        ),
        "as_recorded": lambda function: function,
        "is_traced": lambda: False,
        "is_compiled": is_compiled,
        "is_dynamic": modes.is_dynamic,
        "is_plain_eager": is_plain_eager,
        "is_plain_eager_on_cpu": lambda *tensors: (
            all(tensor.is_cpu for tensor in tensors) and is_plain_eager(*tensors)
        ),
        "by_hand": precision.in_given_dtypes,
        "has_numbers": modes.is_readable,
        "is_rehearsed": lambda tensor: (
            modes.execution_mode(tensor) is modes.ExecutionMode.SHAPES_ONLY
        ),
        "is_recorded": lambda tensor: not modes.is_readable(tensor),
        "keeps_tensors": modes.may_cache,
        "without_autocast": precision.without_autocast,
        "widest": precision.widest,
        "precise": precision.precise,
        "in_float64": precision.in_float64,
    }
    if name not in old:
        raise AttributeError(name)
    return old[name]
