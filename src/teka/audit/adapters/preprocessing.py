"""Preprocessing of images for a model: channels, size, crop and normalization.

The results agree with those of Pillow, torchvision and transformers, including their rounding.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn.functional import interpolate, pad

from teka.checks import check_image_size, check_name, check_sizes
from teka.data import Normalize
from teka.data.pictures import to_intensities
from teka.errors import require, wrong_shape, wrong_value
from teka.reporting.formatting import format_size

LUMINANCE = (19595, 38470, 7471)  # ITU-R BT.601 weights in 65,536ths, as in Pillow
# Resampling methods in the order of Pillow's numbers, which the configs of transformers contain.
RESAMPLINGS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
# The same methods in torch, which keeps gradients.
INTERPOLATIONS = {"nearest": "nearest-exact", "bilinear": "bilinear", "bicubic": "bicubic"}
Images = Shaped[Tensor, "n c h w"]
Resized = Shaped[Tensor, "n c height width"]


def resize(images: Images, size: tuple[int, int], resampling: str) -> Resized:
    """Resize images with the same filters as Pillow.

    Images in uint8 are rounded, and floating-point images are only clipped to [0, 1].

    Args:
        images: Images (N, C, H, W).
        size: New height and width.
        resampling: Resampling method, one of `RESAMPLINGS`.
    """
    if images.is_floating_point() and resampling in INTERPOLATIONS:
        mode = INTERPOLATIONS[resampling]
        resized = interpolate(images, size, mode=mode, antialias=resampling != "nearest")
    else:
        pillow = require("PIL.Image", "resizing needs", "teka[audit]")
        method, (height, width) = pillow.Resampling[resampling.upper()], size
        planes = images.detach().cpu().flatten(0, 1)
        planes = planes if planes.dtype == torch.uint8 else planes.float()
        pictures = [pillow.fromarray(plane.numpy()) for plane in planes]
        arrays = [np.asarray(picture.resize((width, height), method)) for picture in pictures]
        resized = torch.from_numpy(np.stack(arrays)).to(images).unflatten(0, images.shape[:2])
    if not images.is_floating_point():
        return resized
    # `clamp` would have no gradient at 0, which is black.
    return resized.masked_fill(resized < 0, 0).masked_fill(resized > 1, 1)


def _resize_by_torchvision(images: Images, size: tuple[int, int], resampling: str) -> Resized:
    functional = require(
        "torchvision.transforms.v2.functional", "this image processor needs", "torchvision"
    )
    mode = functional.InterpolationMode(INTERPOLATIONS.get(resampling, resampling))
    return functional.resize(images, size, mode, antialias=True)


class RoundingRules(NamedTuple):
    """Rules by which an image library rounds pixels when it resizes and positions when it crops.

    Args:
        resize: Function that resizes uint8 images to a size with a resampling method.
        start: Function that rounds half of the excess size to the first pixel of a center crop. The
            excess is negative if the crop adds a margin.
    """

    resize: Callable[[Images, tuple[int, int], str], Resized]
    start: Callable[[float], int]


ROUNDING_RULES = {
    "transformers": RoundingRules(resize, math.floor),
    "transformers with torchvision": RoundingRules(_resize_by_torchvision, math.trunc),
    # Also for timm. Ties are rounded to even.
    "torchvision": RoundingRules(
        resize, lambda half: round(half) if half > 0 else math.trunc(half)
    ),
}


@dataclass(frozen=True)
class Preprocessing:
    """Preprocessing of images for a model, in two steps.

    - `resize_images` sets the channels and the size. By default, an audit shifts images after this
      step.
    - `normalize` computes the input of the model. An audit treats this step as part of the model.

    Images have values from 0 to 255 in uint8, or from 0 to 1 in a floating-point dtype. Images in
    uint8 are rounded in the same way as in the library of the model. Other images are not rounded.

    Args:
        in_channels: Number of channels. Gray images are repeated in all channels, and color images
            are converted to their luminance. None keeps the channels.
        resize: Length of the shorter side after a resize that keeps the aspect ratio, or
            (height, width).
        resampling: Resampling method, one of `RESAMPLINGS`.
        crop: Height and width of the center crop after the resize, padded with 0 if needed.
        normalization: Mean and deviation of intensities.
        blue_first: Whether the model expects the channels blue, green, red.
        library: Name of the library whose rounding is used, a key of `ROUNDING_RULES`.

    >>> import torch
    >>> from teka.audit.adapters import Preprocessing
    >>> from teka.data import Normalize
    >>> normalization = Normalize((0.5,) * 3, (0.5,) * 3)
    >>> before = Preprocessing(3, resize=8, crop=(8, 8), normalization=normalization)
    >>> images = before.resize_images(torch.zeros(2, 1, 16, 24, dtype=torch.uint8))
    >>> images.shape, before.normalize(images).unique()
    (torch.Size([2, 3, 8, 8]), tensor([-1.]))
    >>> before.describe((16, 24))
    'resized to 8 × 12 (bilinear), cropped to the middle 8 × 8'

    Raises:
        ValueError: An argument is out of range, or images have the wrong number of channels.
    """

    in_channels: int | None = None
    resize: int | tuple[int, int] | None = None
    resampling: str = "bilinear"
    crop: tuple[int, int] | None = None
    normalization: Normalize | None = None
    blue_first: bool = False
    library: str = "transformers"

    def __post_init__(self) -> None:
        check_name("resampling", self.resampling, RESAMPLINGS)
        check_name("library", self.library, ROUNDING_RULES)
        for argument in ("resize", "crop"):
            if getattr(self, argument) is not None:
                check_image_size(argument, getattr(self, argument))
        check_sizes({"in_channels": self.in_channels}, or_none=True)

    @property
    def output_size(self) -> tuple[int, int] | None:
        """Height and width of the images that `resize_images` returns.

        The result is None if the size depends on that of the original images.
        """
        return self.crop or (self.resize if isinstance(self.resize, tuple) else None)

    def resized_to(self, input_size: int | Sequence[int]) -> "Preprocessing":
        """Return a copy of the preprocessing that resizes images to another input size."""
        return replace(self, resize=check_image_size("input_size", input_size), crop=None)

    def resized_size(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Return the height and width of an image after the resize and before the crop."""
        if self.resize is None:
            return image_size
        if isinstance(self.resize, tuple):
            return self.resize
        longer = int(self.resize * max(image_size) / min(image_size))
        return (longer, self.resize) if image_size[0] > image_size[1] else (self.resize, longer)

    def resize_images(self, images: Images) -> Float[Tensor, "n channels height width"]:
        """Resize and crop images, convert their channels, and scale uint8 images to [0, 1].

        Args:
            images: Images (N, C, H, W) in uint8, or floating-point numbers in [0, 1].
        """
        resized = convert_channels(images, self.in_channels)
        library = ROUNDING_RULES[self.library]
        is_levels = resized.dtype == torch.uint8
        size = self.resized_size((images.shape[2], images.shape[3]))
        if size != tuple(images.shape[2:]):
            resized = (library.resize if is_levels else resize)(resized, size, self.resampling)
        if self.crop is not None:
            resized = crop_center(resized, self.crop, library.start)
        return to_intensities(resized) if is_levels else resized

    def normalize(self, images: Images) -> Images:
        """Subtract the mean of each channel, and divide by its standard deviation.

        Before, the channels are reversed if the model expects blue first.

        Raises:
            ValueError: The number of channels is wrong.
        """
        if self.in_channels is not None and images.shape[1] != self.in_channels:
            expected = f"(images, {self.in_channels}, height, width)"
            raise wrong_shape("images", images.shape, expected)
        ordered = images.flip(1) if self.blue_first else images
        return ordered if self.normalization is None else self.normalization(ordered)

    def describe(self, image_size: tuple[int, int] | None) -> str:
        """Describe in words how `resize_images` changes images of a given size.

        Args:
            image_size: Height and width of the images, or None if they have several sizes.

        Returns:
            A text such as "resized to 8 × 12 (bilinear)", or "" if the pixels do not change.
        """
        resized = self.resize if image_size is None else self.resized_size(image_size)
        parts = []
        if resized is not None and resized != image_size:
            parts.append(f"resized to {format_size(resized)} ({self.resampling})")
        if self.crop is not None and self.crop != resized:
            parts.append(f"cropped to the middle {format_size(self.crop)}")
        return ", ".join(parts)


