"""Floating-point precision: float64 where a device supports it, and blocks without autocast."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
DEVICES_WITHOUT_FLOAT64 = {"mps"}  # Apple's GPUs


def widest_dtype(device: torch.device) -> torch.dtype:
    """Return float64, or float32 for a device without float64."""
    return torch.float32 if device.type in DEVICES_WITHOUT_FLOAT64 else torch.float64


def to_widest_dtype(tensor: Tensor) -> Tensor:
    """Return the tensor in float64, or in float32 on a device without float64."""
    return tensor.to(widest_dtype(tensor.device))


def to_float64(tensor: Tensor) -> Tensor:
    """Return the tensor in float64, on the CPU if its device has no float64."""
    return (tensor if widest_dtype(tensor.device) == torch.float64 else tensor.cpu()).double()


def without_autocast(device_type: str) -> AbstractContextManager[object]:
    """Return a context in which autocast is off.

    The context adds nothing to an exported graph if autocast is off already.
    """
    # PyTorch raises an error for the "meta" device.
    is_enabled = device_type != "meta" and torch.is_autocast_enabled(device_type)
    return torch.autocast(device_type, enabled=False) if is_enabled else nullcontext()


def backward_without_autocast(backward: Callable[..., T]) -> Callable[..., T]:
    """Decorate a backward pass so that it computes without autocast."""

    @wraps(backward)
    def call(ctx: Any, *gradients: Tensor) -> T:
        with without_autocast(gradients[0].device.type):
            return backward(ctx, *gradients)

    return call
