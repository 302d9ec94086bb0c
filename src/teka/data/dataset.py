"""What a data set is once loaded, and the way there: whole levels as published are parted and become intensities."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from teka.checks import (
    INTEGER_DTYPES,
    check_dense,
    check_image_size,
    check_instance,
    check_sizes,
    check_tensor,
)
from teka.data.pictures import resize_bilinear, to_intensities
from teka.errors import wrong_argument, wrong_value
from teka.memory import check_memory

Side: TypeAlias = int | Sequence[int]  # of square images, or (height, width)
VALIDATION_SHARE, TEST_SHARE = 10, 5
TEST_SEED = 0


@dataclass(frozen=True)
class Split:
    """One part of a data set, maybe empty: intensities in [0, 1], shape (N, C, H, W), and the classes' indices (N,).

    A background, where there is one, is 0.

    >>> import torch
    >>> from teka.data import Split
    >>> split = Split(torch.rand(5, 1, 8, 8), torch.tensor([0, 1, 0, 1, 1]))
    >>> ones = split.take(split.labels.nonzero().flatten())
    >>> len(split), len(ones), ones.images.shape
    (5, 3, torch.Size([3, 1, 8, 8]))
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        check_dense("images", self.images)
        check_dense("labels", self.labels)
        check_tensor("images", self.images, "batch", "channels", "height", "width")
        check_tensor("labels", self.labels, len(self.images), dtypes=INTEGER_DTYPES)
        if self.images.numel():
            lowest, highest = (bound.item() for bound in torch.aminmax(self.images))
            # Written so that NaN, for which every comparison is false, fails too.
            if not (lowest >= 0 and highest <= 1):
                raise wrong_argument(
                    "images", f"from {lowest} to {highest}", "intensities from 0 to 1"
                )

    def __len__(self) -> int:
        return len(self.images)

    def take(self, indices: Int[Tensor, " chosen"]) -> "Split":
        """The images at these indices, in this order."""
        check_dense("indices", indices)
        check_tensor("indices", indices, "batch", dtypes=INTEGER_DTYPES)
        if len(indices) and not -len(self) <= int(indices.min()) <= int(indices.max()) < len(self):
            raise wrong_argument(
                "indices",
                f"from {indices.min()} to {indices.max()}",
                f"indices of {len(self)} images",
            )
        indices = indices.long()
        return Split(self.images[indices], self.labels[indices])

    def to_split(self, image_size: Side | None = None) -> "Split":
        """Itself: intensities are not resized, `Levels` are."""
        if image_size is not None:
            raise wrong_value(
                "image_size", image_size, "None; images of floating point are not resized"
            )
        return self


@dataclass(frozen=True)
class Levels:
    """Labelled images in whole levels 0 … highest, of which `highest` becomes intensity 1, in less memory."""

    images: UInt8[Tensor, "images channels height width"]
    labels: Int[Tensor, " images"]
    highest: int = 255

    def __len__(self) -> int:
        return len(self.images)

    def take(self, indices: Int[Tensor, " chosen"]) -> "Levels":
        """The images at these indices, in this order."""
        return Levels(self.images[indices], self.labels[indices], self.highest)

    def to_split(self, image_size: Side | None = None) -> Split:
        """Intensities, of another size if one is given."""
        images = self.images if image_size is None else resize_bilinear(self.images, image_size)
        return Split(to_intensities(images, self.highest), self.labels)


@dataclass(frozen=True)
class Dataset:
    """A data set for classification, ready for training.

    >>> import torch
    >>> from teka.data import Dataset, Split
    >>> whole = Split(torch.rand(10, 1, 8, 8), torch.arange(10) % 2)
    >>> parts = [whole.take(torch.arange(*ends)) for ends in ((0, 6), (6, 8), (8, 10))]
    >>> Dataset("stripes", *parts, num_classes=2, image_size=(8, 8), in_channels=1).sizes
    {'image_size': (8, 8), 'in_channels': 1, 'num_classes': 2}
    """

    name: str  # it was loaded by
    train: Split
    validation: Split  # to stop and choose by; may be empty
    test: Split
    num_classes: int  # of which labels are 0 … num_classes − 1
    image_size: tuple[int, int]  # (height, width) in pixels
    in_channels: int

    def __post_init__(self) -> None:
        check_instance("name", self.name, str)
        check_sizes({"num_classes": self.num_classes, "in_channels": self.in_channels})
        height, width = check_image_size("image_size", self.image_size)
        for part in ("train", "validation", "test"):
            split: Split = getattr(self, part)
            check_instance(part, split, Split)
            check_tensor(f"{part}.images", split.images, "batch", self.in_channels, height, width)
            if len(split) and not (
                split.labels.min() >= 0 and split.labels.max() < self.num_classes
            ):
                came = f"from {split.labels.min().item()} to {split.labels.max().item()}"
                raise wrong_value(
                    f"{part}.labels", came, f"classes from 0 to {self.num_classes - 1}"
                )

    @property
    def sizes(self) -> dict[str, Any]:
        """What a model of its images is made with: image_size, in_channels and num_classes."""
        return {name: getattr(self, name) for name in ("image_size", "in_channels", "num_classes")}


