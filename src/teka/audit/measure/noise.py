"""Noise of a model: differences between its outputs for the same images."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from teka.audit.model_call import Model, evaluate_in_batches, output_difference
from teka.errors import EXTERNAL_ERRORS


@dataclass(frozen=True)
class NoiseFloor:
    """Relative differences between the outputs of a model f for the same images x.

    If a shift changes the output by less than these differences, its effect cannot be measured.

    Args:
        repeat: ‖f(x) − f(x)‖ / ‖f(x)‖ for two calls on the same images.
        precision: ‖f₃₂(x) − f₆₄(x)‖ / ‖f₆₄(x)‖ for the same weights in single and double
            precision, or None if it was not measured.
        reason: Reason why `precision` was not measured.
    """

    repeat: float
    precision: float | None
    reason: str | None = None


def noise_floor(
    function: Model, images: Tensor, *, batch_size: int = 256, precision: bool = True
) -> NoiseFloor:
    """Measure how much a model's output varies for the same images.

    A second call on the same images reveals randomness in the model. A comparison of single and
    double precision measures its rounding errors. For this comparison, a copy of the model is cast
    to float64, or to float32 if the images are float64.

    Args:
        function: The model: a module in evaluation mode, or a function.
        images: Images (N, C, *S).
        batch_size: Number of images per call.
        precision: Whether to compare single and double precision.
    """
    where = "on the images, for the noise floor"
    output = evaluate_in_batches(function, images, where, batch_size)
    repeat = output_difference(evaluate_in_batches(function, images, where, batch_size), output)
    if not precision:
        return NoiseFloor(repeat, None, "it was not requested")
    if not isinstance(function, nn.Module):
        reason = f"the model is a {type(function).__name__} and not a module that can be cast"
        return NoiseFloor(repeat, None, reason)
    is_double = images.dtype == torch.float64
    dtype = torch.float32 if is_double else torch.float64
    try:
        cast_function = copy.deepcopy(function).to(dtype)
        cast = evaluate_in_batches(cast_function, images.to(dtype), where, batch_size)
    # Modules that do not support the dtype raise errors of many classes.
    except EXTERNAL_ERRORS as error:
        return NoiseFloor(
            repeat, None, f"the copy in {dtype} fails: {type(error).__name__}: {error}"
        )
    single, double = (cast, output) if is_double else (output, cast)
    return NoiseFloor(repeat, output_difference(single, double))
