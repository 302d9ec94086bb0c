"""Move images, and say what happens at the edge."""

from collections.abc import Iterable, Sequence

from jaxtyping import Shaped
from torch import Tensor

from teka.audit.background import background_value, blank_margins, check_images, check_lossless
from teka.audit.canvas import paste_on_canvas
from teka.audit.crop import check_room, crop, crop_window
from teka.audit.reflect import reflect
from teka.audit.shifts import SubpixelShift, check_subpixel_shifts
from teka.audit.subpixel import bilinear_shift, fourier_shift
from teka.errors import unknown_name, wrong_value
from teka.grid import Grid

TRANSLATION_MODES = ("circular", "lossless", "zero", "canvas", "reflect", "crop", "fourier", "bilinear")
SUBPIXEL_MODES = ("fourier", "bilinear")


def translate(
    images: Tensor,
    shift: SubpixelShift,
    *,
    mode: str,
    background: float | Sequence[float] = 0.0,
    canvas_size: int | Sequence[int] | None = None,
    crop_size: int | Sequence[int] | None = None,
) -> Tensor:
    """Images moved: content at index i moves to i + s.

    The modes differ in what happens at the edge:

    - `circular`: what leaves at one side enters at the other (`teka.Grid.roll`).
    - `lossless`: the same, but only background may leave.
    - `zero`: what leaves is lost, and background enters.
    - `canvas`: the images are pasted in the middle of a larger canvas of their background (`paste_on_canvas`), and
      then moved as in `lossless`. The result has the size of the canvas.
    - `reflect`: what leaves is lost, and a mirror image enters.
    - `crop`: a smaller window of the images, moved against the shift. The result has the size of the window, and at
      shift zero it is the centre crop. What enters was in the images before.
    - `fourier`: as `circular`, by any fraction of a cell; exact for band-limited images.
    - `bilinear`: as `circular`, by any fraction of a cell with linear interpolation, which blurs.

    Args:
        images: Images (B, C, *S) with any number of spatial axes.
        shift: One step in cells for each spatial axis, or one number along the last; fractions in modes `fourier` and
            `bilinear` only.
        mode: One of the modes above.
        background: Value of the background: one, or one for each channel. For modes `lossless`, `zero` and `canvas`.
        canvas_size: Size of the canvas for mode `canvas`, one number for each axis or one for all; else None.
        crop_size: Size of the window for mode `crop`, one number for each axis or one for all; else None.

    Returns:
        New images (B, C, *S), or (B, C, *canvas_size) in mode `canvas`, or (B, C, *crop_size) in mode `crop`.

    Raises:
        ValueError: An unknown mode; no spatial axis; a shift longer than the canvas; fractions of a cell in a mode of
            whole cells; content that would be lost in modes `lossless` and `canvas`; a window that would leave the
            images; integer images in a sub-pixel mode; a canvas or crop size without its mode, or none with it.
    """
    placed = place(images, mode=mode, background=background, canvas_size=canvas_size, crop_size=crop_size)
    (steps,) = check_steps(placed, [shift], mode=mode, background=background, crop_size=crop_size)
    return move_placed(placed, steps, mode=mode, background=background, crop_size=crop_size)


def place(
    images: Tensor,
    *,
    mode: str,
    background: float | Sequence[float],
    canvas_size: int | Sequence[int] | None,
    crop_size: int | Sequence[int] | None = None,
) -> Tensor:
    """The images as a mode sees them before any shift: on their canvas in mode `canvas`, as they are in the others.

    Args:
        images: Images (B, C, *S).
        mode: A mode of `translate`.
        background: Value of the background: one, or one for each channel.
        canvas_size: Size of the canvas for mode `canvas`; else None.
        crop_size: Size of the window for mode `crop`; else None.

    Raises:
        ValueError: An unknown mode; no spatial axis; integer images in a sub-pixel mode; a canvas or crop size without
            its mode, none with it, or one that does not fit the images.
    """
    check_mode(mode, canvas_size, crop_size)
    check_images(images)
    if mode in SUBPIXEL_MODES and not images.is_floating_point():
        raise wrong_value(
            "images.dtype", images.dtype, f"a floating-point dtype, since mode {mode!r} moves by fractions"
        )
    if crop_size is not None:
        crop_window(images.shape[2:], crop_size)
    return images if canvas_size is None else paste_on_canvas(images, canvas_size, background)


