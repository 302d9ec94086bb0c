"""Numerical precision: float64 where it exists, autocast, and rounding errors."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
DEVICES_WITHOUT_FLOAT64 = {"mps"}  # Apple's GPUs


def widest_dtype(device: torch.device) -> torch.dtype:
    """Return the most precise dtype of a device: float64, or float32 on Apple GPUs."""
    return torch.float32 if device.type in DEVICES_WITHOUT_FLOAT64 else torch.float64


def to_widest_dtype(tensor: Tensor) -> Tensor:
    """Convert a tensor to the most precise dtype of its device.

    This is float64, or float32 on Apple GPUs.
    """
    return tensor.to(widest_dtype(tensor.device))


def to_float64(tensor: Tensor) -> Tensor:
    """Convert a tensor to float64, on the CPU if its device does not support float64."""
    return (tensor if widest_dtype(tensor.device) == torch.float64 else tensor.cpu()).double()


def without_autocast(device_type: str) -> AbstractContextManager[object]:
    """Return a context manager that turns autocast off.

    If autocast is already off, the context manager does nothing, so that it adds no operation to
    exported graphs.
    """
    # PyTorch raises an error for the "meta" device.
    is_enabled = device_type != "meta" and torch.is_autocast_enabled(device_type)
    return torch.autocast(device_type, enabled=False) if is_enabled else nullcontext()


def backward_without_autocast(backward: Callable[..., T]) -> Callable[..., T]:
    """Decorator for `backward` of a `torch.autograd.Function`, which turns autocast off in it."""

    @wraps(backward)
    def call(ctx: Any, *gradients: Tensor) -> T:
        with without_autocast(gradients[0].device.type):
            return backward(ctx, *gradients)

    return call


def relative_difference(response: Tensor, reference: Tensor) -> float:
    """Return the relative difference ‖response − reference‖ / ‖reference‖ of two tensors.

    Raises:
        ValueError: The reference is zero.
    """
    largest = reference.abs().max()
    if largest == 0:
        raise ValueError(
            "The output of function must have nonzero elements to be compared, got only zeros."
        )
    # Divide by the largest element so that squares do not overflow.
    response, reference = response / largest, reference / largest
    return float(
        torch.linalg.vector_norm(response - reference) / torch.linalg.vector_norm(reference)
    )


def rounding_error_bound(epsilon: float) -> float:
    """Return the relative error of a model's outputs up to which rounding alone may explain it.

    The bound is 1e-5 in float32, about 2e-14 in float64, and 4 times epsilon in half precision.

    Args:
        epsilon: Machine epsilon of the outputs' dtype, as in `torch.finfo`.
    """
    return max(4 * epsilon, min(84 * epsilon, 1e-5))