def convert_channels(
    images: Images, in_channels: int | None
) -> Shaped[Tensor, "n channels height width"]:
    """Repeat gray images in any number of channels, or convert color images to gray."""
    num_channels = images.shape[1]
    if in_channels is None or num_channels == in_channels:
        return images
    if num_channels == 1:
        return images.expand(-1, in_channels, -1, -1)
    if num_channels == 3 and in_channels == 1:
        weights = torch.tensor(LUMINANCE, device=images.device)[:, None, None] / 65536
        dtype = torch.promote_types(images.dtype, torch.float32)
        gray = (images * weights.to(dtype)).sum(dim=1, keepdim=True)
        return gray if images.is_floating_point() else (gray + 0.5).floor().to(images.dtype)
    allowed = 3 if in_channels == 1 else in_channels
    expected = f"1 or {allowed}, because the model takes {in_channels}"
    raise wrong_value("the number of channels of the images", num_channels, expected)


def crop_center(images: Images, size: tuple[int, int], start: Callable[[float], int]) -> Resized:
    """Crop images to their center, or pad them with 0 if they are smaller.

    Args:
        images: Images (N, C, H, W).
        size: Height h and width w of the center.
        start: Function that rounds (H − h) / 2 and (W − w) / 2 to the first row and column.
    """
    margins = []
    for new, old in zip(reversed(size), reversed(images.shape[2:]), strict=True):
        before = start((old - new) / 2)
        margins += [-before, new - old + before]  # a negative margin crops
    return pad(images, margins)
