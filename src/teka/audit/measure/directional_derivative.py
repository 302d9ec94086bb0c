"""The derivative of a function along a direction, by whichever way its operations allow."""

from collections.abc import Callable

import torch
from torch import Tensor

# Step of the central difference, between its error of order h² and rounding of order ε / h.
STEP = 1 / 32

Derivative = Callable[[Callable[[Tensor], Tensor], Tensor, Tensor], tuple[Tensor, Tensor]]


def forward_derivative(
    function: Callable[[Tensor], Tensor], inputs: Tensor, direction: Tensor
) -> tuple[Tensor, Tensor]:
    """f(x) and ∂f(x)·v, by forward-mode differentiation.

    Args:
        function: Takes the inputs.
        inputs: The point x.
        direction: The direction v, of the inputs' shape.

    Raises:
        NotImplementedError: An operation has no forward derivative.
    """
    return torch.func.jvp(function, (inputs,), (direction,))  # pyright: ignore[reportReturnType]


def backward_derivative(
    function: Callable[[Tensor], Tensor], inputs: Tensor, direction: Tensor
) -> tuple[Tensor, Tensor]:
    """f(x) and ∂f(x)·v, by the derivative of the backward pass with respect to what enters it.

    Args:
        function: Takes the inputs.
        inputs: The point x.
        direction: The direction v, of the inputs' shape.

    Raises:
        RuntimeError: The backward pass of an operation has no derivative.
    """
    return torch.autograd.functional.jvp(function, inputs, direction)  # pyright: ignore[reportReturnType]


def difference_quotient(
    function: Callable[[Tensor], Tensor], inputs: Tensor, direction: Tensor
) -> tuple[Tensor, Tensor]:
    """f(x) and (f(x + h v) − f(x − h v)) / 2h with h = 1/32: ∂f(x)·v up to h² and rounding.

    Args:
        function: Takes the inputs.
        inputs: The point x.
        direction: The direction v, of the inputs' shape.
    """
    # New tensors each time, and copies of what comes, for a function may write into its input and reuse its output.
    ahead, behind, value = (function(inputs + step * direction).clone() for step in (STEP, -STEP, 0.0))
    return value, (ahead - behind) / (2 * STEP)


DERIVATIVES: dict[str, Derivative] = {
    "forward-mode jvp": forward_derivative,
    "double backward": backward_derivative,
    "central difference": difference_quotient,
}
