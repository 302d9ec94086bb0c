"""How images are moved: the mode, what enters at the edge, and what of the moved image a model gets to see."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jaxtyping import Shaped
from torch import Tensor

from teka.audit.canvas import canvas_window
from teka.audit.crop import crop_window
from teka.audit.shifts import SubpixelShift
from teka.audit.translate import check_mode, check_steps, move_placed, place


@dataclass(frozen=True)
class Movement:
    """How images are moved, the same for every image and every shift of a measurement.

    Args:
        mode: A mode of `teka.audit.translate`.
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
        check_mode(self.mode, self.canvas_size, self.crop_size)

    def seen_size(self, image_size: Sequence[int]) -> tuple[int, ...]:
        """Spatial size of what a model gets: of the canvas, of the window, or of the images.

        Args:
            image_size: Spatial size of the images.

        Raises:
            ValueError: A canvas smaller or a window larger than the images.
        """
        if self.canvas_size is not None:
            return canvas_window(image_size, self.canvas_size)
        return tuple(image_size) if self.crop_size is None else crop_window(image_size, self.crop_size)

    def place(self, images: Shaped[Tensor, "batch channels *sizes"]) -> Shaped[Tensor, "batch channels *placed"]:
        """The images as they lie before any shift: on their canvas in mode `canvas`, as they are in the others."""
        return place(
            images,
            mode=self.mode,
            background=self.background,
            canvas_size=self.canvas_size,
            crop_size=self.crop_size,
        )

    def check(
        self, placed: Shaped[Tensor, "batch channels *sizes"], shifts: Iterable[SubpixelShift]
    ) -> tuple[tuple, ...]:
        """The shifts in the order given, each with one step for every axis; whole steps are ints, repeats count once.

        Args:
            placed: What `place` gave, a batch of it.
            shifts: The set of shifts.

        Raises:
            ValueError: No shift; one longer than the canvas; fractions of a cell in a mode of whole cells; content
                that would be lost in modes `lossless` and `canvas`; a window that would leave the images in `crop`.
        """
        return check_steps(placed, shifts, mode=self.mode, background=self.background, crop_size=self.crop_size)

    def move(
        self, placed: Shaped[Tensor, "batch channels *sizes"], shift: Sequence[int | float]
    ) -> Shaped[Tensor, "batch channels *seen"]:
        """What a model sees of placed images at a shift that `check` has passed: new images.

        Args:
            placed: What `place` gave.
            shift: One step for every axis.
        """
        return move_placed(placed, shift, mode=self.mode, background=self.background, crop_size=self.crop_size)

    def to_dict(self) -> dict[str, object]:
        """The settings, ready for JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}

    @classmethod
    def from_dict(cls, content: Mapping[str, object]) -> "Movement":
        """The settings that `to_dict` wrote."""
        listed = {name: tuple(value) if isinstance(value, list) else value for name, value in content.items()}
        return cls(**listed)  # pyright: ignore[reportArgumentType]
