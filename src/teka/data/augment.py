"""Random augmentation and normalization of image batches.

An augmentation is a callable that takes a batch and a random generator. It changes each image
differently, and returns new images. `lossless_selection` selects images with blank margins.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Generator, Tensor

from teka.checks import (
    check_dense_tensor,
    check_instance,
    check_iterable,
    check_name,
    check_number,
    check_sizes,
    is_number,
    is_positive,
)
from teka.data.pictures import check_images
from teka.errors import wrong_argument, wrong_value

SHIFT_MODES = ("zero", "circular")


@dataclass(frozen=True)
class RandomShift:
    """Shift each image of a batch by a random number of pixels along both axes.

    The shift is drawn uniformly from −max_shift to max_shift for each image and axis.

    >>> import torch
    >>> from teka.data import RandomShift
    >>> images = torch.tensor([[[[1, 2, 3]]]]).expand(3, 1, 3, 3)
    >>> generator = torch.Generator().manual_seed(0)
    >>> RandomShift(1, mode="circular")(images, generator)[:, 0, 0]
    tensor([[2, 3, 1],
            [1, 2, 3],
            [2, 3, 1]])

    Args:
        max_shift: Largest shift along each axis in pixels.
        mode: "zero" fills the border with zeros, and "circular" wraps around.

    Raises:
        ValueError: `max_shift` is negative or larger than the images, or the mode is unknown.
    """

    max_shift: int
    mode: str = "zero"

    def __post_init__(self) -> None:
        check_sizes({"max_shift": self.max_shift}, 0)
        check_name("mode", self.mode, SHIFT_MODES)

    def __call__(
        self, images: Tensor, generator: Generator
    ) -> Shaped[Tensor, "images channels height width"]:
        """Return a copy of the batch in which each image has its own random shift.

        Args:
            images: Images of shape (N, C, H, W) and any dtype.
            generator: Source of the random numbers.
        """
        _check_inputs(images, generator)
        height, width = images.shape[2:]
        if self.max_shift > min(height, width):
            raise wrong_value(
                "max_shift", self.max_shift, f"at most the image size, {height} × {width}"
            )
        for axis, size in ((2, height), (3, width)):
            shift = torch.randint(
                -self.max_shift,
                self.max_shift + 1,
                (len(images), 1, 1, 1),
                generator=generator,
                device=generator.device,
            ).to(images.device)
            pixels = torch.arange(size, device=images.device)
            source = (pixels if axis == 3 else pixels[:, None]) - shift
            wrapped = source % size
            images = images.gather(axis, wrapped.expand_as(images))
            if self.mode == "zero":
                images = images.masked_fill(wrapped != source, 0)
        return images


@dataclass(frozen=True)
class HorizontalFlip:
    """Flip each image of a batch horizontally with a given probability.

    Do not use this augmentation if a flip changes the class, as for digits.

    >>> import torch
    >>> from teka.data import HorizontalFlip
    >>> flip = HorizontalFlip(probability=1.0)
    >>> flip(torch.tensor([[[[1, 2, 3]]]]), torch.Generator())
    tensor([[[[3, 2, 1]]]])

    Args:
        probability: Probability of a flip.

    Raises:
        ValueError: `probability` is not from 0 to 1.
    """

    probability: float = 0.5

    def __post_init__(self) -> None:
        check_number("probability", self.probability, "a number from 0 to 1", low=0, high=1)

    def __call__(
        self, images: Tensor, generator: Generator
    ) -> Shaped[Tensor, "images channels height width"]:
        """Return a copy of the batch in which randomly selected images are flipped.

        Args:
            images: Images of shape (N, C, H, W) and any dtype.
            generator: Source of the random numbers.
        """
        _check_inputs(images, generator)
        draws = torch.rand(len(images), generator=generator, device=generator.device)
        is_flipped = (draws < self.probability).to(images.device)
        return torch.where(is_flipped[:, None, None, None], images.flip(3), images)


def _check_inputs(images: Tensor, generator: Generator) -> None:
    check_images(images)
    check_instance("generator", generator, Generator)


@dataclass(frozen=True)
class Normalize:
    """Normalize each image channel with its mean and standard deviation.

    A pixel x of channel c becomes (x − mean_c) / deviation_c. Use the mean and the deviation of the
    training images for all splits. Shift images before normalization, because shifts fill the
    image with 0, the background.

    >>> import torch
    >>> from teka.data import Normalize
    >>> images = torch.rand(8, 3, 4, 4)
    >>> normalized = Normalize.from_images(images)(images)
    >>> bool(normalized.mean(dim=(0, 2, 3)).abs().max() < 1e-6)
    True
    >>> normalized.square().mean(dim=(0, 2, 3)).round(decimals=3)
    tensor([1., 1., 1.])

    Args:
        mean: Mean of each channel.
        deviation: Standard deviation of each channel, positive.

    Raises:
        ValueError: Mean and deviation have different lengths, or a deviation is not positive.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __post_init__(self) -> None:
        expected = "a finite number for each channel"
        mean = check_iterable("mean", self.mean, expected)
        if not mean or not all(map(is_number, mean)):
            raise wrong_value("mean", self.mean, expected)
        expected = f"{len(mean)} positive finite numbers, as many as in mean"
        deviation = check_iterable("deviation", self.deviation, expected)
        if len(deviation) != len(mean) or not all(map(is_positive, deviation)):
            raise wrong_value("deviation", self.deviation, expected)

    @classmethod
    def from_images(cls, images: Tensor) -> "Normalize":
        """Create the normalization that gives each channel of `images` mean 0 and variance 1.

        Args:
            images: Images of shape (N, C, H, W).

        Raises:
            ValueError: A channel has the same value in every pixel, or a value is not finite.
        """
        check_dense_tensor("images", images, "images", "channels", "height", "width")
        if not images.isfinite().all():
            raise wrong_argument("images", "NaN or infinity", "finite values")
        deviation, mean = torch.std_mean(images.double(), dim=(0, 2, 3), correction=0)
        return cls(tuple(mean.tolist()), tuple(deviation.tolist()))

    def __call__(self, images: Tensor) -> Float[Tensor, "images channels height width"]:
        """Normalize floating-point images of shape (N, C, H, W)."""
        check_dense_tensor("images", images, "batch", len(self.mean), "height", "width")
        mean = images.new_tensor(self.mean)[:, None, None]
        deviation = images.new_tensor(self.deviation)[:, None, None]
        return (images - mean) / deviation


