"""From images as data have them to what a model takes: channels, size, crop and normalisation."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from teka.audit.adapters.resample import RESAMPLINGS, resample
from teka.checks import check_sizes, height_and_width
from teka.data import Normalize
from teka.errors import unknown_name, wrong_shape, wrong_value

# Luminance of ITU-R BT.601, as Pillow and torchvision make grey of colour.
LUMINANCE = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class Preprocessing:
    """What is done to images of intensities in [0, 1] before a model sees them, in two steps.

    `place` makes the channels and the size: the result is still a picture in [0, 1], and that is what an audit moves,
    unless it is told to move before. `normalize` makes the numbers that the model was trained on, and belongs to the
    model: a background of 0 is 0 before it and something else after it.

    Args:
        in_channels: Channels of the model's images: grey becomes colour by equal channels, colour becomes grey by its
            luminance. None leaves them.
        resize: A whole number, the new shorter side, the shape kept; or (height, width); None leaves the size.
        resampling: How, a name of `teka.audit.adapters.resample.RESAMPLINGS`.
        crop: (height, width) of the window cut out of the middle after that; what is smaller is surrounded with 0.
        normalization: Subtraction of a mean and division by a deviation, in intensities; None for neither.
        blue_first: Whether the model takes the colours in the order blue, green, red.

    Raises:
        ValueError: An unknown resampling, or sizes or channels that are impossible.
    """

    in_channels: int | None = None
    resize: int | tuple[int, int] | None = None
    resampling: str = "bilinear"
    crop: tuple[int, int] | None = None
    normalization: Normalize | None = None
    blue_first: bool = False

    def __post_init__(self) -> None:
        if self.resampling not in RESAMPLINGS:
            raise unknown_name("resampling", self.resampling, RESAMPLINGS)
        for argument in ("resize", "crop"):
            if getattr(self, argument) is not None:
                height_and_width(argument, getattr(self, argument))
        if self.in_channels is not None:
            check_sizes({"in_channels": self.in_channels})

    def resized_size(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Size after the resize, before the crop.

        Args:
            image_size: Size of the images, (height, width).
        """
        if self.resize is None:
            return image_size
        if isinstance(self.resize, tuple):
            return self.resize
        longer = int(self.resize * max(image_size) / min(image_size))
        return (longer, self.resize) if image_size[0] > image_size[1] else (self.resize, longer)

    def placed_size(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Size of placed images.

        Args:
            image_size: Size of the images, (height, width).
        """
        return self.resized_size(image_size) if self.crop is None else self.crop

    def place(self, images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n channels height width"]:
        """The images with the model's channels and size, intensities in [0, 1].

        Args:
            images: Intensities in [0, 1], shape (N, C, H, W).

        Raises:
            ValueError: Channels that cannot be made the model's.
        """
        placed = with_channels(images, self.in_channels)
        size = self.resized_size((images.shape[2], images.shape[3]))
        if size != tuple(images.shape[2:]):
            placed = resample(placed, size, self.resampling)
        return placed if self.crop is None else crop_center(placed, self.crop)

    def normalize(self, placed: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        """The numbers that the model takes of placed images.

        Args:
            placed: Intensities in [0, 1], shape (N, C, H, W).

        Raises:
            ValueError: Another number of channels than the model's.
        """
        if self.in_channels is not None and placed.shape[1] != self.in_channels:
            raise wrong_shape("images", placed.shape, f"(images, {self.in_channels}, height, width)")
        ordered = placed.flip(1) if self.blue_first else placed
        return ordered if self.normalization is None else self.normalization(ordered)

    def describe(self, image_size: tuple[int, int]) -> str:
        """What `place` does to images of a size, in words; "" if it leaves their pixels.

        Args:
            image_size: Size of the images, (height, width).
        """
        resized = self.resized_size(image_size)
        parts = []
        if resized != image_size:
            parts.append(f"resized to {resized[0]} × {resized[1]} ({self.resampling})")
        if self.crop is not None and self.crop != resized:
            parts.append(f"cropped to the middle {self.crop[0]} × {self.crop[1]}")
        return ", ".join(parts)


def with_channels(images: Float[Tensor, "n c h w"], in_channels: int | None) -> Float[Tensor, "n channels h w"]:
    """The images with a number of channels.

    Args:
        images: Shape (N, C, H, W).
        in_channels: How many; None leaves them.

    Raises:
        ValueError: Neither grey to any number, nor colour to grey, nor as many as there are.
    """
    came = images.shape[1]
    if in_channels is None or came == in_channels:
        return images
    if came == 1:
        return images.expand(-1, in_channels, -1, -1)
    if came == 3 and in_channels == 1:
        return (images * images.new_tensor(LUMINANCE)[:, None, None]).sum(dim=1, keepdim=True)
    raise wrong_value("the channels of the images", came, f"{in_channels}, which the model takes, or 1, or 3 for 1")


def crop_center(images: Float[Tensor, "n c h w"], size: tuple[int, int]) -> Float[Tensor, "n c height width"]:
    """The middle of the images, from row (H − height) // 2 and column (W − width) // 2; what is missing is 0.

    Args:
        images: Shape (N, C, H, W).
        size: Height and width of the window.
    """
    lacking = [max(wanted - came, 0) for wanted, came in zip(size, images.shape[2:], strict=True)]
    if any(lacking):
        (above, below), (before, after) = ((math.ceil(lack / 2), lack // 2) for lack in lacking)
        images = torch.nn.functional.pad(images, (before, after, above, below))
    top, left = ((came - wanted) // 2 for came, wanted in zip(images.shape[2:], size, strict=True))
    return images[:, :, top : top + size[0], left : left + size[1]]
