"""From the training and test images of any source to a data set."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from teka.data.dataset import Dataset, Split
from teka.data.levels import Levels
from teka.data.resize import resize_bilinear
from teka.data.sizes import height_and_width, whole_number
from teka.errors import wrong_value
from teka.memory import check_memory

_VALIDATION_SHARE = 10


def assemble(
    name: str,
    train: Levels | Split,
    test: Levels | Split,
    num_classes: int,
    *,
    image_size: int | Sequence[int] | None,
    validation_size: int | None,
    train_size: int | None,
    seed: int,
) -> Dataset:
    """Part training images into training and validation, and make intensities of them; every test image is kept.

    Args:
        name: What to call the data set.
        train: Images to part, in the order `numpy.random.default_rng(seed).permutation(N)`: the last `validation_size`
            are for validation, the first `train_size` of the others for training.
        test: Images for test.
        num_classes: Number of classes.
        image_size: Size that levels are resized to bilinearly; None leaves them as they are.
        validation_size: Number of validation images; by default a tenth of the training images, rounded down.
        train_size: Number of training images; by default all that are not for validation.
        seed: Seed of the order.

    Raises:
        ValueError: A size that does not fit, or one to resize to for images that are not levels.
    """
    chosen = len(train) // _VALIDATION_SHARE if validation_size is None else validation_size
    train_indices, validation_indices = _indices(len(train), chosen, train_size, seed)
    if image_size is not None:
        height, width = height_and_width("image_size", image_size)
        num_bytes = 4 * (len(train) + len(test)) * train.images.shape[1] * height * width
        check_memory("image_size", image_size, num_bytes, "images")
    parts = [train.take(train_indices), train.take(validation_indices), test]
    splits = [_to_split(part, image_size) for part in parts]
    channels, height, width = splits[0].images.shape[1:]
    return Dataset(name, splits[0], splits[1], splits[2], num_classes, (height, width), channels)


def _indices(
    num_images: int, validation_size: int, train_size: int | None, seed: int
) -> tuple[Int[Tensor, " train"], Int[Tensor, " validation"]]:
    whole_number("seed", seed, smallest=0)
    whole_number("validation_size", validation_size, smallest=0, largest=num_images - 1)
    rest = num_images - validation_size
    if train_size is not None:
        whole_number("train_size", train_size, smallest=1, largest=rest)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(num_images))
    return order[: rest if train_size is None else train_size], order[rest:]


def _to_split(part: Levels | Split, image_size: int | Sequence[int] | None) -> Split:
    if isinstance(part, Levels):
        if image_size is not None:
            part = Levels(resize_bilinear(part.images, image_size), part.labels, part.highest)
        return part.to_split()
    if image_size is not None:
        raise wrong_value("image_size", image_size, "None: images of floating point are not resized")
    return part
