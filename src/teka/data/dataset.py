"""What a data set is once loaded: images in [0, 1] and their labels, in three parts."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from teka.data.sizes import height_and_width, whole_number
from teka.errors import wrong_shape, wrong_value


@dataclass(frozen=True)
class Split:
    """Images and their labels: one part of a data set; it may be empty.

    Args:
        images: Floating point intensities in [0, 1], shape (N, C, H, W); a background, where there is one, is 0.
        labels: Class index of each image, whole numbers of shape (N,).

    Raises:
        ValueError: A wrong shape, images that are not floating point, values outside [0, 1], or labels that are
            not whole numbers.
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.ndim != 4:
            raise wrong_shape("images", self.images.shape, "(images, channels, height, width)")
        if tuple(self.labels.shape) != (len(self.images),):
            raise wrong_shape("labels", self.labels.shape, f"({len(self.images)},), one label for each image")
        if not self.images.is_floating_point():
            raise wrong_value("images.dtype", self.images.dtype, "a floating point type")
        if self.labels.is_floating_point() or self.labels.is_complex() or self.labels.dtype == torch.bool:
            raise wrong_value("labels.dtype", self.labels.dtype, "a whole number type")
        if self.images.numel():
            lowest, highest = (bound.item() for bound in torch.aminmax(self.images))
            # Written so that NaN, for which every comparison is false, fails too.
            if not (lowest >= 0 and highest <= 1):
                raise wrong_value("images", f"from {lowest} to {highest}", "intensities from 0 to 1")

    def __len__(self) -> int:
        return len(self.images)

    def take(self, indices: Int[Tensor, " chosen"]) -> "Split":
        """The images at these indices, in this order."""
        return Split(self.images[indices], self.labels[indices])


@dataclass(frozen=True)
class Dataset:
    """A data set for classification, ready for training.

    Args:
        name: The name it was loaded by.
        train: Images to learn from.
        validation: Images to stop and choose by; may be empty.
        test: Images to report on.
        num_classes: Number of classes; labels are 0 … num_classes − 1.
        image_size: (height, width) in pixels, the same for every image.
        in_channels: Number of colour channels.

    Raises:
        ValueError: A split of another image size or number of channels, or a label that is not a class.
    """

    name: str
    train: Split
    validation: Split
    test: Split
    num_classes: int
    image_size: tuple[int, int]
    in_channels: int

    def __post_init__(self) -> None:
        whole_number("num_classes", self.num_classes, smallest=1)
        whole_number("in_channels", self.in_channels, smallest=1)
        height, width = height_and_width("image_size", self.image_size)
        for part in ("train", "validation", "test"):
            split: Split = getattr(self, part)
            if tuple(split.images.shape[1:]) != (self.in_channels, height, width):
                expected = f"(images, {self.in_channels}, {height}, {width})"
                raise wrong_shape(f"{part}.images", split.images.shape, expected)
            if len(split) and not (split.labels.min() >= 0 and split.labels.max() < self.num_classes):
                came = f"from {split.labels.min().item()} to {split.labels.max().item()}"
                raise wrong_value(f"{part}.labels", came, f"classes from 0 to {self.num_classes - 1}")
