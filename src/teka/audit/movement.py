"""Shifts of images, in modes that differ in what happens at the edges."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from teka.audit.shifts import (
    CheckedShift,
    CheckedShifts,
    SubpixelShift,
    SubpixelShifts,
    parse_shifts,
)
from teka.checks import (
    check_dense_tensor,
    check_iterable,
    check_name,
    check_number,
    is_integer,
    is_number,
)
from teka.errors import wrong_shape, wrong_value
from teka.memory import MAX_IMAGE_PIXELS
from teka.precision import widest_dtype

Images = Shaped[Tensor, "batch channels *sizes"]
RealImages = Float[Tensor, "batch channels *sizes"]
Margins = Int[Tensor, "batch axes sides"]
ImageSet = Shaped[Tensor, "images channels *sizes"]
Background = Sequence[float | int] | float | int
Size = Sequence[int] | int
Steps = Sequence[int | float]  # one step for each axis
BACKGROUND = "a finite number, or one for each channel"


def check_images(images: Tensor, argument: str = "images", *, least: int = 0) -> None:
    """Check that a tensor contains at least `least` images (B, C, *S) of a real dtype.

    Raises:
        ValueError: The shape or dtype is wrong, or there are too few images.
    """
    check_dense_tensor(argument, images)
    if images.ndim < 3 or 0 in images.shape[1:] or len(images) < least:
        expected = "(batch, channels, *sizes), with at least one spatial axis and no empty axis"
        raise wrong_shape(argument, images.shape, expected)
    if torch.is_complex(images):
        raise wrong_value(f"{argument}.dtype", images.dtype, "a real dtype")


def parse_background(background: Background) -> list[float | int]:
    """Check the argument `background`, and convert it to a list of floats.

    Raises:
        ValueError: The background is empty or not numeric.
    """
    is_single = isinstance(background, Real)
    values = [background] if is_single else check_iterable("background", background, BACKGROUND)
    if not values:
        raise wrong_value("background", background, BACKGROUND)
    for value in values:
        check_number("background", value, BACKGROUND)
    return list(map(float, values))


def background_to_tensor(images: Images, background: Background) -> Tensor:
    """Convert a background to a tensor of the images' dtype that broadcasts with the images.

    Raises:
        ValueError: The number of values is wrong, or the dtype cannot represent a value.
    """
    values = torch.tensor(parse_background(background), dtype=torch.float64)
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
    """Count the rows and columns of pure background at each side of each image.

    Args:
        images: Images (B, C, *S).
        background: Value of the background: one number for all channels, or one for each channel.

    Returns:
        Number of background pixels before and after the content along each axis, of shape
        (B, axes, 2). If an image contains only background, both are its size along the axis.
    """
    check_images(images)
    occupied = (images != background_to_tensor(images, background)).any(dim=1)
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
    """Paste images into the center of a larger canvas that is filled with the background.

    If the canvas is M pixels larger than the images along an axis, M // 2 of these pixels come
    before the image.

    >>> import torch
    >>> from teka.audit import paste_on_canvas
    >>> paste_on_canvas(torch.tensor([[[[1, 2]]]]), (1, 4))
    tensor([[[[0, 1, 2, 0]]]])

    Args:
        images: Images (B, C, *S).
        canvas_size: Size of the canvas: one number for all axes, or one for each spatial axis.
        background: Value of the background: one number for all channels, or one for each channel.

    Returns:
        Images (B, C, *canvas_size).

    Raises:
        ValueError: The images have no spatial axis, the canvas is smaller than the images, or
            `canvas_size` has the wrong number of axes.
    """
    check_images(images)
    sizes = tuple(images.shape[2:])
    canvas = parse_window_size("canvas_size", sizes, canvas_size)
    canvases = background_to_tensor(images, background).expand(*images.shape[:2], *canvas).clone()
    crop(canvases, sizes, (0,) * len(sizes)).copy_(images)
    return canvases


def parse_window_size(argument: str, sizes: Sequence[int], size: Size) -> tuple[int, ...]:
    """Check the argument `canvas_size` or `crop_size`, and convert it to one integer for each axis.

    Args:
        argument: Name of the argument, "canvas_size" or "crop_size".
        sizes: Spatial sizes of the images.
        size: Value of the argument: one number for all axes, or one for each axis.

    Raises:
        ValueError: The size does not fit the images.
    """
    expected = f"a number of pixels, or one for each axis of images of size {tuple(sizes)}"
    window: Any = (
        [size] * len(sizes) if is_integer(size) else check_iterable(argument, size, expected)
    )
    if len(window) != len(sizes) or not all(map(is_integer, window)):
        raise wrong_value(argument, size, expected)
    is_canvas = argument == "canvas_size"
    for part, side in zip(window, sizes, strict=True):
        if (part < side) if is_canvas else not 1 <= part <= side:
            bound = "none smaller than" if is_canvas else "at least 1 and none larger than"
            raise wrong_value(argument, size, f"{bound} the images' {tuple(sizes)}")
    if math.prod(window) > MAX_IMAGE_PIXELS:
        raise wrong_value(argument, size, f"at most {MAX_IMAGE_PIXELS:,} pixels")
    return tuple(window)


def crop(
    images: Images, window: Sequence[int], shift: Sequence[int]
) -> Shaped[Tensor, "batch channels *window"]:
    """Crop images to a window whose position moves the content by the given shift.

    Without a shift, the window is in the center of the images. To move the content by s pixels, the
    window moves by −s pixels. Along an axis of size S, a window of size c therefore starts at
    (S − c) // 2 − s. The result is a view.
    """
    for axis, (part, step) in enumerate(zip(window, shift, strict=True), 2):
        images = images.narrow(axis, (images.shape[axis] - part) // 2 - step, part)
    return images


def roll_and_fill(images: Images, shift: Sequence[int], value: Tensor) -> Images:
    """Shift images by whole pixels, and fill the pixels that enter with a constant value."""
    moved = images.roll(tuple(shift), tuple(range(2, images.ndim)))
    for axis, step in enumerate(shift, 2):
        if step:
            entered = moved.narrow(axis, 0 if step > 0 else moved.shape[axis] + step, abs(step))
            entered.copy_(value.expand_as(entered))
    return moved


def reflect_shift(images: Images, shift: Sequence[int]) -> Images:
    """Shift images by whole pixels, and mirror the content at the edges to fill new pixels.

    Along an axis of size S, a shift by s pixels copies pixel r(i − s) of the image to pixel i. The
    function r reflects indices at the edges: r(j) = (S − 1) − |(j mod 2 (S − 1)) − (S − 1)|.
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
    """Shift images by whole or fractional pixels with a Fourier transform and circular edges.

    To shift an axis of size S by s pixels, the Fourier coefficient of frequency k is multiplied by
    exp(−2πi k s / S) (shift theorem). If S is even, the coefficient of frequency S / 2 is
    multiplied by cos(π s), which is the mean of the factors for k = S / 2 and k = −S / 2. Images in
    half precision are transformed in float32.

    Args:
        images: Images (B, C, *S).
        shift: One step for each axis. Whole steps only roll the images, so they are exact.
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
    """Shift images by whole or fractional pixels with linear interpolation and circular edges.

    Fractional shifts blur the images. Along each axis, a shift of the image x by s pixels replaces
    pixel i with (1 − a) x_{i−⌊s⌋} + a x_{i−⌊s⌋−1}, where a = s − ⌊s⌋ is the fractional part of s.
    """
    moved = images
    for axis, step in enumerate(shift, 2):
        whole = math.floor(step)
        moved = moved.roll(whole, axis)
        if step != whole:
            moved = torch.lerp(moved, moved.roll(1, axis), step - whole)
    return moved


@dataclass(frozen=True)
class Mode:
    """Properties of a mode of shifting images.

    Args:
        description: Sentences that say what happens at the edges.
        wraps: Whether pixels that leave at one side enter at the other side.
        takes_fractions: Whether images can be shifted by a fraction of a pixel.
        keeps_content: Whether only background may leave the image.
        has_background: Whether the value of the background affects the result.
    """

    description: str
    wraps: bool = False
    takes_fractions: bool = False
    keeps_content: bool = False
    has_background: bool = False


MODES = {
    "circular": Mode("Pixels that leave at one side enter at the other.", wraps=True),
    "lossless": Mode(
        "Only background crosses the edges of the image, so that no content is lost.",
        keeps_content=True,
        has_background=True,
    ),
    "zero": Mode("Pixels that leave are lost, and background enters.", has_background=True),
    "canvas": Mode(
        "The image moves on a larger canvas of background, so that no content is lost.",
        keeps_content=True,
        has_background=True,
    ),
    "reflect": Mode("Pixels that leave are lost, and the image is mirrored at its edges."),
    "crop": Mode(
        "The model sees a window of a larger image. If the window moves, real content enters it."
    ),
    "fourier": Mode(
        "The Fourier transform shifts the image by any fraction of a pixel. Pixels that leave at "
        "one side enter at the other.",
        wraps=True,
        takes_fractions=True,
    ),
    "bilinear": Mode(
        "Linear interpolation shifts the image by any fraction of a pixel, and blurs it. Pixels "
        "that leave at one side enter at the other.",
        wraps=True,
        takes_fractions=True,
    ),
}
TRANSLATION_MODES = tuple(MODES)


@dataclass(frozen=True)
class Movement:
    """Way of shifting images: a mode, which determines what happens at the edges, and its settings.

    >>> import torch
    >>> from teka.audit import Movement
    >>> images = torch.tensor([[[[1, 2, 3]]]])
    >>> modes = ("circular", "zero", "reflect")
    >>> [Movement(mode).move(images, (0, 1)).flatten().tolist() for mode in modes]
    [[3, 1, 2], [0, 1, 2], [2, 1, 2]]

    Args:
        mode: Treatment of the edges, a mode of `teka.audit.translate`.
        background: Value of the background: one number for all channels, or one for each channel.
        canvas_size: Size of the canvas in mode "canvas": one number, or one for each axis.
        crop_size: Size of the window in mode "crop": one number, or one for each axis.

    Raises:
        ValueError: The mode is unknown, the size that it needs is missing, or a size is given that
            the mode does not use.
    """

    mode: str
    background: Background = 0.0
    canvas_size: Size | None = None
    crop_size: Size | None = None

    def __post_init__(self) -> None:
        check_name("mode", self.mode, MODES)
        for argument in ("background", "canvas_size", "crop_size"):
            values = getattr(self, argument)
            if values is not None and not isinstance(values, Real):
                expected = "a number, or one for each channel or axis"
                values = tuple(check_iterable(argument, values, expected))
                object.__setattr__(self, argument, values)
        parse_background(self.background)
        for mode in ("canvas", "crop"):
            argument = f"{mode}_size"
            size = getattr(self, argument)
            if self.mode == mode and size is None:
                raise wrong_value(argument, size, f"the size of the {mode} for mode {mode!r}")
            if self.mode != mode and size is not None:
                raise wrong_value(argument, size, f"None, because mode {self.mode!r} has no {mode}")

    @property
    def wraps(self) -> bool:
        """True if the edges are circular: pixels that leave at one side enter at the other side."""
        return MODES[self.mode].wraps

    def seen_size(self, image_size: Sequence[int]) -> tuple[int, ...]:
        """Return the spatial size of shifted images, as the model sees them.

        This is the size of the canvas in mode "canvas", the size of the window in mode "crop", and
        the size of the original images in all other modes.

        Args:
            image_size: Spatial size of the original images.
        """
        for argument in ("canvas_size", "crop_size"):
            size = getattr(self, argument)
            if size is not None:
                return parse_window_size(argument, image_size, size)
        return tuple(image_size)

    def prepare_images(self, images: Tensor) -> Images:
        """Prepare images for `move`: in mode "canvas", paste them on the canvas.

        In all other modes, the images are only checked and returned unchanged.

        Raises:
            ValueError: The images do not fit the canvas or the window, or they have a wrong dtype.
        """
        check_images(images)
        if MODES[self.mode].takes_fractions and not images.is_floating_point():
            needed = f"a floating-point dtype, because mode {self.mode!r} shifts by fractions"
            raise wrong_value("images.dtype", images.dtype, needed)
        self.seen_size(images.shape[2:])
        if self.canvas_size is None:
            return images
        return paste_on_canvas(images, self.canvas_size, self.background)

    def parse_shifts(
        self, prepared: Images, shifts: SubpixelShifts, argument: str = "shifts"
    ) -> CheckedShifts:
        """Check that the images can be shifted as requested, and convert the shifts to tuples.

        Args:
            prepared: Images returned by `prepare_images`.
            shifts: Shifts with one step for each axis, or a number for a step along the last axis.
            argument: Name of the shifts in error messages.

        Returns:
            Each shift once, in the given order, as a tuple for `move` with one step for each axis.
            Whole steps are of type int.

        Raises:
            ValueError: The mode does not allow a shift, or a shift would lose image content.
        """
        sizes = tuple(prepared.shape[2:])
        mode = MODES[self.mode]
        steps = parse_shifts(sizes, shifts, argument)
        for step in steps:
            if float in map(type, step) and not mode.takes_fractions:
                expected = f"whole numbers, because mode {self.mode!r} shifts by whole pixels"
                raise wrong_value(argument, step, expected)
        if mode.keeps_content:
            check_margins(steps, blank_margins(prepared, self.background), argument)
        if self.crop_size is not None:
            rest = torch.tensor(sizes) - torch.tensor(self.seen_size(sizes))
            room = torch.stack([rest - rest // 2, rest // 2], dim=1)
            check_margins(steps, room.expand(len(prepared), -1, -1), argument)
        return steps

    def move(self, prepared: Images, shift: Steps) -> Shaped[Tensor, "batch channels *moved"]:
        """Return a shifted copy of the images, whose spatial size `seen_size` returns.

        Args:
            prepared: Images returned by `prepare_images`.
            shift: One of the shifts returned by `parse_shifts`.
        """
        if self.mode == "fourier":
            return fourier_shift(prepared, shift)
        if self.mode == "bilinear":
            return bilinear_shift(prepared, shift)
        whole = tuple(map(int, shift))
        if self.mode == "reflect":
            return reflect_shift(prepared, whole)
        if self.mode == "crop":
            return crop(prepared, self.seen_size(prepared.shape[2:]), whole).clone()
        if self.mode == "zero":
            return roll_and_fill(prepared, whole, background_to_tensor(prepared, self.background))
        return prepared.roll(whole, tuple(range(2, prepared.ndim)))


def translate(
    images: Tensor,
    shift: SubpixelShift,
    *,
    mode: str,
    background: Background = 0.0,
    canvas_size: Size | None = None,
    crop_size: Size | None = None,
) -> Tensor:
    """Shift images by whole pixels, or by fractions of a pixel.

    A shift by s pixels along an axis moves pixel i to index i + s. The mode determines what happens
    at the edges. docs/audit_movement.md explains the modes with examples and formulas.

    >>> import torch
    >>> from teka.audit import translate
    >>> translate(torch.tensor([[[[1, 2, 3]]]]), (0, 1), mode="circular")
    tensor([[[[3, 1, 2]]]])

    Args:
        images: Images (B, C, *S) with any number of spatial axes.
        shift: One step for each axis, or a number for a step along the last axis.
        mode: Treatment of the edges: "circular", "lossless", "zero", "canvas", "reflect", "crop",
            "fourier" or "bilinear".
        background: Value of the background: one number for all channels, or one for each channel.
        canvas_size: Size of the canvas in mode "canvas": one number, or one for each axis.
        crop_size: Size of the window in mode "crop": one number, or one for each axis.

    Returns:
        The shifted images. They have the size of the canvas in mode "canvas", and the size of the
        window in mode "crop".

    Raises:
        ValueError: An argument is invalid; the images have no spatial axis; the shift is larger
            than the canvas, or fractional in a mode without interpolation; a lossless mode would
            lose content; or the window would leave the images.
    """
    movement = Movement(mode, background, canvas_size, crop_size)
    prepared = movement.prepare_images(images)
    return movement.move(prepared, *movement.parse_shifts(prepared, [shift], "shift"))


def check_margins(shifts: Iterable[CheckedShift], room: Margins, argument: str) -> None:
    """Check that every shift fits into the margins of every image.

    In lossless modes, the margins are the background around the content. In mode "crop", they are
    the parts of the image around the window.

    Args:
        shifts: The shifts.
        room: Longest possible step for each image and axis, in negative and in positive direction,
            of shape (B, axes, 2).
        argument: Name of the shifts in the error message.

    Raises:
        ValueError: A shift is too long.
    """
    for shift in shifts:
        for axis, step in enumerate(shift):
            num_without_room = int((room[:, axis, int(step > 0)] < abs(step)).sum())
            if num_without_room:
                before, after = room[:, axis].amin(dim=0).tolist()
                expected = f"from {-before} to {after} along axis {axis}"
                hint = (
                    f"{num_without_room} of {len(room)} images have a smaller margin around their "
                    "content, or around the window in mode 'crop'."
                )
                raise wrong_value(argument, tuple(shift), expected, hint)
