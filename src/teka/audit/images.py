"""Batches of images: their background, the canvas around them, a window in them, and how their cells move."""

import math
from collections.abc import Sequence
from numbers import Real

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from teka.checks import check_dense, check_number, check_sequence, is_integer, is_number
from teka.errors import wrong_shape, wrong_value
from teka.memory import MAX_IMAGE_PIXELS
from teka.precision import widest_dtype

Images = Shaped[Tensor, "batch channels *sizes"]
RealImages = Float[Tensor, "batch channels *sizes"]
Moved = Shaped[Tensor, "batch channels *moved"]
Margins = Int[Tensor, "batch axes sides"]
ImageSet = Shaped[Tensor, "images channels *sizes"]
Background = float | int | Sequence[float | int]
Size = int | Sequence[int]
BACKGROUND = "a finite number, or one for each channel"


def check_images(images: Tensor, argument: str = "images", *, least: int = 0) -> None:
    """Check that a tensor is a batch of at least so many images (B, C, *S) with real values."""
    check_dense(argument, images)
    if images.ndim < 3 or 0 in images.shape[1:] or len(images) < least:
        raise wrong_shape(
            argument,
            images.shape,
            "(batch, channels, one or more spatial sizes), none of them empty",
        )
    if torch.is_complex(images):
        raise wrong_value(f"{argument}.dtype", images.dtype, "a real dtype")


def check_background(background: Background) -> list[float | int]:
    """Return the values of a background, after a check that it is one number or a sequence of numbers."""
    values = (
        [background]
        if isinstance(background, Real)
        else check_sequence("background", background, BACKGROUND)
    )
    for value in values:
        check_number("background", value, BACKGROUND)
    if not values:
        raise wrong_value("background", background, BACKGROUND)
    return [float(value) for value in values]


def background_value(images: Images, background: Background) -> Tensor:
    """The background, one value or one for each channel, in the images' dtype and device, that broadcasts over them."""
    values = torch.tensor(check_background(background), dtype=torch.float64)
    if len(values) not in (1, images.shape[1]) or (
        len(values) == 1 < images.shape[1] and not is_number(background)
    ):
        raise wrong_value(
            "background",
            background,
            f"one value, or one for each of the {images.shape[1]} channels",
        )
    cast = values.to(images.dtype)
    is_held = (
        cast.isfinite().all()
        if images.is_floating_point()
        else torch.equal(cast.to(values.dtype), values)
    )
    if not is_held:
        raise wrong_value("background", background, f"values that {images.dtype} holds")
    return cast.to(images.device).reshape((1, -1) + (1,) * (images.ndim - 2))


def blank_margins(images: Tensor, background: Background = 0.0) -> Margins:
    """Cells of background before the first and after the last cell with content, along every spatial axis."""
    check_images(images)
    occupied = (images != background_value(images, background)).any(dim=1)
    margins = []
    for axis in range(occupied.ndim - 1):
        line = occupied.movedim(axis + 1, 1).unsqueeze(-1).flatten(2).any(dim=2)
        # argmax gives the first of equal values, here the first cell with content.
        sides = torch.stack(
            [side.to(torch.uint8).argmax(dim=1) for side in (line, line.flip(1))], dim=-1
        )
        margins.append(torch.where(line.any(dim=1, keepdim=True), sides, line.shape[1]))
    return torch.stack(margins, dim=1)


def paste_on_canvas(images: Tensor, canvas_size: Size, background: Background = 0.0) -> Images:
    """Images (B, C, *S) in the middle of a larger canvas of their background, (B, C, *canvas_size).

    Of a margin of M cells in all, M // 2 lie before the image. The canvas has one size for each spatial axis or one for
    all, the background one value or one for each channel.

    Raises:
        ValueError: No spatial axis, a canvas smaller than the images, or not one size for each axis.
    """
    check_images(images)
    sizes = tuple(images.shape[2:])
    canvas = window_size("canvas_size", sizes, canvas_size)
    canvases = background_value(images, background).expand(*images.shape[:2], *canvas).clone()
    crop(canvases, sizes, (0,) * len(sizes)).copy_(images)
    return canvases


