"""What is done to whole batches of images: shifts, crops and mirroring at random, normalising, selecting by margins.

Of random changes every image gets a draw of its own, from the generator that is passed. Nothing changes its argument.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Generator, Tensor

from teka.checks import (
    INTEGER_DTYPES,
    check_dense,
    check_image_size,
    check_instance,
    check_name,
    check_number,
    check_sequence,
    check_sizes,
    check_tensor,
    is_number,
)
from teka.errors import wrong_argument, wrong_value

SHIFT_MODES = ("zero", "circular")


@dataclass(frozen=True)
class RandomShift:
    """Move each image by whole pixels, drawn evenly from −max_shift … max_shift along each axis as by `Grid.roll`.

    The largest shift is one number or (along the height, along the width). In mode "zero" what leaves is lost, and
    background enters; in "circular" it enters at the other side.

    >>> import torch
    >>> from teka.data import RandomShift
    >>> images, generator = torch.tensor([[[[1, 2, 3]]]]).expand(3, 1, 1, 3), torch.Generator().manual_seed(0)
    >>> RandomShift((0, 1), mode="circular")(images, generator).flatten(1)
    tensor([[2, 3, 1],
            [1, 2, 3],
            [2, 3, 1]])
    """

    max_shift: int | tuple[int, int]
    mode: str = "zero"
    background: float = 0.0

    def __post_init__(self) -> None:
        check_image_size("max_shift", self.max_shift, smallest=0)
        check_name("mode", self.mode, SHIFT_MODES)
        check_number("background", self.background, "a finite number")

    def __call__(
        self, images: Tensor, generator: Generator
    ) -> Shaped[Tensor, "images channels height width"]:
        """The images, of any type and shape (N, C, H, W), each moved; a largest shift beyond their size is an error."""
        height, width = _check_draw(images, generator, self.background)
        most_down, most_right = check_image_size("max_shift", self.max_shift, smallest=0)
        if most_down > height or most_right > width:
            raise wrong_value(
                "max_shift", self.max_shift, f"at most the images' size, {height} × {width}"
            )
        down = _draw(-most_down, most_down, images, generator)
        right = _draw(-most_right, most_right, images, generator)
        return _cut(
            images, -down, -right, (height, width), self.background if self.mode == "zero" else None
        )


@dataclass(frozen=True)
class RandomCrop:
    """Cut a window of `size` pixels out of each image and `padding` pixels around it, at a place drawn evenly.

    The size is one side or (height, width); the padding has the value of the background.

    >>> import torch
    >>> from teka.data import RandomCrop
    >>> images, generator = torch.rand(4, 3, 32, 32), torch.Generator().manual_seed(0)
    >>> RandomCrop(32, padding=4)(images, generator).shape, RandomCrop((24, 16))(images, generator).shape
    (torch.Size([4, 3, 32, 32]), torch.Size([4, 3, 24, 16]))
    """

    size: int | tuple[int, int]
    padding: int = 0
    background: float = 0.0

    def __post_init__(self) -> None:
        check_image_size("size", self.size)
        check_sizes({"padding": self.padding}, 0)
        check_number("background", self.background, "a finite number")

    def __call__(
        self, images: Tensor, generator: Generator
    ) -> Shaped[Tensor, "images channels new_height new_width"]:
        """A window of each image, of any type and shape (N, C, H, W); one larger than image and padding is an error."""
        height, width = (
            side + 2 * self.padding for side in _check_draw(images, generator, self.background)
        )
        new_height, new_width = check_image_size("size", self.size)
        if new_height > height or new_width > width:
            raise wrong_value(
                "size", self.size, f"at most {height} × {width}, the images and their padding"
            )
        top = _draw(-self.padding, height - new_height - self.padding, images, generator)
        left = _draw(-self.padding, width - new_width - self.padding, images, generator)
        return _cut(images, top, left, (new_height, new_width), self.background)


@dataclass(frozen=True)
class HorizontalFlip:
    """Mirror images left to right with a probability; not for data where that changes the class, such as digits.

    >>> import torch
    >>> from teka.data import HorizontalFlip
    >>> HorizontalFlip(probability=1.0)(torch.tensor([[[[1, 2, 3]]]]), torch.Generator())
    tensor([[[[3, 2, 1]]]])
    """

    probability: float = 0.5

    def __post_init__(self) -> None:
        check_number("probability", self.probability, "a number from 0 to 1", low=0, high=1)

    def __call__(
        self, images: Tensor, generator: Generator
    ) -> Shaped[Tensor, "images channels height width"]:
        """The images, of any type and shape (N, C, H, W), some of them mirrored."""
        _check_draw(images, generator)
        chosen = (
            torch.rand(len(images), generator=generator, device=generator.device) < self.probability
        )
        return torch.where(chosen.to(images.device)[:, None, None, None], images.flip(3), images)


def _check_draw(images: Tensor, generator: Generator, background: float = 0.0) -> Sequence[int]:
    check_instance("generator", generator, Generator)
    sizes = _check(images)
    is_whole = images.dtype in INTEGER_DTYPES
    if is_whole or images.is_floating_point():
        limits = torch.iinfo(images.dtype) if is_whole else torch.finfo(images.dtype)
        if not limits.min <= background <= limits.max:
            raise wrong_value(
                "background", background, f"a value of the images' dtype, {images.dtype}"
            )
    return sizes


def _check(images: Tensor) -> Sequence[int]:
    check_dense("images", images)
    check_tensor("images", images, "batch", "channels", "height", "width", dtypes=None)
    return images.shape[2:]


def _draw(
    lowest: int, highest: int, images: Tensor, generator: Generator
) -> Int[Tensor, " images"]:
    drawn = torch.randint(
        lowest, highest + 1, (len(images),), generator=generator, device=generator.device
    )
    return drawn.to(images.device)


def _cut(
    images: Tensor,
    top: Int[Tensor, " n"],
    left: Int[Tensor, " n"],
    size: Sequence[int],
    background: float | None,
) -> Shaped[Tensor, "n channels new_height new_width"]:
    """A window of each image from a row and a column of its own; without a background the image goes on around it."""
    height, width = images.shape[2:]
    rows = (top[:, None] + torch.arange(size[0], device=images.device))[:, None, :, None]
    columns = (left[:, None] + torch.arange(size[1], device=images.device))[:, None, None, :]
    index = torch.arange(len(images), device=images.device)[:, None, None, None]
    channel = torch.arange(images.shape[1], device=images.device)[:, None, None]
    picked = images[index, channel, rows % height, columns % width]
    if background is None:
        return picked
    outside = (rows < 0) | (rows >= height) | (columns < 0) | (columns >= width)
    return picked.masked_fill(
        outside, float(background) if picked.is_floating_point() else int(background)
    )


@dataclass(frozen=True)
class Normalize:
    """x ↦ (x − mean_c) / deviation_c for each channel c, deviations being positive.

    Take both from the training images, `Normalize.of(dataset.train.images)`, and apply them to every part. A shift
    fills with background, which is 0 before this and −mean_c / deviation_c after it: shift first.

    >>> import torch
    >>> from teka.data import Normalize
    >>> images = torch.rand(8, 3, 4, 4)
    >>> normal = Normalize.of(images)(images)
    >>> bool(normal.mean(dim=(0, 2, 3)).abs().max() < 1e-6), normal.square().mean(dim=(0, 2, 3)).round(decimals=3)
    (True, tensor([1., 1., 1.]))
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __post_init__(self) -> None:
        for argument in ("mean", "deviation"):
            values = getattr(self, argument)
            if not isinstance(values, Sequence) or not all(
                map(is_number, check_sequence(argument, values, "numbers"))
            ):
                raise wrong_value(argument, values, "a finite number for each channel")
        if len(self.mean) != len(self.deviation) or not self.mean:
            raise wrong_value(
                "deviation", self.deviation, f"one number for each channel, like mean {self.mean}"
            )
        if not all(deviation > 0 for deviation in self.deviation):
            raise wrong_value("deviation", self.deviation, "positive finite numbers")

    @classmethod
    def of(cls, images: Tensor) -> "Normalize":
        """The one after which these images, shape (N, C, H, W), have mean 0 and mean square 1 in each channel.

        A channel that is the same in every pixel is a ValueError.
        """
        check_dense("images", images)
        check_tensor("images", images, "images", "channels", "height", "width")
        if not images.isfinite().all():
            raise wrong_argument("images", "NaN or infinity", "finite values")
        deviation, mean = torch.std_mean(images.double(), dim=(0, 2, 3), correction=0)
        return cls(tuple(mean.tolist()), tuple(deviation.tolist()))

    def __call__(self, images: Tensor) -> Float[Tensor, "images channels height width"]:
        """The images, floating point of shape (N, C, H, W), normalised."""
        check_dense("images", images)
        check_tensor("images", images, "batch", len(self.mean), "height", "width")
        mean, deviation = (
            images.new_tensor(given)[:, None, None] for given in (self.mean, self.deviation)
        )
        return (images - mean) / deviation


