"""Modes of shifting images, which differ in what happens at the edges."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real

from torch import Tensor

from teka.audit.images import (
    Background,
    Images,
    Margins,
    Moved,
    Size,
    Steps,
    background_value,
    bilinear_shift,
    blank_margins,
    check_background,
    check_images,
    crop,
    fourier_shift,
    paste_on_canvas,
    reflect,
    roll_and_blank,
    window_size,
)
from teka.audit.shifts import (
    CheckedShift,
    CheckedShifts,
    SubpixelShift,
    SubpixelShifts,
    check_shifts,
)
from teka.checks import check_name, check_sequence
from teka.errors import wrong_value


@dataclass(frozen=True)
class Mode:
    """Mode of shifting images.

    Args:
        words: Description of what happens at the edges, in a sentence.
        wraps: Whether content that leaves at one side enters at the other side.
        takes_fractions: Whether shifts by fractions of a pixel are possible.
        keeps_content: Whether only background may leave the image.
        has_background: Whether the value of the background matters.
    """

    words: str
    wraps: bool = False
    takes_fractions: bool = False
    keeps_content: bool = False
    has_background: bool = False


_FRACTIONS = (
    "Shifted by any fraction of a pixel with {}. Pixels that leave at one side enter at the other."
)
MODES = {
    "circular": Mode("Pixels that leave at one side enter at the other.", wraps=True),
    "lossless": Mode(
        "Only background leaves the image, so that nothing of it is lost.",
        keeps_content=True,
        has_background=True,
    ),
    "zero": Mode("Pixels that leave are lost, and background enters.", has_background=True),
    "canvas": Mode(
        "The image is pasted on a larger canvas of its background and moved on it without loss.",
        keeps_content=True,
        has_background=True,
    ),
    "reflect": Mode("Pixels that leave are lost, and a mirror image enters."),
    "crop": Mode(
        "The model sees a window of a larger image. The window moves, and real content enters."
    ),
    "fourier": Mode(_FRACTIONS.format("the Fourier transform"), wraps=True, takes_fractions=True),
    "bilinear": Mode(
        _FRACTIONS.format("linear interpolation, which blurs"), wraps=True, takes_fractions=True
    ),
}
TRANSLATION_MODES = tuple(MODES)


@dataclass(frozen=True)
class Movement:
    """Settings of how images are shifted: the mode, and the sizes and background that it needs.

    >>> import torch
    >>> from teka.audit import Movement
    >>> images = torch.tensor([[[[1, 2, 3]]]])
    >>> modes = ("circular", "zero", "reflect")
    >>> [Movement(mode).move(images, (0, 1)).flatten().tolist() for mode in modes]
    [[3, 1, 2], [0, 1, 2], [2, 1, 2]]

    Args:
        mode: Name in `MODES`.
        background: Value of the images' background, one for all channels or one for each channel.
        canvas_size: Size of the canvas in mode `canvas`, one for all axes or one for each axis.
        crop_size: Size of the window in mode `crop`, one for all axes or one for each axis.

    Raises:
        ValueError: The mode is unknown, or a size is missing or does not belong to the mode.
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
                values = tuple(check_sequence(argument, values, expected))
                object.__setattr__(self, argument, values)
        check_background(self.background)
        for argument, size in (("canvas_size", self.canvas_size), ("crop_size", self.crop_size)):
            owner = argument.removesuffix("_size")
            is_needed = self.mode == owner
            if is_needed and size is None:
                raise wrong_value(argument, size, f"the size of the {owner} for mode {owner!r}")
            if not is_needed and size is not None:
                raise wrong_value(
                    argument, size, f"None, because mode {self.mode!r} has no {owner}"
                )

    @property
    def _how(self) -> Mode:
        return MODES[self.mode]

    @property
    def wraps(self) -> bool:
        """True if content that leaves at one side enters at the other side."""
        return self._how.wraps

    def seen_size(self, image_size: Sequence[int]) -> tuple[int, ...]:
        """Return the spatial size of the model's input, for images of a size."""
        for argument in ("canvas_size", "crop_size"):
            size = getattr(self, argument)
            if size is not None:
                return window_size(argument, image_size, size)
        return tuple(image_size)

    def place(self, images: Tensor) -> Images:
        """Check images, and paste them on the canvas in mode `canvas`.

        Raises:
            ValueError: The images do not fit the canvas or window, or have a wrong dtype.
        """
        check_images(images)
        if self._how.takes_fractions and not images.is_floating_point():
            needed = f"a floating-point dtype, because mode {self.mode!r} shifts by fractions"
            raise wrong_value("images.dtype", images.dtype, needed)
        self.seen_size(images.shape[2:])
        if self.canvas_size is None:
            return images
        return paste_on_canvas(images, self.canvas_size, self.background)

    def check(
        self, placed: Images, shifts: SubpixelShifts, argument: str = "shifts"
    ) -> CheckedShifts:
        """Check that shifts are possible, and return them without duplicates.

        Args:
            placed: Images returned by `place`.
            shifts: The shifts, one step for each axis or one for the last axis.
            argument: Name of the shifts in error messages.

        Returns:
            The shifts in the given order, with one step for every axis. Whole steps are ints.

        Raises:
            ValueError: The mode does not allow a shift, or content of the images would be lost.
        """
        sizes = tuple(placed.shape[2:])
        mode = self._how
        steps = check_shifts(sizes, shifts, argument)
        fractions = [step for step in steps if float in map(type, step)]
        if fractions and not mode.takes_fractions:
            expected = f"whole numbers, because mode {self.mode!r} shifts by whole pixels"
            raise wrong_value(argument, fractions[0], expected)
        if mode.keeps_content:
            check_lossless(sizes, blank_margins(placed, self.background), steps, argument)
        if self.crop_size is not None:
            check_window_shifts(sizes, self.seen_size(sizes), steps, argument)
        return steps

    def move(self, placed: Images, shift: Steps) -> Moved:
        """Return a shifted copy of the images, as the input of the model.

        Args:
            placed: Images returned by `place`.
            shift: A shift returned by `check`.
        """
        if self.mode == "fourier":
            return fourier_shift(placed, shift)
        if self.mode == "bilinear":
            return bilinear_shift(placed, shift)
        whole = [int(step) for step in shift]
        if self.mode == "reflect":
            return reflect(placed, whole)
        if self.mode == "crop":
            return crop(placed, self.seen_size(placed.shape[2:]), whole).clone()
        if self.mode == "zero":
            return roll_and_blank(placed, whole, background_value(placed, self.background))
        return placed.roll(whole, tuple(range(2, placed.ndim)))