def window_size(argument: str, sizes: Sequence[int], given: Size) -> tuple[int, ...]:
    """The "canvas_size" around or the "crop_size" within images of some sizes, with one number for each axis."""
    is_canvas, expected = (
        argument == "canvas_size",
        "a whole number of pixels, or one for each axis",
    )
    window = (
        (int(given),) * len(sizes)
        if is_integer(given)
        else tuple(check_sequence(argument, given, expected))
    )
    if not all(map(is_integer, window)):
        raise wrong_value(argument, given, expected)
    if math.prod(window) > MAX_IMAGE_PIXELS:
        raise wrong_value(argument, given, f"at most {MAX_IMAGE_PIXELS:,} pixels")
    pairs = zip(window, sizes, strict=False)
    if len(window) != len(sizes) or not all(
        part >= side if is_canvas else 1 <= part <= side for part, side in pairs
    ):
        expected = (
            "a size for each axis, none smaller"
            if is_canvas
            else "a size from 1 on for each axis, none larger"
        )
        raise wrong_value(argument, given, f"{expected} than the images' {tuple(sizes)}")
    return window


def crop(
    images: Images, window: Sequence[int], shift: Sequence[int]
) -> Shaped[Tensor, "batch channels *window"]:
    """A view of the window that starts at cell (S − c) // 2 − s of every axis: in its frame, content moves by +s."""
    for axis, (part, step) in enumerate(zip(window, shift, strict=True), 2):
        images = images.narrow(axis, (images.shape[axis] - part) // 2 - step, part)
    return images


def roll_and_blank(images: Images, shift: Sequence[int], value: Tensor) -> Images:
    """Images moved by whole cells, with the value of the background in the cells that enter."""
    moved = images.roll(tuple(shift), tuple(range(2, images.ndim)))
    for axis, step in enumerate(shift, 2):
        if step:
            entered = moved.narrow(axis, 0 if step > 0 else moved.shape[axis] + step, abs(step))
            entered.copy_(value.expand_as(entered))
    return moved


def reflect(images: Images, shift: Sequence[int]) -> Images:
    """Images moved by whole cells: (T_s x)_i = x_{r(i − s)}, r(j) = (S − 1) − |(j mod 2 (S − 1)) − (S − 1)|."""
    moved = images.clone()
    for axis, step in enumerate(shift, 2):
        last = images.shape[axis] - 1
        if step and last:
            cells = torch.arange(last + 1, device=images.device)
            moved = moved.index_select(
                axis, last - ((cells - step).remainder(2 * last) - last).abs()
            )
    return moved


def fourier_shift(images: RealImages, shift: Sequence[int | float | Tensor]) -> RealImages:
    """Images moved by the shift theorem, X_k → X_k exp(−2πi k s / S) along every axis for the frequencies |k| < S / 2.

    Where S is even, the factor of the component at S / 2 is the mean of its two halves', cos(π s). Whole steps roll.
    Steps that are tensors of no axes may carry gradients. Half precision is computed in float32.
    """
    whole = [
        0 if isinstance(step, Tensor) or step != math.floor(step) else int(step) for step in shift
    ]
    moved = images.roll(whole, tuple(range(2, images.ndim)))
    for axis, (step, rolled) in enumerate(zip(shift, whole, strict=True), 2):
        if not isinstance(step, Tensor) and step == rolled:
            continue
        side, wide = images.shape[axis], moved.to(torch.promote_types(images.dtype, torch.float32))
        frequencies = torch.arange(
            side // 2 + 1, dtype=widest_dtype(images.device), device=images.device
        )
        angle = (-2 * math.pi / side) * frequencies * step
        # sin(π s) at S / 2 is left out: the mean of the two halves is real.
        sine = torch.where(frequencies * 2 == side, torch.zeros_like(angle), angle.sin())
        factor = torch.complex(angle.cos().to(wide.dtype), sine.to(wide.dtype))
        factor = factor.reshape((-1,) + (1,) * (images.ndim - axis - 1))
        moved = torch.fft.irfft(torch.fft.rfft(wide, dim=axis) * factor, n=side, dim=axis).to(
            images.dtype
        )
    return moved


def bilinear_shift(images: RealImages, shift: Sequence[int | float]) -> RealImages:
    """Images moved along each axis, (T_s x)_i = (1 − a) x_{i−⌊s⌋} + a x_{i−⌊s⌋−1} with a = s − ⌊s⌋; fractions blur."""
    whole = [math.floor(step) for step in shift]
    moved = images.roll(whole, tuple(range(2, images.ndim)))
    for axis, (step, rolled) in enumerate(zip(shift, whole, strict=True), 2):
        if step != rolled:
            moved = torch.lerp(moved, moved.roll(1, axis), step - rolled)
    return moved
