"""From images as data have them to what a model takes: channels, size, crop and normalisation."""

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

LUMINANCE = (19595, 38470, 7471)  # of ITU-R BT.601 in 65,536ths, as Pillow makes grey of colour
Levels = UInt8[Tensor, "n c h w"]
ResizedLevels = UInt8[Tensor, "n c height width"]


def _cubic(place: Tensor) -> Tensor:
    """Keys' cubic with a = −½."""
    x = place.abs()
    return torch.where(x < 1, (1.5 * x - 2.5) * x**2 + 1, ((x - 5) * x + 8) * x * -0.5 + 2)


# Pillow's kernels of the distance from the middle, and half their widths, in new pixels where the image shrinks.
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
    """How a library rounds: resized pixels to whole levels, and the start of a crop of the middle to whole pixels."""

    resize: Callable[[Levels, tuple[int, int], str], ResizedLevels]
    start: Callable[
        [float], int
    ]  # of half of what the crop leaves over, which is negative where it adds a margin


LIBRARIES = {
    "transformers": Library(_resize_by_pillow, math.floor),
    "transformers with torchvision": Library(_resize_by_torchvision, math.trunc),
    # timm's too; round goes to the even one of two equally near.
    "torchvision": Library(
        _resize_by_pillow, lambda half: round(half) if half > 0 else math.trunc(half)
    ),
}


