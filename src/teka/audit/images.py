"""Batches of images: their background, the canvas around them, a window in them, and how their cells move."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from teka.errors import wrong_shape, wrong_value


def check_images(images: Tensor) -> None:
    """Check that a tensor is a batch of images (B, C, *S) with real values, an empty one or not."""
    if images.ndim < 3 or 0 in images.shape[1:]:
        raise wrong_shape("images", images.shape, "(batch, channels, one or more spatial sizes), none of them empty")
    if torch.is_complex(images):
        raise wrong_value("images.dtype", images.dtype, "a real dtype")


def background_value(images: Shaped[Tensor, "batch channels *sizes"], background: float | Sequence[float]) -> Tensor:
    """The background, one value or one for each channel, in the images' dtype and device, that broadcasts over them."""
    values = torch.as_tensor(background, dtype=torch.float64)
    if values.ndim and tuple(values.shape) != (images.shape[1],):
        raise wrong_value("background", background, f"one value, or one for each of the {images.shape[1]} channels")
    if not values.isfinite().all():
        raise wrong_value("background", background, "finite values")
    cast = values.to(images.dtype)
    if not images.is_floating_point() and not torch.equal(cast.to(values.dtype), values):
        raise wrong_value("background", background, f"values that {images.dtype} holds")
    # One axis for each axis of the images, so that a value for each channel meets its channel.
    return cast.to(images.device).reshape((1, -1) + (1,) * (images.ndim - 2))