def lossless_selection(
    images: Tensor, labels: Tensor, class_index: int | None = 1, margin: int = 8
) -> Bool[Tensor, " images"]:
    """Select the images of a class whose blank margins are wide enough for lossless shifts.

    An image is selected if it has more than `margin` blank columns on both sides. A circular shift
    by up to `margin` columns, for example with `teka.Grid.roll`, then moves only background across
    the edge, so that no content is lost. Of the test images at 32×32, the defaults select 854 of
    the 1,135 ones in MNIST and 791 of the 1,000 trousers in Fashion-MNIST.

    >>> import torch, teka
    >>> images = torch.zeros(1, 1, 4, 28)
    >>> images[..., 13:15] = 1.0
    >>> teka.data.lossless_selection(images, torch.tensor([1]))
    tensor([True])

    Args:
        images: Images of shape (N, C, H, W) with background 0.
        labels: Indices of the classes.
        class_index: Class to select, or None for all classes.
        margin: Largest shift in columns. With 0, all images of the class are selected.

    Returns:
        Mask that is True for selected images.

    Raises:
        ValueError: Images or labels have the wrong shape, or a number is negative.

    Source: Horn et al. 2021, figure 1.
    """
    check_images(images)
    check_dense_tensor("labels", labels, len(images), dtypes=None)
    check_sizes({"margin": margin}, 0)
    check_sizes({"class_index": class_index}, 0, or_none=True)
    is_selected = torch.ones_like(labels, dtype=torch.bool)
    if class_index is not None:
        is_selected &= labels == class_index
    if margin > 0:
        is_blank = (images == 0).all(dim=(1, 2))
        is_selected &= is_blank[:, : margin + 1].all(dim=1) & is_blank[:, -margin - 1 :].all(dim=1)
    return is_selected
