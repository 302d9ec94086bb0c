"""Operations on batches of images: background, canvas, crops, and shifts of pixels."""

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

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
Steps = Sequence[int | float]  # one step for each axis
BACKGROUND = "a finite number, or one for each channel"


def check_images(images: Tensor, argument: str = "images", *, least: int = 0) -> None:
    """Check that a tensor is a batch of at least `least` real-valued images (B, C, *S).

    Raises:
        ValueError: The shape or dtype is wrong.
    """
    check_dense(argument, images)
    if images.ndim < 3 or 0 in images.shape[1:] or len(images) < least:
        expected = "(batch, channels, one or more spatial sizes), none of them empty"
        raise wrong_shape(argument, images.shape, expected)
    if torch.is_complex(images):
        raise wrong_value(f"{argument}.dtype", images.dtype, "a real dtype")


def check_background(background: Background) -> list[float | int]:
    """Check a background, a number or one number for each channel, and return it as a list.

    Raises:
        ValueError: The background is empty or not numeric.
    """
    is_single = isinstance(background, Real)
    values = [background] if is_single else check_sequence("background", background, BACKGROUND)
    if not values:
        raise wrong_value("background", background, BACKGROUND)
    for value in values:
        check_number("background", value, BACKGROUND)
    return list(map(float, values))


def background_value(images: Images, background: Background) -> Tensor:
    """Return the background as a tensor that broadcasts over the images, in their dtype.

    Raises:
        ValueError: The number of values is wrong, or the dtype cannot represent a value.
    """
    values = torch.tensor(check_background(background), dtype=torch.float64)
    channels = images.shape[1]
    if len(values) != channels and not is_number(background):
        expected = f"one value, or one for each of the {channels} channels"
        raise wrong_value("background", background, expected)
    cast = values.to(images.dtype)
    # Floating-point numbers may be rounded, but not to infinity.
    is_held = cast.isfinite() if images.is_floating_point() else cast.to(values.dtype) == values
    if not is_held.all():
        raise wrong_value("background", background, f"values that {images.dtype} holds")
    return cast.to(images.device).reshape((1, -1) + (1,) * (images.ndim - 2))


def blank_margins(images: Tensor, background: Background = 0.0) -> Margins:
    """Return the width of the background at both sides of every spatial axis, for each image."""
    check_images(images)
    occupied = (images != background_value(images, background)).any(dim=1)
    margins = []
    for axis in range(occupied.ndim - 1):
        line = occupied.movedim(axis + 1, 1).unsqueeze(-1).flatten(2).any(dim=2)
        # argmax returns the first of equal values, which is the first row or column with content.
        sides = torch.stack(
            [side.to(torch.uint8).argmax(dim=1) for side in (line, line.flip(1))], dim=-1
        )
        margins.append(torch.where(line.any(dim=1, keepdim=True), sides, line.shape[1]))
    return torch.stack(margins, dim=1)


def paste_on_canvas(images: Tensor, canvas_size: Size, background: Background = 0.0) -> Images:
    """Paste images into the middle of a larger canvas of their background.

    If the canvas is M pixels larger along an axis, M // 2 pixels are before the image.

    >>> import torch
    >>> from teka.audit import paste_on_canvas
    >>> paste_on_canvas(torch.tensor([[[[1, 2]]]]), (1, 4))
    tensor([[[[0, 1, 2, 0]]]])

    Args:
        images: Images (B, C, *S).
        canvas_size: Size of the canvas, one for all axes or one for each spatial axis.
        background: Value of the background, one for all channels or one for each channel.

    Returns:
        Images (B, C, *canvas_size).

    Raises:
        ValueError: The images have no spatial axis, or the canvas is smaller than the images or
            has a wrong number of axes.
    """
    check_images(images)
    sizes = tuple(images.shape[2:])
    canvas = window_size("canvas_size", sizes, canvas_size)
    canvases = background_value(images, background).expand(*images.shape[:2], *canvas).clone()
    crop(canvases, sizes, (0,) * len(sizes)).copy_(images)
    return canvases