def blank_columns(images: Tensor) -> tuple[Int[Tensor, " images"], Int[Tensor, " images"]]:
    """Blank columns left of the first non-zero column and right of the last, each minus one, at least 0."""
    _check(images)
    filled = (images != 0).any(dim=2).any(dim=1)
    # A running sum is 0 for as long as nothing has been met, which counts the blank columns from that side.
    left, right = ((one.cumsum(dim=1) == 0).sum(dim=1) for one in (filled, filled.flip(1)))
    return (left - 1).clamp(min=0), (right - 1).clamp(min=0)


def lossless_selection(
    images: Tensor, labels: Tensor, class_index: int | None = 1, margin: int = 8
) -> Bool[Tensor, " images"]:
    """Mark the images of one class that can be rolled by −margin … margin columns with only zeros wrapping.

    On the test images at 32×32 the defaults keep 854 of MNIST's 1,135 ones and 791 of Fashion-MNIST's 1,000 trousers;
    with None all classes are kept, to be shown beside it. One blank column more stays on both sides. The images are
    intensities with background 0, (N, C, H, W), and the shift is `teka.Grid.roll`. Source: Horn et al. 2021, figure 1.
    """
    _check(images)
    check_dense("labels", labels)
    check_tensor("labels", labels, len(images), dtypes=None)
    check_sizes({"margin": margin}, 0)
    check_sizes({"class_index": class_index}, 0, or_none=True)
    left, right = blank_columns(images)
    keep = (left >= margin) & (right >= margin)
    return keep if class_index is None else keep & (labels == class_index)