@dataclass(frozen=True)
class Preprocessing:
    """What is done to images before a model sees them, in two steps.

    `place` makes the channels and the size: what an audit moves, unless it is told to move before. `normalize` makes
    the numbers that the model was trained on, and belongs to the model.

    Images are whole levels 0 … 255 in uint8, which are resized to whole levels by the library itself; or intensities in
    [0, 1], which nothing rounds, and which keep their gradients.

    >>> import torch
    >>> from teka.audit.adapters import Preprocessing
    >>> from teka.data import Normalize
    >>> before = Preprocessing(3, resize=8, crop=(8, 8), normalization=Normalize((0.5,) * 3, (0.5,) * 3))
    >>> placed = before.place(torch.zeros(2, 1, 16, 24, dtype=torch.uint8))
    >>> placed.shape, before.normalize(placed).unique(), before.describe((16, 24))
    (torch.Size([2, 3, 8, 8]), tensor([-1.]), 'resized to 8 × 12 (bilinear), cropped to the middle 8 × 8')
    """

    in_channels: int | None = (
        None  # grey becomes colour by equal channels, colour grey by luminance; None leaves them
    )
    resize: int | tuple[int, int] | None = (
        None  # the new shorter side, the shape kept; or (height, width)
    )
    resampling: str = "bilinear"  # one of `RESAMPLINGS`
    crop: tuple[int, int] | None = (
        None  # of the middle after that, height and width; what is missing is 0
    )
    normalization: Normalize | None = None  # by mean and deviation of intensities
    blue_first: bool = False  # whether the model takes blue, green, red
    library: str = (
        "transformers"  # one of `LIBRARIES`, as which levels and the places of crops are rounded
    )

    def __post_init__(self) -> None:
        check_name("resampling", self.resampling, RESAMPLINGS)
        check_name("library", self.library, LIBRARIES)
        for argument, size in (("resize", self.resize), ("crop", self.crop)):
            if size is not None:
                check_image_size(argument, size)
        check_sizes({"in_channels": self.in_channels}, or_none=True)

    @property
    def placing(self) -> "Preprocessing":
        """What `place` goes by, alone: models that share it are shown the same images, whatever numbers they make."""
        return replace(self, normalization=None, blue_first=False)

    def resized_to(
        self, input_size: int | tuple[int, int] | None
    ) -> tuple["Preprocessing", tuple[int, int] | None]:
        """The same for images resized to another size, and that size; None leaves it at the window cut out."""
        if input_size is None:
            return self, self.crop
        size = check_image_size("input_size", input_size)
        return replace(self, resize=size, crop=None), size

    def resized_size(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Height and width after the resize, before the crop."""
        if self.resize is None:
            return image_size
        if isinstance(self.resize, tuple):
            return self.resize
        longer = int(self.resize * max(image_size) / min(image_size))
        return (longer, self.resize) if image_size[0] > image_size[1] else (self.resize, longer)

    def place(self, images: Shaped[Tensor, "n c h w"]) -> Float[Tensor, "n channels height width"]:
        """The images, levels or intensities, with the model's channels and size, as intensities in [0, 1]."""
        placed, library = with_channels(images, self.in_channels), LIBRARIES[self.library]
        is_levels = placed.dtype == torch.uint8
        size = self.resized_size((images.shape[2], images.shape[3]))
        if size != tuple(images.shape[2:]):
            placed = (library.resize if is_levels else resample)(placed, size, self.resampling)
        if self.crop is not None:
            placed = crop_center(placed, self.crop, library.start)
        return to_intensities(placed) if is_levels else placed

    def normalize(self, placed: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        """The numbers that the model takes of placed images."""
        if self.in_channels is not None and placed.shape[1] != self.in_channels:
            raise wrong_shape(
                "images", placed.shape, f"(images, {self.in_channels}, height, width)"
            )
        ordered = placed.flip(1) if self.blue_first else placed
        return ordered if self.normalization is None else self.normalization(ordered)

    def describe(self, image_size: tuple[int, int] | None) -> str:
        """What `place` does to images of a size, or of several for None, in words; "" if it leaves their pixels."""
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
    """The images with a number of channels: grey with any number, colour as grey; None leaves them."""
    came = images.shape[1]
    if in_channels is None or came == in_channels:
        return images
    if came == 1:
        return images.expand(-1, in_channels, -1, -1)
    if came == 3 and in_channels == 1:
        weights = torch.tensor(LUMINANCE, device=images.device)[:, None, None] / 65536
        grey = (images * weights.to(torch.promote_types(images.dtype, torch.float32))).sum(
            dim=1, keepdim=True
        )
        return grey if images.is_floating_point() else (grey + 0.5).floor().to(images.dtype)
    raise wrong_value(
        "the channels of the images",
        came,
        f"{in_channels}, which the model takes, or 1, or 3 for 1",
    )


def crop_center(
    images: Shaped[Tensor, "n c h w"], size: tuple[int, int], start: Callable[[float], int]
) -> Shaped[Tensor, "n c height width"]:
    """The middle of the images, from row start((H − height) / 2) and column start((W − width) / 2); missing is 0."""
    margins = []
    for wanted, came in zip(reversed(size), reversed(images.shape[2:]), strict=True):
        before = start((came - wanted) / 2)
        # What is to be cut off is a negative margin.
        margins += [-before, wanted - came + before]
    return torch.nn.functional.pad(images, margins)


def resample(
    images: Tensor, image_size: int | Sequence[int], resampling: str = "bilinear"
) -> Float[Tensor, "images channels new_height new_width"]:
    """Resize images of intensities in [0, 1] by Pillow's kernels K (src/libImaging/Resample.c), with gradients.

    Along an axis of S pixels, new pixel i of S' is the mean with weights w_ij ∝ K((j + ½ − (i + ½) S / S') / r), of
    which r = max(S / S', 1); "nearest" takes the pixel that (i + ½) S / S' lies in. After each axis, what an
    overshooting kernel drives out of [0, 1] is cut off. Nothing is rounded: from Pillow on bytes it differs by about a
    level.
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
    # An axis that keeps its size keeps its pixels, whatever the kernel.
    if width != images.shape[3]:
        images = _cut_off(images @ _weights(images.shape[3], width, resampling).to(images).T)
    if height != images.shape[2]:
        images = _cut_off(_weights(images.shape[2], height, resampling).to(images) @ images)
    return images


def _cut_off(images: Tensor) -> Tensor:
    """What is outside [0, 1] at its ends; not by `clamp`, of which black has no gradient from torch 2.14 on."""
    return images.masked_fill(images < 0, 0.0).masked_fill(images > 1, 1.0)


def _middles(side: int) -> Float[Tensor, " side"]:
    return torch.arange(side, dtype=torch.float64) + 0.5


def _weights(old_side: int, new_side: int, resampling: str) -> Float[Tensor, "new_side old_side"]:
    ratio = old_side / new_side
    places = (_middles(old_side) - (_middles(new_side) * ratio)[:, None]) / max(ratio, 1)
    support, kernel = KERNELS[resampling]
    weights = torch.where(places.abs() <= support, kernel(places), 0.0)
    return weights / weights.sum(dim=1, keepdim=True)
