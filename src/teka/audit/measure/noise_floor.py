"""How much of a difference between two outputs means nothing: the same input twice, and in another precision."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from teka.audit.function import check_evaluation_mode, evaluate_model
from teka.audit.images import check_images
from teka.errors import FOREIGN, wrong_shape


@dataclass(frozen=True)
class NoiseFloor:
    """Relative differences that movement has no part in: no error below them means anything.

    Args:
        repeat: ‖f(x) − f(x)‖ / ‖f(x)‖ of two calls with the same input.
        precision: ‖f₃₂(x) − f₆₄(x)‖ / ‖f₆₄(x)‖, of the same weights in single and in double precision; None where it
            could not be measured.
        reason: Why there is no `precision`; None where there is.
    """

    repeat: float
    precision: float | None
    reason: str | None = None


def noise_floor(
    function: Callable[[Tensor], object], images: Tensor, *, other_dtype: bool = True, batch_size: int = 256
) -> NoiseFloor:
    """Measure how far two outputs lie apart although the input is the same.

    The norms run over all images, in float64. For the precision a deep copy of the module is cast to float64, or to
    float32 where the images are in float64; the function itself is left alone.

    Args:
        function: Takes images (B, C, *S) and returns a real tensor (B, …).
        images: Images (N, C, *S) of a floating-point dtype.
        other_dtype: Whether to measure the precision too, which takes a copy of the module and one more call.
        batch_size: Images for one call.

    Raises:
        ValueError: A module in training mode, no images, or an output that is no finite real tensor (B, …).
    """
    check_evaluation_mode("function", function)
    check_images(images)
    if len(images) == 0:
        raise wrong_shape("images", images.shape, "at least one image")
    batches = images.split(batch_size)

    def answer(
        function: Callable[[Tensor], object], dtype: torch.dtype, shapes: list[torch.Size | None]
    ) -> list[Tensor]:
        # Copies, because the function may write into its input.
        pairs = zip(batches, shapes, strict=True)
        return [evaluate_model(function, one.to(dtype, copy=True), "for the noise floor", size) for one, size in pairs]

    with torch.no_grad():
        answers = answer(function, images.dtype, [None] * len(batches))
        shapes: list[torch.Size | None] = [one.shape for one in answers]
        repeat = _difference(answer(function, images.dtype, shapes), answers)
        if not other_dtype:
            return NoiseFloor(repeat, None, "not asked for")
        if not isinstance(function, nn.Module):
            return NoiseFloor(repeat, None, f"the function is a {type(function).__name__}, no module that can be cast")
        dtype = torch.float32 if images.dtype == torch.float64 else torch.float64
        try:
            cast = answer(copy.deepcopy(function).to(dtype), dtype, shapes)
        except FOREIGN as error:  # whatever a module raises in a dtype that it was not made for
            return NoiseFloor(repeat, None, f"the copy in {dtype} fails: {type(error).__name__}: {error}")
    single, double = (answers, cast) if dtype == torch.float64 else (cast, answers)
    return NoiseFloor(repeat, _difference(single, double))


def _difference(answers: list[Tensor], references: list[Tensor]) -> float:
    """‖answers − references‖ / ‖references‖ over all batches; 0 where they are the same, zeros too."""
    apart = math.hypot(*(float((a - b).norm()) for a, b in zip(answers, references, strict=True)))
    norm = math.hypot(*(float(reference.norm()) for reference in references))
    if norm == 0 and apart > 0:
        raise ValueError("the output of function has norm zero, expected a norm to divide by")
    return apart / norm if apart else 0.0
