"""Labeled images in splits for training, validation and test."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from teka.checks import (
    FLOAT_DTYPES,
    INTEGER_DTYPES,
    check_dense_tensor,
    check_image_size,
    check_instance,
    check_sizes,
)
from teka.data.pictures import PictureFiles, resize_bilinear, to_intensities
from teka.errors import wrong_argument, wrong_shape, wrong_value
from teka.memory import check_fits_in_memory, memory_bytes

ImageSize: TypeAlias = int | Sequence[int]  # the side of a square, or (height, width)
SPLITS = ("train", "validation", "test")
VALIDATION_FRACTION = 10  # a tenth of the training images
TEST_FRACTION = 5  # a fifth of all images
TEST_SEED = 0
# Pictures are streamed if their intensities need more than a quarter of the memory.
STREAMING_FRACTION = 4


@dataclass(frozen=True)
class Split(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Images and their labels, as a map-style PyTorch data set.

    An index, a slice or a list of indices selects images and labels.

    >>> import torch
    >>> from teka.data import Split
    >>> split = Split(torch.rand(5, 1, 8, 8), torch.tensor([0, 1, 0, 1, 1]))
    >>> images, labels = split[[0, 2]]
    >>> images.shape, labels
    (torch.Size([2, 1, 8, 8]), tensor([0, 0]))
    >>> loader = torch.utils.data.DataLoader(split, batch_size=4)
    >>> [len(labels) for _, labels in loader]
    [4, 1]

    Args:
        images: Tensor of shape (N, C, H, W) with intensities from 0 to 1 (floating point) or levels
            from 0 to 255 (uint8), or `PictureFiles` that are read when they are indexed.
        labels: Class indices, shape (N,).

    Raises:
        ValueError: Shapes or dtypes do not match, or an intensity is not between 0 and 1.
    """

    images: Any  # Tensor | PictureFiles
    labels: Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.images, PictureFiles):
            is_bytes = getattr(self.images, "dtype", None) == torch.uint8
            dtypes = None if is_bytes else FLOAT_DTYPES
            check_dense_tensor(
                "images", self.images, "batch", "channels", "height", "width", dtypes=dtypes
            )
            if self.images.is_floating_point() and self.images.numel():
                lowest, highest = (bound.item() for bound in torch.aminmax(self.images))
                if not (lowest >= 0 and highest <= 1):  # also for NaN
                    raise wrong_argument(
                        "images", f"from {lowest} to {highest}", "intensities from 0 to 1"
                    )
        check_dense_tensor("labels", self.labels, len(self.images), dtypes=INTEGER_DTYPES)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, indices: Any) -> tuple[Tensor, Tensor]:
        return self.images[indices], self.labels[indices]

    def take(self, indices: Int[Tensor, " chosen"]) -> "Split":
        """Return a new split with the images and labels at `indices`, in this order."""
        check_dense_tensor("indices", indices, "batch", dtypes=INTEGER_DTYPES)
        indices = indices.long()
        is_files = isinstance(self.images, PictureFiles)
        images = self.images.take(indices) if is_files else self.images[indices]
        return Split(images, self.labels[indices])

    def to_intensities(self, image_size: ImageSize | None = None) -> "Split":
        """Return a split with all images in memory, as floating-point intensities from 0 to 1.

        Picture files are read, and uint8 levels are divided by 255.

        Args:
            image_size: New size of uint8 images. Floating-point images cannot be resized.
        """
        images = self.images[:]
        if images.dtype == torch.uint8:
            if image_size is not None:
                images = resize_bilinear(images, image_size)
            images = to_intensities(images)
        elif image_size is not None and not isinstance(self.images, PictureFiles):
            raise wrong_value(
                "image_size", image_size, "None", "Floating-point images are not resized."
            )
        return Split(images, self.labels)


