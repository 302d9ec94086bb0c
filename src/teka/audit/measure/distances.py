"""Distances between outputs: numerical noise of a model, and its sensitivity to shifts."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from teka.audit.images import ImageSet, check_images
from teka.audit.model_call import (
    Model,
    check_evaluation_mode,
    evaluate_model,
    relative_difference,
    repeat_difference,
)
from teka.audit.movement import Movement
from teka.audit.shifts import CheckedShift, CheckedShifts, SubpixelShifts, read_steps
from teka.checks import check_callable, check_flags, check_instance, check_sizes
from teka.errors import EXTERNAL_ERRORS, wrong_argument

# The scale uses the first images only, and at most this many elements of their outputs.
SCALE_IMAGES = 1000
SCALE_NUMBERS = 2**25


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
    narrow, wide = torch.cat(single), torch.cat(double)
    precision_error = 0.0 if torch.equal(narrow, wide) else relative_difference(narrow, wide)
    return NoiseFloor(repeat, precision_error)


@dataclass(frozen=True)
class SensitivityMap:
    """Change of the outputs at each shift, relative to the distance between different images.

    The value is 0 if the output does not change, and 1 if it changes as much as for another image.

    Args:
        movement: How the images were shifted.
        shifts: The shifts.
        values: Mean distance to the output of the unshifted image, divided by the scale.
        scale: Median distance between the outputs of two different images.
        num_images: Number of images.
    """

    movement: Movement
    shifts: CheckedShifts
    values: tuple[float, ...]
    scale: float
    num_images: int


def sensitivity_map(
    function: Model,
    images: ImageSet,
    shifts: SubpixelShifts,
    movement: Movement,
    *,
    batch_size: int = 256,
) -> SensitivityMap:
    """Measure how much the outputs of a model change at each shift, relative to other images.

      m(s) = mean_n ‖f(T_s x_n) − f(x_n)‖ / median_{n < n'} ‖f(x_n) − f(x_n')‖

    Each output is treated as one vector. Based on Kauderer-Abrams, "Quantifying
    translation-invariance in convolutional neural networks", 2017 (arXiv:1801.01450).

    Args:
        function: Function or module from images to outputs.
        images: At least two images (N, C, *S).
        shifts: The shifts to measure.
        movement: How the images are shifted.
        batch_size: Number of images per call.

    Raises:
        ValueError: There are fewer than two images, or most pairs of images have equal outputs.
    """
    check_callable("function", function)
    check_evaluation_mode("function", function)
    check_images(images)
    check_instance("movement", movement, Movement)
    if len(images) < 2:
        raise wrong_argument(
            "images",
            f"{len(images)} images",
            "at least two images, because outputs of different images are compared",
        )
    check_sizes({"batch_size": batch_size})
    wanted: Any = read_steps("shifts", shifts)
    batches = images.split(int(batch_size))
    # Check each batch before the first call. All padded images together may not fit into memory.
    checked = [movement.check(movement.place(batch), wanted) for batch in batches]
    steps = checked[0]
    sums = torch.zeros(len(steps), dtype=torch.float64)
    kept: list[Tensor] = []

    def answer(placed: Tensor, step: CheckedShift) -> Tensor:
        return evaluate_model(
            function, movement.move(placed, step), f"on the images at shift {step}"
        ).flatten(1)

    for batch in batches:
        placed = movement.place(batch)
        unshifted = answer(placed, (0,) * (images.ndim - 2))
        most = min(SCALE_IMAGES, max(2, SCALE_NUMBERS // unshifted.shape[1]))
        kept.append(unshifted[: max(0, most - sum(map(len, kept)))])
        for row, step in enumerate(steps):
            sums[row] += (answer(placed, step) - unshifted).norm(dim=1).sum()
    scale = torch.nn.functional.pdist(torch.cat(kept)).median().item()
    if scale == 0:
        raise ValueError(
            "The outputs of function must differ between images, got equal outputs for most pairs."
        )
    return SensitivityMap(
        movement, steps, tuple((sums / (len(images) * scale)).tolist()), scale, len(images)
    )