def hold_out_test(num_images: int) -> tuple[Int[Tensor, " train"], Int[Tensor, " test"]]:
    """Indices for training and for test, a fifth of `numpy.random.default_rng(0).permutation(N)` at its end."""
    if num_images < TEST_SHARE:
        raise wrong_argument(
            "images", f"{num_images} in all", f"at least {TEST_SHARE}, a fifth of them for test"
        )
    order = torch.from_numpy(np.random.default_rng(TEST_SEED).permutation(num_images))
    num_train = num_images - num_images // TEST_SHARE
    return order[:num_train], order[num_train:]


class Parts(NamedTuple):
    """The images of a data set by the parts that it declares."""

    train: Levels | Split  # or all images, if no test part is declared
    test: Levels | Split | None
    num_classes: int
    validation: Levels | Split | None = None

    def with_test(self) -> "Parts":
        """Return the parts with a fifth of the images held out for test, if no test part is declared."""
        if self.test is not None:
            return self
        train, test = (self.train.take(indices) for indices in hold_out_test(len(self.train)))
        return self._replace(train=train, test=test)


def _join(first: Levels | Split, second: Levels | Split) -> Levels | Split:
    images, labels = (
        torch.cat([getattr(first, name), getattr(second, name)]) for name in ("images", "labels")
    )
    return dataclasses.replace(first, images=images, labels=labels)


def assemble(
    name: str,
    parts: Parts,
    image_size: Side | None,
    validation_size: int | None,
    train_size: int | None,
    seed: int,
) -> Dataset:
    """Divide the training images into training and validation, and convert all to intensities.

    In the order `numpy.random.default_rng(seed).permutation(N)` of the training images the last `validation_size` are
    for validation, and the first `train_size` of the others for training, by default all. By default the declared
    validation images are used, or a tenth of the training images if there are none. With a `validation_size` declared
    validation images are treated as the last training images. Every test image is kept.
    """
    train, test, num_classes, validation = parts.with_test()
    assert test is not None
    if validation is not None and validation_size is not None:
        if validation.images.shape[1:] != train.images.shape[1:] or type(validation) is not type(
            train
        ):
            raise wrong_value(
                "validation_size",
                validation_size,
                "None; the validation images are of another kind",
            )
        train, validation = _join(train, validation), None
    if not (len(train) and len(test)):
        raise wrong_argument(
            "images", f"{len(train)} for training and {len(test)} for test", "at least one of each"
        )
    if validation is not None:
        validation_size = 0
    elif validation_size is None:
        validation_size = len(train) // VALIDATION_SHARE
    check_sizes({"seed": seed}, 0)
    check_sizes({"validation_size": validation_size}, 0, len(train) - 1)
    rest = len(train) - validation_size
    check_sizes({"train_size": train_size}, most=rest, or_none=True)
    if image_size is not None:
        image_size = check_image_size("image_size", image_size)
        num_images = len(train) + len(test) + (0 if validation is None else len(validation))
        num_bytes = 4 * num_images * train.images.shape[1] * math.prod(image_size)
        check_memory("image_size", image_size, num_bytes, "images")
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(train)))
    held_out = train.take(order[rest:]) if validation is None else validation
    chosen = (train.take(order[: rest if train_size is None else train_size]), held_out, test)
    learned, validation, tested = (part.to_split(image_size) for part in chosen)
    channels, height, width = learned.images.shape[1:]
    return Dataset(name, learned, validation, tested, num_classes, (height, width), channels)
