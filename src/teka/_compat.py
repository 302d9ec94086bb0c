"""Workarounds for differences between PyTorch versions."""

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.fx._pytree import register_pytree_flatten_spec
from torch.serialization import add_safe_globals
from torch.utils._pytree import register_pytree_node

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
else:  # builds of PyTorch without distributed training lack this class
    ProcessGroup = getattr(torch.distributed, "ProcessGroup", type(None))

T = TypeVar("T")


def replace(instance: T, **changes: object) -> T:
    """Return a copy of a dataclass instance in which some fields have new values.

    Use this function instead of `dataclasses.replace` in code that PyTorch 2.6 compiles, because
    its `torch.compile` does not support `dataclasses.replace`.
    """
    dataclass: Any = instance
    values = {field.name: getattr(instance, field.name) for field in fields(dataclass)}
    return type(instance)(**{**values, **changes})


def register_constant(kind: type[Any]) -> None:
    """Register a dataclass, so that torch.export and torch.func accept its instances as arguments.

    An exported program treats each instance as a constant, and saves its fields as JSON data.

    Args:
        kind: A dataclass whose instances hold no tensors and compare by value.
    """
    register_pytree_node(
        kind,
        lambda instance: ([], instance),
        lambda _, instance: instance,
        serialized_type_name=f"{kind.__module__}.{kind.__qualname__}",
        to_dumpable_context=asdict,
        from_dumpable_context=lambda values: kind(**values),
        flatten_with_keys_fn=lambda instance: ([], instance),
    )
    register_pytree_flatten_spec(kind, lambda instance, spec: [], lambda instance, spec: True)
    add_safe_globals([kind])