def translate(
    images: Tensor,
    shift: SubpixelShift,
    *,
    mode: str,
    background: Background = 0.0,
    canvas_size: Size | None = None,
    crop_size: Size | None = None,
) -> Tensor:
    """Shift images, so that the content at index i moves to i + s.

    `teka.audit.movement.MODES` describes the modes, and docs/audit_movement.md has the formulas.

    >>> import torch
    >>> from teka.audit import translate
    >>> translate(torch.tensor([[[[1, 2, 3]]]]), (0, 1), mode="circular")
    tensor([[[[3, 1, 2]]]])

    Args:
        images: Images (B, C, *S) with any number of spatial axes.
        shift: One step for each axis, or one step for the last axis.
        mode: What happens at the edge: "circular", "lossless", "zero", "canvas", "reflect",
            "crop", "fourier" or "bilinear".
        background: Value of the background, one for all channels or one for each channel.
        canvas_size: Size of the canvas in mode `canvas`, one for all axes or one for each axis.
        crop_size: Size of the window in mode `crop`, one for all axes or one for each axis.

    Returns:
        Shifted images, with the size of the canvas in mode `canvas` and of the window in `crop`.

    Raises:
        ValueError: An argument of `Movement` is invalid, the images have no spatial axis, the
            shift is larger than the canvas or fractional in a mode without interpolation, content
            would be lost in a lossless mode, or the window would leave the images.
    """
    movement = Movement(mode, background, canvas_size, crop_size)
    placed = movement.place(images)
    return movement.move(placed, *movement.check(placed, [shift], "shift"))


def check_lossless(
    sizes: Sequence[int], margins: Margins, shifts: Iterable[CheckedShift], argument: str = "shifts"
) -> None:
    """Check that shifts move only background over the edges of the images.

    Args:
        sizes: Spatial sizes of the images.
        margins: Width of the background at both sides of each axis, for each image.
        shifts: The shifts.
        argument: Name of the shifts in the error message.

    Raises:
        ValueError: A shift would move content over an edge.
    """
    for shift in shifts:
        losses = []
        for axis, step in enumerate(shift):
            # Content moves over the edge at the end of the axis if the step is positive.
            room = margins[:, axis, int(step > 0)]
            num_losing = int((room < abs(step)).sum())
            if num_losing:
                losses.append(
                    f"along axis {axis} (size {sizes[axis]}) "
                    f"{num_losing} of {len(margins)} images lose pixels"
                )
        if losses:
            expected = "a shift that moves only background over the edge"
            raise wrong_value(argument, shift, f"{expected}; {', '.join(losses)}")


def check_window_shifts(
    sizes: Sequence[int],
    window: Sequence[int],
    shifts: Iterable[CheckedShift],
    argument: str = "shifts",
) -> None:
    """Check that shifts keep the window of mode `crop` inside the images.

    Args:
        sizes: Spatial sizes of the images.
        window: Spatial sizes of the window.
        shifts: The shifts.
        argument: Name of the shifts in the error message.

    Raises:
        ValueError: A shift would move the window over an edge.
    """
    for shift in shifts:
        for axis, (side, part, step) in enumerate(zip(sizes, window, shift, strict=True)):
            last = (side - part) // 2
            first = last - (side - part)
            if not first <= step <= last:
                expected = f"from {first} to {last} along axis {axis}"
                hint = f"Crops have size {part}, and images have size {side}."
                raise wrong_value(argument, tuple(shift), expected, hint)
