"""How images are moved: the modes, what enters at the edge, and what of the moved image a model gets to see."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from torch import Tensor

from teka.audit.changes import CHANGES, Change
from teka.audit.images import (
    Background,
    Images,
    Margins,
    Moved,
    Size,
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
from teka.audit.shifts import CheckedShift, SubpixelShift, SubpixelShifts, check_shifts, read_steps
from teka.checks import check_flags, check_name, check_sequence
from teka.errors import wrong_argument, wrong_value


@dataclass(frozen=True)
class Mode:
    """A way of moving images: what happens at the edge, in a sentence, and what follows from it."""

    words: str
    spoken: str  # the same in a few words, for a headline
    wraps: bool = (
        False  # what leaves at one side enters at the other, so that every cell came from inside
    )
    takes_fractions: bool = False  # of a cell
    keeps_content: bool = False  # only background may leave
    has_background: bool = False  # whose value matters
    size: str | None = None  # that it needs, "canvas_size" or "crop_size"


_FRACTIONS = "Moved by any fraction of a pixel by {}; what leaves at one side enters at the other."
_WRAP = "with circular wrap, which no camera does"
MODES = {
    "circular": Mode("What leaves at one side enters at the other.", _WRAP, wraps=True),
    "lossless": Mode(
        "Only background leaves the image, so that nothing of it is lost.",
        "over its own background",
        keeps_content=True,
        has_background=True,
    ),
    "zero": Mode(
        "What leaves is lost, and background enters.",
        "with background coming in",
        has_background=True,
    ),
    "canvas": Mode(
        "The image lies on a larger canvas of its background and is moved over it, so that nothing is lost.",
        "on a larger canvas",
        keeps_content=True,
        has_background=True,
        size="canvas_size",
    ),
    "reflect": Mode(
        "What leaves is lost, and a mirror image enters.",
        "with mirrored edges, which no camera does",
    ),
    "crop": Mode(
        "The model sees a window of a larger image. The window is moved, so what enters was there before.",
        "seen through a window that moves, as a camera does",
        size="crop_size",
    ),
    "fourier": Mode(
        _FRACTIONS.format("the Fourier transform"), _WRAP, wraps=True, takes_fractions=True
    ),
    "bilinear": Mode(
        _FRACTIONS.format("linear interpolation, which blurs"),
        _WRAP,
        wraps=True,
        takes_fractions=True,
    ),
}
TRANSLATION_MODES = tuple(MODES)
_CHANGED = Mode("", "", takes_fractions=True)  # of the changes, whose words are their own


@dataclass(frozen=True)
class Movement:
    """How images are moved, the same for every image and every shift of a measurement.

    >>> import torch
    >>> from teka.audit import Movement
    >>> images = torch.tensor([[[[1, 2, 3]]]])
    >>> [Movement(mode).move(images, (0, 1)).flatten().tolist() for mode in ("circular", "zero", "reflect")]
    [[3, 1, 2], [0, 1, 2], [2, 1, 2]]

    Raises:
        ValueError: An unknown mode; a canvas or crop size without its mode, or none with it.
    """

    mode: str  # of the function `teka.audit.translate`
    background: float | int | tuple[float | int, ...] = (
        0.0  # of the images: one value, or one for each channel
    )
    canvas_size: int | tuple[int, ...] | None = (
        None  # for mode `canvas`, one number for each axis or one for all
    )
    crop_size: int | tuple[int, ...] | None = None  # of the window for mode `crop`, likewise
    there_and_back: bool = (
        False  # of a change that interpolates: done and undone, so that only interpolation is left
    )

    def __post_init__(self) -> None:
        check_name("mode", self.mode, (*MODES, *CHANGES))
        check_background(self.background)
        check_flags({"there_and_back": self.there_and_back})
        if self.there_and_back and not (self.change and self.change.interpolates):
            raise wrong_value(
                "there_and_back", True, f"False, since mode {self.mode!r} does not interpolate"
            )
        for argument, size in (("canvas_size", self.canvas_size), ("crop_size", self.crop_size)):
            owner, is_needed = argument.removesuffix("_size"), self._how.size == argument
            if is_needed and size is None:
                raise wrong_value(argument, size, f"the size of the {owner} for mode {owner!r}")
            if not is_needed and size is not None:
                raise wrong_value(argument, size, f"None, since mode {self.mode!r} has no {owner}")

    @property
    def _how(self) -> Mode:
        return MODES.get(self.mode, _CHANGED)

    @property
    def change(self) -> Change | None:
        """What is done where images do not shift, whose shifts are tuples of one amount; None where they do."""
        return CHANGES.get(self.mode)

    @property
    def wraps(self) -> bool:
        """As of its `Mode`."""
        return self._how.wraps

    def seen_size(self, image_size: Sequence[int]) -> tuple[int, ...]:
        """Spatial size of what a model gets: of the canvas, of the window, or of the images."""
        own = self._how.size
        return (
            tuple(image_size) if own is None else window_size(own, image_size, getattr(self, own))
        )

    def place(self, images: Tensor) -> Images:
        """The images as they lie before any shift: on their canvas in mode `canvas`, as they are in the others."""
        check_images(images)
        if self._how.takes_fractions and not images.is_floating_point():
            needed = f"a floating-point dtype, since mode {self.mode!r} moves by fractions"
            raise wrong_value("images.dtype", images.dtype, needed)
        self.seen_size(images.shape[2:])
        return (
            images
            if self.canvas_size is None
            else paste_on_canvas(images, self.canvas_size, self.background)
        )

    def check(
        self, placed: Images, shifts: SubpixelShifts, argument: str = "shifts"
    ) -> tuple[tuple, ...]:
        """The shifts in the order given, one step for every axis, whole ones as ints; repeats count once."""
        sizes, mode = tuple(placed.shape[2:]), self._how
        if self.change is not None:
            return check_amounts(self.mode, sizes, shifts, argument)
        steps = check_shifts(sizes, shifts, argument)
        fractions = [step for step in steps if float in map(type, step)]
        if fractions and not mode.takes_fractions:
            raise wrong_value(
                argument,
                fractions[0],
                f"whole numbers, since mode {self.mode!r} moves by whole cells",
            )
        if mode.keeps_content:
            check_lossless(sizes, blank_margins(placed, self.background), steps, argument)
        if self.crop_size is not None:
            check_room(sizes, self.seen_size(sizes), steps, argument)
        return steps

    def move(self, placed: Images, shift: Sequence[int | float]) -> Moved:
        """What a model sees of placed images at a shift that `check` has passed: new images."""
        if self.change is not None:
            (amount,) = shift
            moved = self.change.apply(placed, amount, self.background)
            return (
                self.change.apply(moved, self.change.undo(amount), self.background)
                if self.there_and_back
                else moved
            )
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


def check_amounts(
    mode: str, sizes: Sequence[int], amounts: SubpixelShifts, argument: str = "shifts"
) -> tuple[tuple, ...]:
    """The amounts of a change as tuples of one number, in the order given; repeats count once."""
    if len(sizes) != 2:
        raise wrong_argument("images", f"{len(sizes)} spatial axes", f"two, for mode {mode!r}")
    checked: dict[tuple[int | float], None] = {}
    for given in read_steps(argument, amounts):
        if isinstance(given, list) and len(given) != 1:
            raise wrong_value(argument, given, f"one amount each, for mode {mode!r}")
        value = float(given[0] if isinstance(given, list) else given)
        amount = int(value) if value.is_integer() else value
        known = CHANGES[mode].amounts
        if CHANGES[mode].names and amount not in known:
            raise wrong_value(argument, amount, f"one of {known}, for mode {mode!r}")
        if mode in ("scale", "brightness") and amount <= -100:
            raise wrong_value(argument, amount, f"a percentage above −100, for mode {mode!r}")
        if mode == "turn" and amount % 2 and sizes[0] != sizes[1]:
            raise wrong_value("images", tuple(sizes), "as high as wide, to be turned by a quarter")
        checked[(amount,)] = None
    return tuple(checked)


def translate(
    images: Tensor,
    shift: SubpixelShift,
    *,
    mode: str,
    background: Background = 0.0,
    canvas_size: Size | None = None,
    crop_size: Size | None = None,
) -> Tensor:
    """Images moved: content at index i moves to i + s.

    A mode says what happens at the edge: "circular", "lossless", "zero", "canvas", "reflect", "crop", "fourier" or
    "bilinear", of which `teka.audit.movement.MODES` has the words, and docs/audit_movement.md the formulae.

    Images (B, C, *S) have any number of spatial axes, of which each has its step, or the last the only one. New ones
    have the size of the canvas in mode `canvas`, and of the window in mode `crop`. The rest is as of `Movement`.

    Raises:
        ValueError: What `Movement` refuses; no spatial axis; a shift longer than the canvas; fractions of a cell, or of
            integer images; content that would be lost, or a window that would leave the images.
    """
    movement = make_movement(mode, background, canvas_size, crop_size)
    placed = movement.place(images)
    return movement.move(placed, *movement.check(placed, [shift], "shift"))


def make_movement(
    mode: str,
    background: Background = 0.0,
    canvas_size: Size | None = None,
    crop_size: Size | None = None,
) -> Movement:
    """The movement of these settings, with any sequence for what has one number for each channel or axis."""
    check_name("mode", mode, TRANSLATION_MODES)
    given: dict[str, Any] = {
        "background": background,
        "canvas_size": canvas_size,
        "crop_size": crop_size,
    }
    for argument, values in given.items():
        if values is not None and not isinstance(values, Real):
            given[argument] = tuple(
                check_sequence(argument, values, "a number, or one for each channel or axis")
            )
    return Movement(mode, **given)


def check_lossless(
    sizes: Sequence[int], margins: Margins, shifts: Iterable[CheckedShift], argument: str = "shifts"
) -> None:
    """Check that no shift pushes anything but background, of which there are these margins, over an edge."""
    if not len(margins):
        return
    room = margins.amin(dim=0).tolist()
    for shift in shifts:
        if not all(
            -before <= step <= after for step, (before, after) in zip(shift, room, strict=True)
        ):
            losing = [
                int((margins[:, axis, int(step > 0)] < abs(step)).sum())
                for axis, step in enumerate(shift)
            ]
            losses = ", ".join(
                f"along axis {axis} (size {side}) {count} of {len(margins)} images lose pixels"
                for axis, (side, count) in enumerate(zip(sizes, losing, strict=True))
                if count
            )
            raise wrong_value(
                argument, shift, f"one that moves only background over the edge; {losses}"
            )


def check_room(
    sizes: Sequence[int],
    window: Sequence[int],
    shifts: Iterable[CheckedShift],
    argument: str = "shifts",
) -> None:
    """Check that no shift takes the window over an edge of images of these sizes; `crop` says which do not."""
    for shift in shifts:
        for axis, (side, part, step) in enumerate(zip(sizes, window, shift, strict=True)):
            last = (side - part) // 2
            first = last - (side - part)
            if not first <= step <= last:
                expected = f"from {first} to {last} along axis {axis}, for crops of {part} from images of {side}"
                raise wrong_value(argument, tuple(shift), expected)
