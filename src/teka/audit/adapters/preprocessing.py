"""Preprocessing of images for a model: channels, resize, crop and normalization."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Shaped, UInt8
from torch import Tensor

from teka.checks import check_image_size, check_name, check_sizes, check_tensor
from teka.data import Normalize
from teka.data.pictures import to_intensities
from teka.errors import require, wrong_shape, wrong_value

LUMINANCE = (19595, 38470, 7471)  # ITU-R BT.601 weights in 65,536ths, as in Pillow
Levels = UInt8[Tensor, "n c h w"]
ResizedLevels = UInt8[Tensor, "n c height width"]


def _cubic(place: Tensor) -> Tensor:
    """Return Keys' cubic kernel with a = −½."""
    x = place.abs()
    return torch.where(x < 1, (1.5 * x - 2.5) * x**2 + 1, ((x - 5) * x + 8) * x * -0.5 + 2)


# Pillow's kernels as functions of the distance from the center, and half of their widths, in
# output pixels if the image shrinks.
KERNELS = {
    "box": (0.5, lambda x: ((x > -0.5) & (x <= 0.5)).to(x.dtype)),
    "bilinear": (1.0, lambda x: 1 - x.abs()),
    "hamming": (1.0, lambda x: torch.sinc(x) * (0.54 + 0.46 * torch.cos(math.pi * x))),
    "bicubic": (2.0, _cubic),
    "lanczos": (3.0, lambda x: torch.sinc(x) * torch.sinc(x / 3)),
}
RESAMPLINGS = ("nearest", *KERNELS)


def _resize_by_pillow(levels: Levels, size: tuple[int, int], resampling: str) -> ResizedLevels:
    require("PIL", "resizing needs", "teka[audit]")
    from PIL import Image

    kernel, (height, width) = Image.Resampling[resampling.upper()], size
    planes = [
        Image.fromarray(one).resize((width, height), kernel)
        for one in levels.flatten(0, 1).cpu().numpy()
    ]
    resized = torch.from_numpy(np.stack([np.asarray(one) for one in planes]))
    return resized.to(levels.device).unflatten(0, levels.shape[:2])


def _resize_by_torchvision(levels: Levels, size: tuple[int, int], resampling: str) -> ResizedLevels:
    functional: Any = require(
        "torchvision.transforms.v2.functional", "this image processor needs", "torchvision"
    )
    # Its other "nearest" is not Pillow's, nor what transformers takes.
    mode = functional.InterpolationMode("nearest-exact" if resampling == "nearest" else resampling)
    return functional.resize(levels, size, mode, antialias=True)


class Library(NamedTuple):
    """Resize function and rounding of center crops in a library.

    Args:
        resize: Function that resizes uint8 images with rounding to whole levels.
        start: Function that rounds the start of a center crop. Its argument is half of the
            excess size, which is negative if the crop adds a margin.
    """

    resize: Callable[[Levels, tuple[int, int], str], ResizedLevels]
    start: Callable[[float], int]


LIBRARIES = {
    "transformers": Library(_resize_by_pillow, math.floor),
    "transformers with torchvision": Library(_resize_by_torchvision, math.trunc),
    # Also for timm. Ties are rounded to even.
    "torchvision": Library(
        _resize_by_pillow, lambda half: round(half) if half > 0 else math.trunc(half)
    ),
}


