"""How far two outputs lie apart: of the same input twice, in another precision, and moved, against another image."""

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

# The scale is taken from the pairs of at most so many images, the first ones, and of so many numbers of their outputs.
SCALE_IMAGES = 1000
SCALE_NUMBERS = 2**25


@dataclass(frozen=True)
class NoiseFloor:
    """Relative differences that movement has no part in: no error below them means anything."""

    repeat: float  # ‖f(x) − f(x)‖ / ‖f(x)‖ of two calls with the same input
    precision: (
        float | None
    )  # ‖f₃₂(x) − f₆₄(x)‖ / ‖f₆₄(x)‖ of the same weights in single and in double precision
    reason: str | None = None  # why that could not be measured


def noise_floor(
    function: Model, images: Tensor, *, batch_size: int = 256, precision: bool = True
) -> NoiseFloor:
    """Measure how far two outputs lie apart although the input is the same, with norms over all images, in float64.

    Without `precision`, only two calls in the same precision are compared.
    """
    # For the precision a deep copy is cast to float64, or to float32 where the images are in float64.
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
                function, one.to(dtype, copy=True), "on the images, for the noise floor", size
            )
            for one, size in pairs
        ]

    with torch.no_grad():
        answers = answer(function, images.dtype, [None] * len(batches))
        shapes: list[torch.Size | None] = [one.shape for one in answers]
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
    one, other = torch.cat(single), torch.cat(double)
    return NoiseFloor(repeat, 0.0 if torch.equal(one, other) else relative_difference(one, other))


@dataclass(frozen=True)
class SensitivityMap:
    """How far outputs move with their images: 0 not at all, 1 as far as another image lies."""

    movement: Movement
    shifts: CheckedShifts
    values: tuple[
        float, ...
    ]  # mean distances to the output of the image unshifted, divided by the scale
    scale: float  # the median distance between the outputs of different images
    num_images: int


def sensitivity_map(
    function: Model,
    images: ImageSet,
    shifts: SubpixelShifts,
    movement: Movement,
    *,
    batch_size: int = 256,
) -> SensitivityMap:
    """Measure how far the outputs of a function move at every shift, compared with other images' outputs.

      m(s) = mean_n ‖f(T_s x_n) − f(x_n)‖ / median_{n < n'} ‖f(x_n) − f(x_n')‖

    All of an output counts as one vector. Source: after Kauderer-Abrams 2017, "Quantifying translation-invariance in
    convolutional neural networks" (arXiv:1801.01450).
    """
    check_callable("function", function)
    check_evaluation_mode("function", function)
    check_images(images)
    check_instance("movement", movement, Movement)
    if len(images) < 2:
        raise wrong_argument(
            "images",
            f"{len(images)} images",
            "at least two, to compare the outputs of different ones",
        )
    check_sizes({"batch_size": batch_size})
    wanted: Any = read_steps("shifts", shifts)
    batches = images.split(int(batch_size))
    # All are checked before the first call, one batch at a time: on their canvases they may not fit into memory.
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
            "the outputs of function are the same for most pairs of images, expected ones that differ"
        )
    return SensitivityMap(
        movement, steps, tuple((sums / (len(images) * scale)).tolist()), scale, len(images)
    )
