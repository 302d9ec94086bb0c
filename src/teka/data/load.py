"""Data sets by name."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from teka.data.cifar10 import CIFAR10
from teka.data.dataset import Dataset
from teka.data.digits import read_digits
from teka.data.levels import Levels
from teka.data.mnist import FASHION_MNIST, MNIST
from teka.data.resize import resize_bilinear
from teka.data.sizes import height_and_width, whole_number
from teka.errors import unknown_name

PUBLISHED_DATASETS = {dataset.name: dataset for dataset in (MNIST, FASHION_MNIST, CIFAR10)}
NAMES = ("digits", *PUBLISHED_DATASETS)


def load(
    name: str,
    *,
    data_dir: str | Path | None = None,
    image_size: int | Sequence[int] | None = None,
    validation_size: int | None = None,
    train_size: int | None = None,
    seed: int = 0,
) -> Dataset:
    """Load a data set and part its training images into training and validation.

    The training images are put in the order `numpy.random.default_rng(seed).permutation(N)`; the last
    `validation_size` of them are for validation, the first `train_size` of the others for training, so that a smaller
    training set is part of a larger one. The test images are the published ones, in their order.

    Args:
        name: "digits" (needs scikit-learn and no files), "mnist", "fashion-mnist" or "cifar10".
        data_dir: Folder with the published files, or with a folder of the data set's name that has them (for CIFAR-10
            also `cifar-10-batches-bin`, as its archive unpacks); digits need none, and Fashion-MNIST is found without
            it where Debian's package dataset-fashion-mnist is installed.
        image_size: One side or (height, width) in pixels. For digits the canvas that the 8×8 images lie in the
            middle of, 16 by default; for the others the size to which they are resized bilinearly, by default as
            published, untouched: 28, and 32 of CIFAR-10.
        validation_size: Number of validation images, 0 for none; by default 137 of digits, 5,000 of the others.
        train_size: Number of training images; by default all that are not for validation.
        seed: Seed of this split alone. Leave it as it is when the seed of a run changes, so that runs are compared
            on the same split.

    Raises:
        ImportError: digits without scikit-learn.
        ValueError: An unknown name, a size that does not fit, or files that are missing or not the published ones.
    """
    if name not in NAMES:
        raise unknown_name("name", name, NAMES)
    whole_number("seed", seed, smallest=0)
    if image_size is not None:
        image_size = height_and_width("image_size", image_size, smallest=8 if name == "digits" else 1)
    if name == "digits":
        train, test = read_digits(16 if image_size is None else image_size)
        num_classes, default_validation_size = 10, 137
    else:
        source = PUBLISHED_DATASETS[name]
        train, test = source.read(data_dir)
        num_classes, default_validation_size = source.num_classes, 5000
    chosen = default_validation_size if validation_size is None else validation_size
    train_indices, validation_indices = _part(len(train), chosen, train_size, seed)
    parts = [train.take(train_indices), train.take(validation_indices), test]
    if image_size is not None and name != "digits":
        parts = [Levels(resize_bilinear(part.images, image_size), part.labels, part.highest) for part in parts]
    splits = [part.to_split() for part in parts]
    channels, height, width = splits[0].images.shape[1:]
    return Dataset(name, splits[0], splits[1], splits[2], num_classes, (height, width), channels)


def _part(
    num_images: int, validation_size: int, train_size: int | None, seed: int
) -> tuple[Int[Tensor, " train"], Int[Tensor, " validation"]]:
    whole_number("validation_size", validation_size, smallest=0, largest=num_images - 1)
    rest = num_images - validation_size
    if train_size is not None:
        whole_number("train_size", train_size, smallest=1, largest=rest)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(num_images))
    return order[: rest if train_size is None else train_size], order[rest:]