def check_mode(mode: str, canvas_size: object, crop_size: object) -> None:
    """Refuse a mode that is none, and sizes that do not go with it.

    Raises:
        ValueError: An unknown mode; a canvas or crop size without its mode, or none with it.
    """
    if mode not in TRANSLATION_MODES:
        raise unknown_name("mode", mode, TRANSLATION_MODES)
    for argument, size, owner in (("canvas_size", canvas_size, "canvas"), ("crop_size", crop_size, "crop")):
        if mode == owner and size is None:
            raise wrong_value(argument, size, f"the size of the {owner} for mode {owner!r}")
        if mode != owner and size is not None:
            raise wrong_value(argument, size, f"None, since mode {mode!r} has no {owner}")


def check_steps(
    placed: Shaped[Tensor, "batch channels *sizes"],
    shifts: Iterable[SubpixelShift],
    *,
    mode: str,
    background: float | Sequence[float],
    crop_size: int | Sequence[int] | None,
) -> tuple[tuple, ...]:
    """The shifts in the order given, each with one step for every axis; whole steps are ints and repeats count once.

    Args:
        placed: What `place` gave.
        shifts: The set of shifts.
        mode: A mode of `translate`.
        background: Value of the background.
        crop_size: Size of the window for mode `crop`; else None.

    Raises:
        ValueError: No shift; one longer than the canvas; fractions in a mode of whole cells; content that would be lost
            in modes `lossless` and `canvas`; a window that would leave the images.
    """
    grid = Grid(tuple(placed.shape[2:]))
    steps = check_subpixel_shifts(grid, shifts)
    if mode in SUBPIXEL_MODES:
        return steps
    for step in steps:
        if not all(isinstance(part, int) for part in step):
            raise wrong_value("shift", step, f"whole numbers, since mode {mode!r} moves by whole cells")
    whole = [tuple(int(part) for part in step) for step in steps]
    if mode in ("lossless", "canvas"):
        margins = blank_margins(placed, background)
        for step in whole:
            check_lossless(grid, margins, step)
    if crop_size is not None:
        window = crop_window(grid.shape, crop_size)
        for step in whole:
            check_room(grid.shape, window, step)
    return steps


def move_placed(
    placed: Shaped[Tensor, "batch channels *sizes"],
    steps: Sequence[int | float],
    *,
    mode: str,
    background: float | Sequence[float],
    crop_size: int | Sequence[int] | None,
) -> Shaped[Tensor, "batch channels *seen"]:
    """What a model sees of placed images at a shift that `check_steps` has passed; nothing is checked again.

    Args:
        placed: What `place` gave.
        steps: One step for every axis.
        mode: A mode of `translate`.
        background: Value of the background.
        crop_size: Size of the window for mode `crop`; else None.
    """
    if mode == "fourier":
        return fourier_shift(placed, steps)
    if mode == "bilinear":
        return bilinear_shift(placed, steps)
    whole = [int(step) for step in steps]
    if mode == "reflect":
        return reflect(placed, whole)
    if crop_size is not None:
        return crop(placed, crop_window(placed.shape[2:], crop_size), whole)
    moved = placed.roll(whole, tuple(range(2, placed.ndim)))
    if mode == "zero":
        _blank_entered(moved, whole, background_value(placed, background))
    return moved


def _blank_entered(moved: Tensor, steps: Sequence[int], value: Tensor) -> None:
    """Write background over what entered at the other side."""
    for axis, step in enumerate(steps, 2):
        if step:
            entered = moved.narrow(axis, 0 if step > 0 else moved.shape[axis] + step, abs(step))
            entered.copy_(value.expand_as(entered))
