"""Move images by whole cells, and say what happens at the edge."""

from collections.abc import Sequence

from jaxtyping import Shaped
from torch import Tensor

from teka.audit.background import background_value, blank_margins, check_images, check_lossless
from teka.audit.shifts import Shift, check_shift
from teka.errors import unknown_name, wrong_value
from teka.grid import Grid

TRANSLATION_MODES = ("circular", "lossless", "zero", "canvas")


def translate(
    images: Tensor,
    shift: Shift,
    *,
    mode: str,
    background: float | Sequence[float] = 0.0,
    canvas_size: int | Sequence[int] | None = None,
) -> Tensor:
    """Images moved by whole cells: content at index i moves to i + t (`teka.Grid.roll`).

    The modes differ in what happens at the edge:

    - `circular`: what leaves at one side enters at the other.
    - `lossless`: the same, but only background may leave.
    - `zero`: what leaves is lost, and background enters.
    - `canvas`: the images are pasted in the middle of a larger canvas of their background (`paste_on_canvas`), and
      then moved as in `lossless`. The result has the size of the canvas.

    Args:
        images: Images (B, C, *S) with any number of spatial axes.
        shift: One step in cells for each spatial axis, or one int along the last.
        mode: One of the modes above.
        background: Value of the background: one, or one for each channel. `circular` does not use it.
        canvas_size: Size of the canvas for mode `canvas`, one number for each axis or one for all; else None.

    Returns:
        New images (B, C, *S), or (B, C, *canvas_size) in mode `canvas`.

    Raises:
        ValueError: An unknown mode; no spatial axis; a shift longer than the canvas; content that would be lost in
            modes `lossless` and `canvas`; a canvas size without mode `canvas`, or none with it.
    """
    placed = place(images, mode=mode, background=background, canvas_size=canvas_size)
    grid = Grid(tuple(placed.shape[2:]))
    steps = check_shift(grid, shift)
    if mode in ("lossless", "canvas"):
        check_lossless(grid, blank_margins(placed, background), steps)
    moved = grid.roll(placed, steps)
    if mode == "zero":
        value = background_value(images, background)
        for axis, step in enumerate(steps):
            if step:
                side = grid.shape[axis]
                start, length = (0, step) if step > 0 else (side + step, -step)
                entered = moved.narrow(axis + 2, start, length)
                entered.copy_(value.expand_as(entered))
    return moved


def place(
    images: Tensor, *, mode: str, background: float | Sequence[float], canvas_size: int | Sequence[int] | None
) -> Tensor:
    """The images as a mode sees them before any shift: on their canvas in mode `canvas`, as they are in the others.

    Args:
        images: Images (B, C, *S).
        mode: A mode of `translate`.
        background: Value of the background: one, or one for each channel.
        canvas_size: Size of the canvas for mode `canvas`; else None.

    Raises:
        ValueError: An unknown mode; no spatial axis; a canvas size without mode `canvas`, or none with it.
    """
    if mode not in TRANSLATION_MODES:
        raise unknown_name("mode", mode, TRANSLATION_MODES)
    check_images(images)
    if mode == "canvas":
        if canvas_size is None:
            raise wrong_value("canvas_size", canvas_size, "the size of the canvas for mode 'canvas'")
        return paste_on_canvas(images, canvas_size, background)
    if canvas_size is not None:
        raise wrong_value("canvas_size", canvas_size, f"None, since mode {mode!r} has no canvas")
    return images


def paste_on_canvas(
    images: Tensor, canvas_size: int | Sequence[int], background: float | Sequence[float] = 0.0
) -> Shaped[Tensor, "batch channels *sizes"]:
    """Images in the middle of a larger canvas of their background.

    Where a margin of M cells in all is odd, M // 2 of them lie before the image and the rest after it.

    Args:
        images: Images (B, C, *S).
        canvas_size: Size of the canvas, one number for each spatial axis or one for all.
        background: Value of the background: one, or one for each channel.

    Returns:
        The canvases (B, C, *canvas_size).

    Raises:
        ValueError: No spatial axis, a canvas smaller than the images, or not one size for each axis.
    """
    check_images(images)
    sizes = tuple(images.shape[2:])
    canvas = tuple(canvas_size) if isinstance(canvas_size, Sequence) else (canvas_size,) * len(sizes)
    if len(canvas) != len(sizes) or any(large < small for large, small in zip(canvas, sizes, strict=False)):
        raise wrong_value("canvas_size", canvas_size, f"a size for each axis, none smaller than the images' {sizes}")
    canvases = background_value(images, background).expand(*images.shape[:2], *canvas).clone()
    inside = tuple(
        slice((large - small) // 2, (large - small) // 2 + small) for large, small in zip(canvas, sizes, strict=True)
    )
    canvases[(slice(None), slice(None), *inside)] = images
    return canvases