@dataclass(frozen=True)
class Dataset:
    """Images for training, validating and testing a classifier.

    >>> import torch
    >>> from teka.data import Dataset, Split
    >>> split = Split(torch.rand(10, 1, 8, 8), torch.arange(10) % 2)
    >>> train, validation, test = (split.take(part) for part in torch.arange(10).split([6, 2, 2]))
    >>> dataset = Dataset("stripes", train, validation, test, num_classes=2)
    >>> dataset.sizes
    {'image_size': (8, 8), 'in_channels': 1, 'num_classes': 2}

    Args:
        name: Name or path from which the data set was loaded.
        train: Images for training.
        validation: Images for early stopping and other choices. May be empty.
        test: Images for the final evaluation.
        num_classes: Number of classes. Labels are from 0 to `num_classes` − 1.
        class_names: Name of each class, or None.

    Raises:
        ValueError: The images of two splits have different shapes, or a label is not a class.
    """

    name: str
    train: Split
    validation: Split
    test: Split
    num_classes: int
    class_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_instance("name", self.name, str)
        check_sizes({"num_classes": self.num_classes})
        for name in SPLITS:
            split: Split = getattr(self, name)
            check_instance(name, split, Split)
            if split.images.shape[1:] != self.train.images.shape[1:]:
                raise wrong_shape(
                    f"{name}.images",
                    split.images.shape,
                    f"(batch, {', '.join(map(str, self.train.images.shape[1:]))})",
                )
            if not split.images.dtype.is_floating_point:
                raise wrong_value(
                    f"{name}.images.dtype", split.images.dtype, "a floating-point dtype"
                )
            wrong = split.labels[(split.labels < 0) | (split.labels >= self.num_classes)]
            if len(wrong):
                raise wrong_value(
                    f"{name}.labels", wrong[0].item(), f"classes from 0 to {self.num_classes - 1}"
                )

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the images in pixels."""
        return tuple(self.train.images.shape[2:])

    @property
    def in_channels(self) -> int:
        """Number of channels of the images."""
        return self.train.images.shape[1]

    @property
    def sizes(self) -> dict[str, Any]:
        """Image size, number of channels and number of classes, as keyword arguments of a model."""
        return {name: getattr(self, name) for name in ("image_size", "in_channels", "num_classes")}


@dataclass(frozen=True)
class RawDataset:
    """Images and labels as they come with a data set, before it is divided into splits.

    Args:
        train: Images for training and validation, or all images if there are no test images.
        test: Images for the final evaluation, or None.
        num_validation: Number of images at the end of `train` that the data set declares for
            validation.
        class_names: Name of each class. If it is None, the largest label is the last class.
    """

    train: Split
    test: Split | None
    num_validation: int = 0
    class_names: tuple[str, ...] | None = None

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        if self.class_names is not None:
            return len(self.class_names)
        splits = [self.train] if self.test is None else [self.train, self.test]
        return 1 + max((int(split.labels.max()) for split in splits if len(split)), default=0)


def draw_train_and_test_indices(
    num_images: int,
) -> tuple[Int[Tensor, " train"], Int[Tensor, " test"]]:
    """Select a random fifth of the images for testing, and return training and test indices.

    The selection depends only on the number of images, so that it is the same in every run. The
    test indices are the last fifth of `numpy.random.default_rng(0).permutation(num_images)`.
    """
    if num_images < TEST_FRACTION:
        raise wrong_value(
            "the number of images",
            num_images,
            f"at least {TEST_FRACTION}",
            "A fifth of the images is held out for test.",
        )
    order = torch.from_numpy(np.random.default_rng(TEST_SEED).permutation(num_images))
    num_train = num_images - num_images // TEST_FRACTION
    return order[:num_train], order[num_train:]


def divide_into_splits(
    name: str,
    raw: RawDataset,
    *,
    image_size: ImageSize | None,
    validation_size: int | None,
    train_size: int | None,
    seed: int,
    stream: bool | None = None,
) -> Dataset:
    """Divide a data set into training, validation and test images with values from 0 to 1.

    Some data sets come with validation images. They are kept as such if `validation_size` is None.
    Otherwise, the validation images are drawn from all images that are not for testing.

    Args:
        name: Name of the data set.
        raw: Images and labels to divide.
        image_size: As in `teka.data.load`, like all the following arguments.
        validation_size: Number of validation images.
        train_size: Number of training images.
        seed: Seed of the split.
        stream: Read picture files in every epoch, so that the images are not held in memory.
    """
    train, test = raw.train, raw.test
    if test is None:
        train, test = (
            raw.train.take(indices) for indices in draw_train_and_test_indices(len(raw.train))
        )
    if not (len(train) and len(test)):
        raise wrong_argument(
            "the number of images",
            f"{len(train)} for training and {len(test)} for test",
            "at least 1 for training and 1 for test",
        )
    num_declared = raw.num_validation if validation_size is None else 0
    num_images = len(train) - num_declared
    if validation_size is None:
        validation_size = 0 if num_declared else num_images // VALIDATION_FRACTION
    check_sizes({"seed": seed}, 0)
    check_sizes({"validation_size": validation_size}, 0, num_images - 1)
    rest = num_images - validation_size
    check_sizes({"train_size": train_size}, most=rest, or_none=True)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(num_images))
    validation = train.take(torch.cat([order[rest:], torch.arange(num_images, len(train))]))
    train = train.take(order[: rest if train_size is None else train_size])
    splits = (train, validation, test)
    channels, *size = train.images.shape[1:]
    if image_size is not None:
        size = check_image_size("image_size", image_size)
    num_bytes = 4 * channels * math.prod(size) * sum(map(len, splits))
    if stream is None:
        stream = num_bytes > memory_bytes() // STREAMING_FRACTION
    if not (stream and isinstance(train.images, PictureFiles)):
        check_fits_in_memory("image_size", image_size, num_bytes, "images")
        train, validation, test = (split.to_intensities(image_size) for split in splits)
    return Dataset(name, train, validation, test, raw.num_classes, raw.class_names)
