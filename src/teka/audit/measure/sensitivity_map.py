"""How far outputs move when images do, on the scale of how far apart the outputs of different images lie."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Shaped
from torch import Tensor

from teka.audit.function import check_evaluation_mode, evaluate_model
from teka.audit.movement import Movement
from teka.audit.shifts import SubpixelShift
from teka.errors import wrong_value

# The scale is taken from the pairs of at most so many images, the first ones, and of so many numbers of their outputs.
SCALE_IMAGES = 1000
SCALE_NUMBERS = 2**25


@dataclass(frozen=True)
class SensitivityMap:
    """How far outputs move with their images: 0 not at all, 1 as far as another image lies.

    Args:
        movement: How the images were moved.
        shifts: The set of shifts, one step for each spatial axis; of images, (dy, dx).
        values: Mean distance to the output of the image unshifted, divided by the scale, at each shift.
        scale: Median distance between the outputs of different images, unshifted.
        num_images: Number of images N.
    """

    movement: Movement
    shifts: tuple[tuple[int | float, ...], ...]
    values: tuple[float, ...]
    scale: float
    num_images: int


def sensitivity_map(
    function: Callable[[Tensor], object],
    images: Shaped[Tensor, "images channels *sizes"],
    shifts: Iterable[SubpixelShift],
    movement: Movement,
    *,
    batch_size: int = 256,
) -> SensitivityMap:
    """Measure how far the outputs of a function move at every shift, compared with other images' outputs.

    m(s) = mean_n ‖f(T_s x_n) − f(x_n)‖ / median_{n < n'} ‖f(x_n) − f(x_n')‖

    Everything in an output counts as one vector that should stay: of a map that moves along with its images, take a
    mean first. The median is over the pairs of the first `SCALE_IMAGES` images, or fewer where their
    outputs have more than `SCALE_NUMBERS` numbers in all.

    Args:
        function: Takes images (B, C, *S), as `movement` shows them, and returns a real tensor (B, …).
        images: Images (N, C, *S), at least two.
        shifts: The set of shifts, as of `teka.audit.square_shifts` for a map.
        movement: How images are moved.
        batch_size: Images for one call.

    Raises:
        ValueError: A module in training mode, fewer than two images, a shift that does not fit, an output that is no
            finite real tensor (B, …), or outputs that are the same for at least half of the pairs of images.

    Source: after Kauderer-Abrams 2017, "Quantifying translation-invariance in convolutional neural networks"
    (arXiv:1801.01450).
    """
    check_evaluation_mode("function", function)
    if len(images) < 2:
        raise wrong_value("images", f"{len(images)} images", "at least two, to compare the outputs of different ones")
    if batch_size < 1:
        raise wrong_value("batch_size", batch_size, "at least 1")
    wanted = tuple(shifts)
    batches = images.split(batch_size)
    # All are checked before the first call, one batch at a time: on their canvases they may not fit into memory.
    checked = [movement.check(movement.place(batch), wanted) for batch in batches]
    steps = checked[0]
    sums = torch.zeros(len(steps), dtype=torch.float64)
    kept: list[Tensor] = []

    def answer(placed: Tensor, step: tuple[int | float, ...]) -> Tensor:
        return evaluate_model(function, movement.move(placed, step), f"at shift {step}").flatten(1)

    for batch in batches:
        placed = movement.place(batch)
        unshifted = answer(placed, (0,) * (images.ndim - 2))
        most = min(SCALE_IMAGES, max(2, SCALE_NUMBERS // unshifted.shape[1]))
        kept.append(unshifted[: max(0, most - sum(map(len, kept)))])
        for row, step in enumerate(steps):
            sums[row] += (answer(placed, step) - unshifted).norm(dim=1).sum()
    scale = torch.nn.functional.pdist(torch.cat(kept)).median().item()
    if scale == 0:
        raise ValueError("the outputs of function are the same for most pairs of images, expected ones that differ")
    return SensitivityMap(movement, steps, tuple((sums / (len(images) * scale)).tolist()), scale, len(images))