@dataclass(frozen=True)
class Preprocessing:
    """Preprocessing of images for a model, in two steps.

    `place` sets channels and size. An audit shifts images after this step, unless it is told to
    shift before. `normalize` computes the values that the model was trained on, and is part of
    the model under audit.

    Images are either uint8 levels from 0 to 255, which are resized to whole levels exactly as the
    library does, or intensities in [0, 1], which are not rounded and keep their gradients.

    Args:
        in_channels: Number of channels. Gray becomes color with equal channels, and color becomes
            gray by luminance. None leaves the channels.
        resize: Shorter side after the resize, with the aspect ratio kept, or (height, width).
        resampling: Resampling method, one of `RESAMPLINGS`.
        crop: Height and width of the center crop after the resize, padded with 0 if needed.
        normalization: Mean and deviation of intensities.
        blue_first: Whether the model expects the channels blue, green, red.
        library: Name in `LIBRARIES` of the library whose rounding is used.

    >>> import torch
    >>> from teka.audit.adapters import Preprocessing
    >>> from teka.data import Normalize
    >>> normalization = Normalize((0.5,) * 3, (0.5,) * 3)
    >>> before = Preprocessing(3, resize=8, crop=(8, 8), normalization=normalization)
    >>> placed = before.place(torch.zeros(2, 1, 16, 24, dtype=torch.uint8))
    >>> placed.shape, before.normalize(placed).unique()
    (torch.Size([2, 3, 8, 8]), tensor([-1.]))
    >>> before.describe((16, 24))
    'resized to 8 × 12 (bilinear), cropped to the middle 8 × 8'
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
        check_name("library", self.library, LIBRARIES)
        for argument, size in (("resize", self.resize), ("crop", self.crop)):
            if size is not None:
                check_image_size(argument, size)
        check_sizes({"in_channels": self.in_channels}, or_none=True)

    @property
    def placing(self) -> "Preprocessing":
        """The settings of `place` only, which are equal for models that can share images."""
        return replace(self, normalization=None, blue_first=False)

    def resized_to(
        self, input_size: int | tuple[int, int] | None
    ) -> tuple["Preprocessing", tuple[int, int] | None]:
        """Return the preprocessing with another input size, and this size.

        With None, the preprocessing is unchanged and the size is that of the crop.
        """
        if input_size is None:
            return self, self.crop
        size = check_image_size("input_size", input_size)
        return replace(self, resize=size, crop=None), size

    def resized_size(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Return height and width after the resize, before the crop."""
        if self.resize is None:
            return image_size
        if isinstance(self.resize, tuple):
            return self.resize
        longer = int(self.resize * max(image_size) / min(image_size))
        return (longer, self.resize) if image_size[0] > image_size[1] else (self.resize, longer)

    def place(self, images: Shaped[Tensor, "n c h w"]) -> Float[Tensor, "n channels height width"]:
        """Return images with the model's channels and size, as intensities in [0, 1].

        Args:
            images: Levels in uint8 or intensities in [0, 1].
        """
        placed, library = with_channels(images, self.in_channels), LIBRARIES[self.library]
        is_levels = placed.dtype == torch.uint8
        size = self.resized_size((images.shape[2], images.shape[3]))
        if size != tuple(images.shape[2:]):
            placed = (library.resize if is_levels else resample)(placed, size, self.resampling)
        if self.crop is not None:
            placed = crop_center(placed, self.crop, library.start)
        return to_intensities(placed) if is_levels else placed

    def normalize(self, placed: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        """Return the model's input for images returned by `place`.

        Raises:
            ValueError: The number of channels is wrong.
        """
        if self.in_channels is not None and placed.shape[1] != self.in_channels:
            raise wrong_shape(
                "images", placed.shape, f"(images, {self.in_channels}, height, width)"
            )
        ordered = placed.flip(1) if self.blue_first else placed
        return ordered if self.normalization is None else self.normalization(ordered)

    def describe(self, image_size: tuple[int, int] | None) -> str:
        """Describe what `place` does to images of one size, or of several sizes (None).

        The text is empty if the pixels do not change.
        """
        resized = self.resize if image_size is None else self.resized_size(image_size)
        parts = []
        if resized != image_size:
            size = (
                f"a shorter side of {resized}"
                if isinstance(resized, int)
                else " × ".join(map(str, resized or ()))
            )
            parts.append(f"resized to {size} ({self.resampling})")
        if self.crop is not None and self.crop != resized:
            parts.append(f"cropped to the middle {self.crop[0]} × {self.crop[1]}")
        return ", ".join(parts)


def with_channels(
    images: Shaped[Tensor, "n c h w"], in_channels: int | None
) -> Shaped[Tensor, "n channels h w"]:
    """Convert images to a number of channels: gray to any number, or color to gray."""
    num_channels = images.shape[1]
    if in_channels is None or num_channels == in_channels:
        return images
    if num_channels == 1:
        return images.expand(-1, in_channels, -1, -1)
    if num_channels == 3 and in_channels == 1:
        weights = torch.tensor(LUMINANCE, device=images.device)[:, None, None] / 65536
        grey = (images * weights.to(torch.promote_types(images.dtype, torch.float32))).sum(
            dim=1, keepdim=True
        )
        return grey if images.is_floating_point() else (grey + 0.5).floor().to(images.dtype)
    raise wrong_value(
        "the channels of the images",
        num_channels,
        f"{in_channels}, which the model takes, or 1, or 3 for 1",
    )


def crop_center(
    images: Shaped[Tensor, "n c h w"], size: tuple[int, int], start: Callable[[float], int]
) -> Shaped[Tensor, "n c height width"]:
    """Return the center of images, padded with 0 if the images are smaller.

    The crop begins at row start((H − height) / 2) and column start((W − width) / 2).
    """
    margins = []
    for new, old in zip(reversed(size), reversed(images.shape[2:]), strict=True):
        before = start((old - new) / 2)
        # A negative margin crops.
        margins += [-before, new - old + before]
    return torch.nn.functional.pad(images, margins)


def resample(
    images: Tensor, image_size: int | Sequence[int], resampling: str = "bilinear"
) -> Float[Tensor, "images channels new_height new_width"]:
    """Resize images of intensities in [0, 1] with Pillow's kernels, keeping gradients.

    Along an axis of S pixels, pixel i of S' new ones is the weighted mean with the weights
    w_ij ∝ K((j + ½ − (i + ½) S / S') / r), with the kernel K and r = max(S / S', 1). "nearest"
    takes the pixel that contains (i + ½) S / S'. Values outside [0, 1] are clipped after each
    axis. Because nothing is rounded, results differ from Pillow's on bytes by about one level.
    Source: src/libImaging/Resample.c in Pillow.

    Args:
        images: Images (B, C, H, W).
        image_size: New size, one side or (height, width).
        resampling: Resampling method, one of `RESAMPLINGS`.
    """
    check_tensor("images", images, "batch", "channels", "height", "width")
    check_name("resampling", resampling, RESAMPLINGS)
    height, width = check_image_size("image_size", image_size)
    if resampling == "nearest":
        for axis, old, new in ((2, images.shape[2], height), (3, images.shape[3], width)):
            images = images.index_select(
                axis, (_middles(new) * (old / new)).long().to(images.device)
            )
        return images
    # If the size of an axis does not change, its pixels are kept exactly.
    if width != images.shape[3]:
        images = _cut_off(images @ _weights(images.shape[3], width, resampling).to(images).T)
    if height != images.shape[2]:
        images = _cut_off(_weights(images.shape[2], height, resampling).to(images) @ images)
    return images


def _cut_off(images: Tensor) -> Tensor:
    """Clip to [0, 1]. With `clamp`, black would have no gradient from torch 2.14 on."""
    return images.masked_fill(images < 0, 0.0).masked_fill(images > 1, 1.0)


def _middles(side: int) -> Float[Tensor, " side"]:
    return torch.arange(side, dtype=torch.float64) + 0.5


def _weights(old_side: int, new_side: int, resampling: str) -> Float[Tensor, "new_side old_side"]:
    ratio = old_side / new_side
    places = (_middles(old_side) - (_middles(new_side) * ratio)[:, None]) / max(ratio, 1)
    support, kernel = KERNELS[resampling]
    weights = torch.where(places.abs() <= support, kernel(places), 0.0)
    return weights / weights.sum(dim=1, keepdim=True)
