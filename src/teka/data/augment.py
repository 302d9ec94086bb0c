"""Random changes of training images that keep their class: shifts, crops and mirroring, a whole batch at once.

Every image gets a draw of its own, from the generator that is passed. None of them changes its argument.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Generator, Tensor

from teka.data.sizes import height_and_width, whole_number
from teka.errors import unknown_name, wrong_shape, wrong_value

SHIFT_MODES = ("zero", "circular")


@dataclass(frozen=True)
class RandomShift:
    """Move each image by whole pixels, drawn evenly from −max_shift … max_shift along each axis.

    A shift by t moves what is at index i to i + t, as `teka.Grid.roll` has it.

    Args:
        max_shift: Largest shift in pixels, one number or (along the height, along the width).
        mode: "zero": what leaves is lost, and background enters; "circular": what leaves at one side enters at the
            other.
        background: Value that enters in mode "zero".

    Raises:
        ValueError: An unknown mode, or shifts that are not one or two whole numbers from 0.
    """

    max_shift: int | tuple[int, int]
    mode: str = "zero"
    background: float = 0.0

    def __post_init__(self) -> None:
        height_and_width("max_shift", self.max_shift, smallest=0)
        if self.mode not in SHIFT_MODES:
            raise unknown_name("mode", self.mode, SHIFT_MODES)

    def __call__(self, images: Tensor, generator: Generator) -> Shaped[Tensor, "images channels height width"]:
        """The images, each moved.

        Args:
            images: Of any type, shape (N, C, H, W).
            generator: Where the shifts come from.

        Raises:
            ValueError: Another rank, or a largest shift beyond an image's side.
        """
        height, width = _check(images)
        most_down, most_right = height_and_width("max_shift", self.max_shift, smallest=0)
        if most_down > height or most_right > width:
            raise wrong_value("max_shift", self.max_shift, f"at most the images' size, {height} × {width}")
        down = _draw(-most_down, most_down, images, generator)
        right = _draw(-most_right, most_right, images, generator)
        rows = torch.arange(height, device=images.device) - down[:, None]
        columns = torch.arange(width, device=images.device) - right[:, None]
        if self.mode == "circular":
            return _pick(images, rows % height, columns % width)
        return _pick_or_background(images, rows, columns, self.background)


@dataclass(frozen=True)
class RandomCrop:
    """Surround each image with background and cut a window out of it, at a place drawn evenly.

    Args:
        size: Size of the window in pixels, one side or (height, width).
        padding: Width of the background on each side, in pixels.
        background: Its value.

    Raises:
        ValueError: A size that is not one or two whole numbers from 1, or a padding that is not one from 0.
    """

    size: int | tuple[int, int]
    padding: int = 0
    background: float = 0.0

    def __post_init__(self) -> None:
        height_and_width("size", self.size)
        whole_number("padding", self.padding, smallest=0)

    def __call__(self, images: Tensor, generator: Generator) -> Shaped[Tensor, "images channels new_height new_width"]:
        """A window of each image.

        Args:
            images: Of any type, shape (N, C, H, W).
            generator: Where the places come from.

        Raises:
            ValueError: Another rank, or a window larger than the surrounded images.
        """
        height, width = _check(images)
        new_height, new_width = height_and_width("size", self.size)
        spare_rows, spare_columns = height + 2 * self.padding - new_height, width + 2 * self.padding - new_width
        if spare_rows < 0 or spare_columns < 0:
            expected = f"at most {height + 2 * self.padding} × {width + 2 * self.padding}, the images and their padding"
            raise wrong_value("size", self.size, expected)
        top = _draw(-self.padding, spare_rows - self.padding, images, generator)
        left = _draw(-self.padding, spare_columns - self.padding, images, generator)
        rows = torch.arange(new_height, device=images.device) + top[:, None]
        columns = torch.arange(new_width, device=images.device) + left[:, None]
        return _pick_or_background(images, rows, columns, self.background)


@dataclass(frozen=True)
class HorizontalFlip:
    """Mirror images left to right; not for data where that changes the class, such as digits.

    Args:
        probability: Probability for each image.

    Raises:
        ValueError: A probability outside [0, 1].
    """

    probability: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise wrong_value("probability", self.probability, "a number from 0 to 1")

    def __call__(self, images: Tensor, generator: Generator) -> Shaped[Tensor, "images channels height width"]:
        """The images, some of them mirrored.

        Args:
            images: Of any type, shape (N, C, H, W).
            generator: Where the choice comes from.

        Raises:
            ValueError: Another rank.
        """
        _check(images)
        chosen = torch.rand(len(images), generator=generator, device=generator.device) < self.probability
        return torch.where(chosen.to(images.device)[:, None, None, None], images.flip(3), images)


def _check(images: Tensor) -> Sequence[int]:
    if images.ndim != 4:
        raise wrong_shape("images", images.shape, "(images, channels, height, width)")
    return images.shape[2:]


def _draw(lowest: int, highest: int, images: Tensor, generator: Generator) -> Int[Tensor, " images"]:
    drawn = torch.randint(lowest, highest + 1, (len(images),), generator=generator, device=generator.device)
    return drawn.to(images.device)


def _pick(
    images: Tensor, rows: Int[Tensor, "images new_height"], columns: Int[Tensor, "images new_width"]
) -> Shaped[Tensor, "images channels new_height new_width"]:
    index = torch.arange(len(images), device=images.device)[:, None, None, None]
    channel = torch.arange(images.shape[1], device=images.device)[:, None, None]
    return images[index, channel, rows[:, None, :, None], columns[:, None, None, :]]


def _pick_or_background(
    images: Tensor,
    rows: Int[Tensor, "images new_height"],
    columns: Int[Tensor, "images new_width"],
    background: float,
) -> Shaped[Tensor, "images channels new_height new_width"]:
    height, width = images.shape[2:]
    outside: Bool[Tensor, "images 1 new_height new_width"] = ((rows < 0) | (rows >= height))[:, None, :, None] | (
        (columns < 0) | (columns >= width)
    )[:, None, None, :]
    picked = _pick(images, rows.clamp(0, height - 1), columns.clamp(0, width - 1))
    return picked.masked_fill(outside, background)