def window_size(argument: str, sizes: Sequence[int], given: Size) -> tuple[int, ...]:
    """Check the size of a canvas or crop, and return it with one number for each axis.

    Args:
        argument: Name of the size, "canvas_size" or "crop_size".
        sizes: Spatial sizes of the images.
        given: One size for all axes, or one for each axis.

    Raises:
        ValueError: The size does not fit the images.
    """
    expected = f"a whole number of pixels for each axis of the images' {tuple(sizes)}"
    window: Any = [given] * len(sizes)
    if not is_integer(given):
        window = check_sequence(argument, given, expected)
    if len(window) != len(sizes) or not all(map(is_integer, window)):
        raise wrong_value(argument, given, expected)
    is_canvas = argument == "canvas_size"
    for part, side in zip(window, sizes, strict=True):
        if (part < side) if is_canvas else not 1 <= part <= side:
            bound = "none smaller than" if is_canvas else "at least 1 and none larger than"
            raise wrong_value(argument, given, f"{bound} the images' {tuple(sizes)}")
    if math.prod(window) > MAX_IMAGE_PIXELS:
        raise wrong_value(argument, given, f"at most {MAX_IMAGE_PIXELS:,} pixels")
    return tuple(window)


def crop(
    images: Images, window: Sequence[int], shift: Sequence[int]
) -> Shaped[Tensor, "batch channels *window"]:
    """Return a window of the images, as a view.

    The window is placed so that the content in it moves by `shift`. Along an axis of size S, a
    window of size c starts at (S − c) // 2 − s for the step s.
    """
    for axis, (part, step) in enumerate(zip(window, shift, strict=True), 2):
        images = images.narrow(axis, (images.shape[axis] - part) // 2 - step, part)
    return images


def roll_and_blank(images: Images, shift: Sequence[int], value: Tensor) -> Images:
    """Shift images by whole pixels, and fill the pixels that enter with the background."""
    moved = images.roll(tuple(shift), tuple(range(2, images.ndim)))
    for axis, step in enumerate(shift, 2):
        if step:
            entered = moved.narrow(axis, 0 if step > 0 else moved.shape[axis] + step, abs(step))
            entered.copy_(value.expand_as(entered))
    return moved


def reflect(images: Images, shift: Sequence[int]) -> Images:
    """Shift images by whole pixels, and fill the pixels that enter with a mirror image.

    (T_s x)_i = x_{r(i − s)} with r(j) = (S − 1) − |(j mod 2 (S − 1)) − (S − 1)| for size S.
    """
    moved = images.clone()
    for axis, step in enumerate(shift, 2):
        last = images.shape[axis] - 1
        if step and last:
            cells = torch.arange(last + 1, device=images.device)
            moved = moved.index_select(
                axis, last - ((cells - step).remainder(2 * last) - last).abs()
            )
    return moved


def fourier_shift(images: RealImages, shift: Steps) -> RealImages:
    """Shift images by any distance with the Fourier transform and circular edges.

    By the shift theorem, X_k becomes X_k exp(−2πi k s / S) along every axis of size S, for the
    frequencies |k| < S / 2. If S is even, the component at S / 2 is multiplied by cos(π s), the
    mean of the factors at ± S / 2. Half precision is computed in float32.

    Args:
        images: Images (B, C, *S).
        shift: One step for each axis. Whole numbers roll the images exactly.
    """
    moved = images
    for axis, step in enumerate(shift, 2):
        if step == math.floor(step):
            moved = moved.roll(int(step), axis)
            continue
        side = images.shape[axis]
        frequencies = torch.arange(
            side // 2 + 1, dtype=widest_dtype(images.device), device=images.device
        )
        angle = (-2 * math.pi / side) * frequencies * step
        factor = torch.polar(torch.ones_like(angle), angle)
        if side % 2 == 0:
            factor[-1] = math.cos(math.pi * step)  # the mean of the factors at ± S / 2
        wide = moved.movedim(axis, -1).to(torch.promote_types(images.dtype, torch.float32))
        spectrum = torch.fft.rfft(wide)
        spectrum = spectrum * factor.to(spectrum.dtype)
        moved = torch.fft.irfft(spectrum, n=side).movedim(-1, axis).to(images.dtype)
    return moved


def bilinear_shift(images: RealImages, shift: Steps) -> RealImages:
    """Shift images by any distance with linear interpolation and circular edges.

    (T_s x)_i = (1 − a) x_{i−⌊s⌋} + a x_{i−⌊s⌋−1} with a = s − ⌊s⌋, along each axis. Fractional
    shifts blur the images.
    """
    moved = images
    for axis, step in enumerate(shift, 2):
        whole = math.floor(step)
        moved = moved.roll(whole, axis)
        if step != whole:
            moved = torch.lerp(moved, moved.roll(1, axis), step - whole)
    return moved
