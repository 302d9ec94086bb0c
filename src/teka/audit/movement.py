"""How images are moved: the modes, what enters at the edge, and what of the moved image a model gets to see."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxtyping import Int, Shaped
from torch import Tensor

from teka.audit.images import (
    background_value,
    bilinear_shift,
    blank_margins,
    check_images,
    crop,
    fourier_shift,
    paste_on_canvas,
    reflect,
    roll_and_blank,
    window_size,
)
from teka.audit.shifts import SubpixelShift, check_shifts
from teka.checks import check_name
from teka.errors import wrong_value


@dataclass(frozen=True)
class Mode:
    """A way of moving images: what happens at the edge, in a sentence, and what follows from it."""

    words: str
    wraps: bool = False  # what leaves at one side enters at the other, so that every cell came from inside
    takes_fractions: bool = False  # of a cell
    keeps_content: bool = False  # only background may leave
    has_background: bool = False  # whose value matters
    size: str | None = None  # that it needs, "canvas_size" or "crop_size"


_ELSEWHERE = "what leaves at one side enters at the other"
MODES = {
    "circular": Mode("What leaves at one side enters at the other.", wraps=True),
    "lossless": Mode(
        "Only background leaves the image, so that nothing of it is lost.", keeps_content=True, has_background=True
    ),
    "zero": Mode("What leaves is lost, and background enters.", has_background=True),
    "canvas": Mode(
        "The image lies on a larger canvas of its background and is moved over it, so that nothing is lost.",
        keeps_content=True,
        has_background=True,
        size="canvas_size",
    ),
    "reflect": Mode("What leaves is lost, and a mirror image enters."),
    "crop": Mode(
        "The model sees a window of a larger image. The window is moved, so what enters was there before.",
        size="crop_size",
    ),
    "fourier": Mode(
        f"Moved by any fraction of a pixel by the Fourier transform; {_ELSEWHERE}.", wraps=True, takes_fractions=True
    ),
    "bilinear": Mode(
        f"Moved by any fraction of a pixel by linear interpolation, which blurs; {_ELSEWHERE}.",
        wraps=True,
        takes_fractions=True,
    ),
}
"""The modes of `translate`, by name."""
TRANSLATION_MODES = tuple(MODES)


@dataclass(frozen=True)
class Movement:
    """How images are moved, the same for every image and every shift of a measurement.

    Args:
        mode: A mode of the function `teka.audit.translate`.
        background: Value of the images' background: one, or one for each channel.
        canvas_size: Size of the canvas for mode `canvas`, one number for each axis or one for all; else None.
        crop_size: Size of the window for mode `crop`, one number for each axis or one for all; else None.

    Raises:
        ValueError: An unknown mode; a canvas or crop size without its mode, or none with it.
    """

    mode: str
    background: float | int | tuple[float | int, ...] = 0.0
    canvas_size: int | tuple[int, ...] | None = None
    crop_size: int | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_name("mode", self.mode, MODES)
        for argument, size in (("canvas_size", self.canvas_size), ("crop_size", self.crop_size)):
            owner, is_needed = argument.removesuffix("_size"), MODES[self.mode].size == argument
            if is_needed and size is None:
                raise wrong_value(argument, size, f"the size of the {owner} for mode {owner!r}")
            if not is_needed and size is not None:
                raise wrong_value(argument, size, f"None, since mode {self.mode!r} has no {owner}")

    @property
    def wraps(self) -> bool:
        """Whether what leaves at one side enters at the other, so that every cell came from inside."""
        return MODES[self.mode].wraps

    def seen_size(self, image_size: Sequence[int]) -> tuple[int, ...]:
        """Spatial size of what a model gets: of the canvas, of the window, or of the images."""
        if self.canvas_size is not None:
            return window_size("canvas_size", image_size, self.canvas_size)
        return tuple(image_size) if self.crop_size is None else window_size("crop_size", image_size, self.crop_size)

    def place(self, images: Tensor) -> Shaped[Tensor, "batch channels *placed"]:
        """The images as they lie before any shift: on their canvas in mode `canvas`, as they are in the others."""
        check_images(images)
        if MODES[self.mode].takes_fractions and not images.is_floating_point():
            expected = f"a floating-point dtype, since mode {self.mode!r} moves by fractions"
            raise wrong_value("images.dtype", images.dtype, expected)
        self.seen_size(images.shape[2:])
        return images if self.canvas_size is None else paste_on_canvas(images, self.canvas_size, self.background)

    def check(
        self, placed: Shaped[Tensor, "batch channels *sizes"], shifts: Iterable[SubpixelShift]
    ) -> tuple[tuple, ...]:
        """The shifts in the order given, one step for every axis, whole ones as ints; repeats count once."""
        sizes, mode = tuple(placed.shape[2:]), MODES[self.mode]
        steps = check_shifts(sizes, shifts)
        if not mode.takes_fractions:
            for step in steps:
                if float in map(type, step):
                    expected = f"whole numbers, since mode {self.mode!r} moves by whole cells"
                    raise wrong_value("shift", step, expected)
        if mode.keeps_content:
            check_lossless(sizes, blank_margins(placed, self.background), steps)
        if self.crop_size is not None:
            check_room(sizes, self.seen_size(sizes), steps)
        return steps

    def move(
        self, placed: Shaped[Tensor, "batch channels *sizes"], shift: Sequence[int | float]
    ) -> Shaped[Tensor, "batch channels *seen"]:
        """What a model sees of placed images at a shift that `check` has passed: new images."""
        if self.mode == "fourier":
            return fourier_shift(placed, shift)
        if self.mode == "bilinear":
            return bilinear_shift(placed, shift)
        whole = [int(step) for step in shift]
        if self.mode == "reflect":
            return reflect(placed, whole)
        if self.mode == "crop":
            return crop(placed, self.seen_size(placed.shape[2:]), whole)
        if self.mode == "zero":
            return roll_and_blank(placed, whole, background_value(placed, self.background))
        return placed.roll(whole, tuple(range(2, placed.ndim)))


def translate(
    images: Tensor,
    shift: SubpixelShift,
    *,
    mode: str,
    background: float | int | Sequence[float | int] = 0.0,
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
        background: As of `Movement`, for modes `lossless`, `zero` and `canvas`.
        canvas_size: As of `Movement`.
        crop_size: As of `Movement`.

    Returns:
        New images (B, C, *S), or (B, C, *canvas_size) in mode `canvas`, or (B, C, *crop_size) in mode `crop`.

    Raises:
        ValueError: An unknown mode; no spatial axis; a shift longer than the canvas; fractions of a cell in a mode of
            whole cells; content that would be lost in modes `lossless` and `canvas`; a window that would leave the
            images; integer images in a sub-pixel mode; a canvas or crop size without its mode, or none with it.
    """
    movement = make_movement(mode, background, canvas_size, crop_size)
    placed = movement.place(images)
    (steps,) = movement.check(placed, [shift])
    return movement.move(placed, steps)