def blank_margins(images: Tensor, background: float | Sequence[float] = 0.0) -> Int[Tensor, "batch axes sides"]:
    """Cells of background before the first and after the last cell with content, along every spatial axis."""
    check_images(images)
    occupied = (images != background_value(images, background)).any(dim=1)
    margins = []
    for axis in range(occupied.ndim - 1):
        line = occupied.movedim(axis + 1, 1).unsqueeze(-1).flatten(2).any(dim=2)
        # argmax gives the first of equal values, here the first cell with content.
        sides = torch.stack([side.to(torch.uint8).argmax(dim=1) for side in (line, line.flip(1))], dim=-1)
        margins.append(torch.where(line.any(dim=1, keepdim=True), sides, line.shape[1]))
    return torch.stack(margins, dim=1)


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
    canvas = window_size("canvas_size", sizes, canvas_size)
    canvases = background_value(images, background).expand(*images.shape[:2], *canvas).clone()
    inside = tuple(
        slice((large - small) // 2, (large - small) // 2 + small) for large, small in zip(canvas, sizes, strict=True)
    )
    canvases[(slice(None), slice(None), *inside)] = images
    return canvases


def window_size(argument: str, sizes: Sequence[int], given: int | Sequence[int]) -> tuple[int, ...]:
    """The "canvas_size" around or the "crop_size" within images of some sizes, with one number for each axis."""
    window = tuple(given) if isinstance(given, Sequence) else (given,) * len(sizes)
    pairs = tuple(zip(window, sizes, strict=False))
    if argument == "canvas_size":
        fits, expected = all(part >= side for part, side in pairs), "a size for each axis, none smaller than"
    else:
        fits = all(1 <= part <= side for part, side in pairs)
        expected = "a size of at least 1 for each axis, none larger than"
    if len(window) != len(sizes) or not fits:
        raise wrong_value(argument, given, f"{expected} the images' {tuple(sizes)}")
    return window


def crop(
    images: Shaped[Tensor, "batch channels *sizes"], window: Sequence[int], shift: Sequence[int]
) -> Shaped[Tensor, "batch channels *window"]:
    """The window that starts at cell (S − c) // 2 − s of every axis: in its frame, content moves by +s.

    With m = S − c cells of the image outside the window along an axis, m // 2 of them before it at shift zero, the
    shifts from −(m − m // 2) to m // 2 fit. Zero is the centre crop.
    """
    inside = images
    for axis, (part, step) in enumerate(zip(window, shift, strict=True)):
        inside = inside.narrow(axis + 2, (images.shape[axis + 2] - part) // 2 - step, part)
    return inside.clone()


def roll_and_blank(
    images: Shaped[Tensor, "batch channels *sizes"], shift: Sequence[int], value: Tensor
) -> Shaped[Tensor, "batch channels *sizes"]:
    """Images moved by whole cells, with the value of the background in the cells that enter."""
    moved = images.roll(tuple(shift), tuple(range(2, images.ndim)))
    for axis, step in enumerate(shift, 2):
        if step:
            entered = moved.narrow(axis, 0 if step > 0 else moved.shape[axis] + step, abs(step))
            entered.copy_(value.expand_as(entered))
    return moved


def reflect(
    images: Shaped[Tensor, "batch channels *sizes"], shift: Sequence[int]
) -> Shaped[Tensor, "batch channels *sizes"]:
    """Images moved by whole cells, of which those that enter mirror those inside about the centre of the edge cell.

    (T_s x)_i = x_{r(i − s)} along every axis, r(j) = (S − 1) − |(j mod 2 (S − 1)) − (S − 1)|: the edge cell is not
    repeated, as in mode "reflect" of `numpy.pad` and `torch.nn.functional.pad`. What leaves is lost.
    """
    moved = images.clone()
    for axis, step in enumerate(shift, 2):
        side = images.shape[axis]
        last = side - 1
        if step and last:
            # Only the cells that enter are looked up one by one.
            start = 0 if step > 0 else side + step
            entering = torch.arange(start, start + abs(step), device=images.device)
            mirrored = last - ((entering - step).remainder(2 * last) - last).abs()
            strip = moved.index_select(axis, mirrored)
            moved = moved.roll(step, axis)
            moved.narrow(axis, start, abs(step)).copy_(strip)
    return moved


def fourier_shift(
    images: Float[Tensor, "batch channels *sizes"], shift: Sequence[int | float | Tensor]
) -> Float[Tensor, "batch channels *sizes"]:
    """Images moved by the shift theorem: the trigonometric polynomial through the cells, read between them.

    X_k → X_k exp(−2πi k s / S) along every axis, for the frequencies |k| < S / 2. Where S is even, the two halves of
    the component at S / 2 turn in opposite senses, so its factor is their mean, the real number cos(π s). Of images
    without that component, and of all whose sides are odd, the moves are a group: T_s T_t = T_{s+t}, and nothing is
    lost. At whole steps all images are rolled; floats that are whole are rolled exactly. Steps that are tensors of no
    axes may carry gradients and tangents. Half precision is computed in float32.
    """
    whole = [0 if isinstance(step, Tensor) or step != math.floor(step) else int(step) for step in shift]
    moved = images.roll(whole, tuple(range(2, images.ndim)))
    for axis, (step, rolled) in enumerate(zip(shift, whole, strict=True), 2):
        if isinstance(step, Tensor) or step != rolled:
            moved = _turn(moved, step, axis)
    return moved


def _turn(images: Tensor, step: float | Tensor, axis: int) -> Tensor:
    """Each frequency along one axis turned by its share of the step."""
    side = images.shape[axis]
    wide = images.to(torch.promote_types(images.dtype, torch.float32))
    frequencies = torch.arange(side // 2 + 1, dtype=torch.float64, device=images.device)
    angle = (-2 * math.pi / side) * frequencies * step
    # sin(π s) at S / 2 is left out: the mean of the two halves is real.
    sine = torch.where(frequencies * 2 == side, torch.zeros_like(angle), angle.sin())
    factor = torch.complex(angle.cos().to(wide.dtype), sine.to(wide.dtype))
    factor = factor.reshape((-1,) + (1,) * (images.ndim - axis - 1))
    return torch.fft.irfft(torch.fft.rfft(wide, dim=axis) * factor, n=side, dim=axis).to(images.dtype)


def bilinear_shift(
    images: Float[Tensor, "batch channels *sizes"], shift: Sequence[int | float]
) -> Float[Tensor, "batch channels *sizes"]:
    """Images moved by linear interpolation between neighbouring cells, along one axis after the other.

    (T_s x)_i = (1 − a) x_{i−⌊s⌋} + a x_{i−⌊s⌋−1} along every axis, with a = s − ⌊s⌋. At fractions this blurs: a wave of
    ω radians a cell keeps |1 − a + a exp(−iω)| of its amplitude, cos(ω / 2) at half a cell. So two moves by s are not
    one by 2 s; only whole steps lose nothing.
    """
    whole = [math.floor(step) for step in shift]
    moved = images.roll(whole, tuple(range(2, images.ndim)))
    for axis, (step, rolled) in enumerate(zip(shift, whole, strict=True), 2):
        if step != rolled:
            moved = torch.lerp(moved, moved.roll(1, axis), step - rolled)
    return moved
