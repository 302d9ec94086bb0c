"""How far dense outputs are from having moved along with the images."""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from teka.audit.movement import Movement
from teka.audit.translate import SUBPIXEL_MODES
from teka.errors import wrong_value

# Modes in which what leaves at one side enters at the other, so that every cell came from inside.
WRAPPING_MODES = ("circular", *SUBPIXEL_MODES)


def check_dense_shifts(
    shifts: Iterable[Sequence[int | float]],
    size: Sequence[int],
    stride: Sequence[int],
    seen_size: Sequence[int],
    movement: Movement,
) -> None:
    """Refuse shifts at which dense outputs have no exact counterpart.

    A shift by s pixels moves a map of stride r by s / r cells, which must be a whole number. In mode `fourier` the map
    is moved by the same interpolation and any shift will do; in mode `bilinear`, on axes of stride 1.

    Args:
        shifts: The set of shifts in pixels.
        size: Spatial sizes of the maps.
        stride: Pixels for one cell, one number for each axis.
        seen_size: Spatial sizes of the images that the model gets.
        movement: How the images are moved.

    Raises:
        ValueError: A shift by no whole number of cells, or one that leaves no cell to compare; or a circular mode, and
            maps that do not cover the images.
    """
    mode = movement.mode
    if mode in WRAPPING_MODES and any(
        cells * pixels != seen for cells, pixels, seen in zip(size, stride, seen_size, strict=True)
    ):
        expected = f"{tuple(seen_size)} over {tuple(size)}, images over maps, since mode {mode!r} has circular edges"
        raise wrong_value("stride", tuple(stride), expected)
    for shift in shifts:
        for cells, pixels, step in zip(size, stride, shift, strict=True):
            between = step % pixels != 0 and mode != "fourier" and not (mode == "bilinear" and pixels == 1)
            if between:
                expected = f"whole multiples of the stride {tuple(stride)} of the model's dense output in mode {mode!r}"
                raise wrong_value("shifts", f"a set with {tuple(shift)}", expected)
            if mode not in WRAPPING_MODES and abs(step) >= cells * pixels:
                expected = f"shifts that leave some of the model's {tuple(size)} cells in sight"
                raise wrong_value("shifts", f"a set with {tuple(shift)}", expected)


def dense_error(
    response: Float[Tensor, "batch channels *cells"],
    reference: Float[Tensor, "batch channels *cells"],
    shift: Sequence[int | float],
    stride: Sequence[int],
    movement: Movement,
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """‖f(T_s x) − T_s f(x)‖² and ‖T_s f(x)‖² of each image.

    With circular edges all cells count; in the other modes those whose content came from inside the map.

    Args:
        response: f(T_s x).
        reference: f(x).
        shift: s in pixels, one that `check_dense_shifts` has passed.
        stride: Pixels for one cell, one number for each axis.
        movement: How the images are moved.

    Returns:
        Both sums, as `sum_of_squares` makes them.
    """
    steps = tuple(step / pixels for step, pixels in zip(shift, stride, strict=True))
    if movement.mode not in WRAPPING_MODES:
        response = response[(..., *(_entered(int(step)) for step in steps))]
        reference = reference[(..., *(_entered(-int(step)) for step in steps))]
    elif all(step == int(step) for step in steps):
        reference = torch.roll(reference, [int(step) for step in steps], dims=tuple(range(2, reference.ndim)))
    else:
        reference = movement.move(reference, steps)
    return sum_of_squares(response, reference), sum_of_squares(reference)


def sum_of_squares(values: Tensor, subtracted: Tensor | None = None) -> Float[Tensor, " batch"]:
    """‖values − subtracted‖² of each entry of a batch.

    Within a channel the squares are summed in the dtype of the values, at least float32, for which torch adds halves to
    halves; over channels in float64 (float32 on devices that lack it). All in float64 takes four times as long.

    Args:
        values: Values (B, C, …).
        subtracted: What is taken from them, (B, C, …), or None.
    """
    # Half-precision squares overflow soon.
    exact = torch.promote_types(values.dtype, torch.float32)
    squares = values.to(exact).square() if subtracted is None else (values.to(exact) - subtracted.to(exact)).square_()
    within = squares.flatten(2).sum(dim=2) if squares.ndim > 2 else squares
    return within.sum(dim=1, dtype=sum_dtype(values.device))


def sum_dtype(device: torch.device) -> torch.dtype:
    """The dtype in which numbers of many parts are summed: float64, or float32 on devices that lack it."""
    return torch.float32 if device.type == "mps" else torch.float64


def _entered(step: int) -> slice:
    # The window of a moved map that shows what was in the map before; of the map before it, the window is that of −s.
    return slice(step, None) if step >= 0 else slice(None, step)