def make_movement(
    mode: str,
    background: float | int | Sequence[float | int] = 0.0,
    canvas_size: int | Sequence[int] | None = None,
    crop_size: int | Sequence[int] | None = None,
) -> Movement:
    """The movement of these settings, with any sequence for what has one number for each channel or axis."""
    return Movement(
        mode,
        tuple(background) if isinstance(background, Sequence) else background,
        tuple(canvas_size) if isinstance(canvas_size, Sequence) else canvas_size,
        tuple(crop_size) if isinstance(crop_size, Sequence) else crop_size,
    )


def check_lossless(
    sizes: Sequence[int], margins: Int[Tensor, "batch axes sides"], shifts: Iterable[Sequence[int | float]]
) -> None:
    """Check that no shift pushes anything but background, of which there are these margins, over an edge."""
    if not len(margins):
        return
    room = margins.amin(dim=0).tolist()
    for shift in shifts:
        if all(-before <= step <= after for step, (before, after) in zip(shift, room, strict=True)):
            continue
        losing = [int((margins[:, axis, int(step > 0)] < abs(step)).sum()) for axis, step in enumerate(shift)]
        losses = [
            f"along axis {axis} (size {sizes[axis]}) {count} of {len(margins)} images lose pixels"
            for axis, count in enumerate(losing)
            if count
        ]
        raise wrong_value("shift", shift, f"one that moves only background over the edge; {', '.join(losses)}")


def check_room(sizes: Sequence[int], window: Sequence[int], shifts: Iterable[Sequence[int | float]]) -> None:
    """Check that no shift takes the window over an edge of images of these sizes; `crop` says which do not."""
    for shift in shifts:
        for axis, (side, part, step) in enumerate(zip(sizes, window, shift, strict=True)):
            last = (side - part) // 2
            first = last - (side - part)
            if not first <= step <= last:
                expected = f"from {first} to {last} along axis {axis}, for crops of {part} from images of {side}"
                raise wrong_value("shift", tuple(shift), expected)
