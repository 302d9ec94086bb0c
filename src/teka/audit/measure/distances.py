"""Numerical noise of a model."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from teka.audit.images import check_images
from teka.audit.model_call import Model, evaluate_model, repeat_difference
from teka.checks import check_callable, check_evaluation_mode, check_flags, check_sizes
from teka.errors import EXTERNAL_ERRORS
from teka.precision import relative_difference


@dataclass(frozen=True)
class NoiseFloor:
    """Relative differences between outputs of the same input, below which errors mean nothing.

    Args:
        repeat: ‖f(x) − f(x)‖ / ‖f(x)‖ of two calls with the same input.
        precision: ‖f₃₂(x) − f₆₄(x)‖ / ‖f₆₄(x)‖ of the same weights in single and double
            precision, or None.
        reason: Why the difference between precisions could not be measured.
    """

    repeat: float
    precision: float | None
    reason: str | None = None


def noise_floor(
    function: Model, images: Tensor, *, batch_size: int = 256, precision: bool = True
) -> NoiseFloor:
    """Measure the numerical noise of a model, with norms over all images.

    The noise is the difference between two calls with the same images, and between single and
    double precision. For the second, a deep copy of the module is cast to float64, or to float32
    if the images are float64.

    Args:
        function: Function or module from images to outputs.
        images: Images (N, C, *S).
        batch_size: Number of images per call.
        precision: Whether to compare single and double precision.
    """
    check_callable("function", function)
    check_evaluation_mode("function", function)
    check_images(images, least=1)
    check_sizes({"batch_size": batch_size})
    check_flags({"precision": precision})
    batches = images.split(int(batch_size))

    def answer(
        function: Model, dtype: torch.dtype, shapes: list[torch.Size | None]
    ) -> list[Tensor]:
        # Copies, because the function may write into its input.
        pairs = zip(batches, shapes, strict=True)
        return [
            evaluate_model(
                function, batch.to(dtype, copy=True), "on the images, for the noise floor", size
            )
            for batch, size in pairs
        ]

    with torch.no_grad():
        answers = answer(function, images.dtype, [None] * len(batches))
        shapes: list[torch.Size | None] = [output.shape for output in answers]
        repeat = repeat_difference(
            torch.cat(answer(function, images.dtype, shapes)), torch.cat(answers)
        )
        if not precision:
            return NoiseFloor(repeat, None, "it was not asked for")
        if not isinstance(function, nn.Module):
            return NoiseFloor(
                repeat,
                None,
                f"the function is a {type(function).__name__}, no module that can be cast",
            )
        dtype = torch.float32 if images.dtype == torch.float64 else torch.float64
        try:
            cast = answer(copy.deepcopy(function).to(dtype), dtype, shapes)
        # Modules that do not support the dtype raise errors of many classes.
        except EXTERNAL_ERRORS as error:
            return NoiseFloor(
                repeat, None, f"the copy in {dtype} fails: {type(error).__name__}: {error}"
            )
    single, double = (answers, cast) if dtype == torch.float64 else (cast, answers)
    narrow = torch.cat(single)
    wide = torch.cat(double)
    precision_error = 0.0 if torch.equal(narrow, wide) else relative_difference(narrow, wide)
    return NoiseFloor(repeat, precision_error)
