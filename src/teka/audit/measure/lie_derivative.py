"""Lie derivative of a model: how fast its outputs change under an infinitesimal shift."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from teka.audit.images import ImageSet, check_images, fourier_shift
from teka.audit.model_call import Model, calling, check_evaluation_mode, evaluate_model, output_of
from teka.checks import check_callable, check_dtype, check_sizes, is_integer
from teka.errors import EXTERNAL_ERRORS, error_message, wrong_value
from teka.precision import widest_dtype

# Step h of the central difference, a compromise between its error of order h² and rounding errors
# of order ε / h.
STEP = 1 / 32
TensorFunction = Callable[[Tensor], Tensor]
Derivative = Callable[[TensorFunction, Tensor, Tensor], Any]


def difference_quotient(
    function: TensorFunction, inputs: Tensor, direction: Tensor
) -> tuple[Tensor, Tensor]:
    """Return f(x) and its directional derivative, approximated by a central difference.

    The derivative ∂f(x)·v is approximated by (f(x + h v) − f(x − h v)) / 2h with h = 1/32.
    """
    # Use new inputs and clone the outputs, because the function may write into its input and
    # reuse its output buffer.
    ahead, behind, value = (
        function(inputs + step * direction).clone() for step in (STEP, -STEP, 0.0)
    )
    return value, (ahead - behind) / (2 * STEP)


# Methods that return f(x) and ∂f(x)·v of a function, a point and a direction, in order of trial.
DERIVATIVES: dict[str, Derivative] = {
    "forward-mode jvp": lambda function, inputs, direction: torch.func.jvp(
        function, (inputs,), (direction,)
    ),
    "double backward": torch.autograd.functional.jvp,
    "central difference": difference_quotient,
}


@dataclass(frozen=True)
class LieDerivative:
    """Relative rate of change of the outputs under a shift along one axis.

    Args:
        axis: Spatial axis of the shift; for images 0 is dy and 1 is dx.
        output: "dense" for maps that should shift with the image, "invariant" for other outputs.
        by_image: ‖L f(x)‖ / ‖f(x)‖ of each image, per pixel of shift.
        method: Method of differentiation, a name of `DERIVATIVES`.
        reason: Why a method before it in the list was not used, or None.
        mean: Mean over the images, computed from `by_image`.
    """

    axis: int
    output: str
    by_image: tuple[float, ...]
    method: str
    reason: str | None = None
    mean: float = math.nan

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", sum(self.by_image) / len(self.by_image))


def lie_derivative(
    function: Model, images: ImageSet, *, axis: int, batch_size: int = 256
) -> LieDerivative:
    """Measure how fast the outputs of a model change when images start to shift along an axis.

      Invariant outputs: L f(x) = d/dt f(T_t x) at t = 0
      Dense maps:        L f(x) = d/dt T_{−t h / S} f(T_t x) at t = 0

    T_t is `teka.audit.images.fourier_shift` by t pixels. Along the axis, a dense map has h cells
    for S pixels. An output is a dense map if it has as many axes as the images, and if its sizes
    along the spatial axes are larger than 1 and divide those of the images.

    Source: Gruver, Finzi, Goldblum and Wilson, "The Lie derivative for measuring learned
    equivariance", 2023.

    >>> import torch
    >>> from torch import nn
    >>> from teka.audit import lie_derivative
    >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    >>> images = torch.rand(20, 1, 8, 8)

    >>> derivative = lie_derivative(model, images, axis=1)
    >>> derivative.output, len(derivative.by_image)
    ('invariant', 20)

    Args:
        function: Function or module from images to outputs (B, …).
        images: Images (N, C, *S) of a floating-point dtype.
        axis: Spatial axis of the shift; for images 0 is dy and 1 is dx.
        batch_size: Number of images per call.

    Raises:
        ValueError: A module is in training mode, the images or the axis are invalid, or the
            output is not a finite real tensor (B, …) or changes although its norm is zero.
    """
    check_callable("function", function)
    check_evaluation_mode("function", function)
    check_images(images, least=1)
    check_dtype("images", images)
    num_axes = images.ndim - 2
    if not is_integer(axis) or not -num_axes <= axis < num_axes:
        raise wrong_value("axis", axis, f"one of {num_axes} spatial axes, counted from 0")
    check_sizes({"batch_size": batch_size})
    axis %= num_axes
    tried: list[str] = []
    measured: dict[str, tuple[float, ...]] = {}
    with torch.inference_mode(False), torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        # Call the function without derivatives first, so that its own errors are reported as such.
        plain = evaluate_model(function, images[:1].clone(), "on the first of the images")
        sides = zip(plain.shape[2:], images.shape[2:], strict=False)
        is_dense = plain.ndim == images.ndim and all(
            cells > 1 and side % cells == 0 for cells, side in sides
        )
        for method, derivative in DERIVATIVES.items():
            try:
                measured[method] = _measure(
                    function, derivative, images, axis, is_dense, batch_size
                )
            # Operations without this derivative raise errors of many classes.
            except EXTERNAL_ERRORS as error:
                if method == list(DERIVATIVES)[-1]:
                    raise
                tried.append(f"{method}: {type(error).__name__}: {error_message(error)}")
                continue
            if any(measured[method]):
                break
            tried.append(f"{method}: zero for every image")
    # If every method gives zero, the result is zero by the first method that worked.
    method = next((name for name, values in measured.items() if any(values)), next(iter(measured)))
    reason = "; ".join(tried[: list(DERIVATIVES).index(method)]) or None
    return LieDerivative(
        axis, "dense" if is_dense else "invariant", measured[method], method, reason
    )


def _measure(
    function: Model,
    derivative: Derivative,
    images: Tensor,
    axis: int,
    is_dense: bool,
    batch_size: int,
) -> tuple[float, ...]:
    """Return ‖L f(x)‖ / ‖f(x)‖ of each image."""

    def answer(batch: Tensor) -> Tensor:
        with calling():
            return output_of(function, batch, function(batch)).values

    ratios: list[float] = []
    for batch in images.split(int(batch_size)):
        velocity = _velocity(batch, axis, 1.0)
        value, change = derivative(answer, batch.clone(), velocity)
        if is_dense:
            change = change + _velocity(value, axis, -value.shape[axis + 2] / batch.shape[axis + 2])
        norm, speed = (
            tensor.detach().cpu().double().flatten(1).norm(dim=1) for tensor in (value, change)
        )
        if not (norm.isfinite() & speed.isfinite()).all():
            raise ValueError(
                "The output of function and its derivative must be finite, got NaN or infinity."
            )
        if ((norm == 0) & (speed > 0)).any():
            raise ValueError(
                "The output of function must have a positive norm, got norm zero for an image."
            )
        ratios += torch.where(speed == 0, 0.0, speed / norm).tolist()
    return tuple(ratios)


def _velocity(tensor: Float[Tensor, "batch channels *sizes"], axis: int, speed: float) -> Tensor:
    """Return d/dt T_{speed·t} x at t = 0, the rate of change of a tensor that moves on an axis."""

    def moved(time: Tensor) -> Tensor:
        shift: list[int | float | Tensor] = [0.0] * (tensor.ndim - 2)
        shift[axis] = time * speed
        return fourier_shift(tensor, shift)

    start = torch.zeros((), dtype=widest_dtype(tensor.device), device=tensor.device)
    return torch.func.jvp(moved, (start,), (torch.ones_like(start),))[1]
