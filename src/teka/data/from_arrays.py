"""A data set from arrays."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from teka.data.arrays import read_arrays
from teka.data.assemble import assemble
from teka.data.dataset import Dataset
from teka.data.sizes import height_and_width


def from_arrays(
    images: np.ndarray | Tensor,
    labels: np.ndarray | Tensor,
    *,
    test_images: np.ndarray | Tensor | None = None,
    test_labels: np.ndarray | Tensor | None = None,
    axes: str | None = None,
    name: str = "arrays",
    image_size: int | Sequence[int] | None = None,
    validation_size: int | None = None,
    train_size: int | None = None,
    seed: int = 0,
) -> Dataset:
    """A data set from arrays or tensors, parted as `load` does it; they are copied.

    Args:
        images: Bytes, levels 0 … 255, or floating point intensities in [0, 1]; background, where there is one, is 0.
        labels: Class of each image, whole numbers from 0, shape (N,).
        test_images: Images for test, in the same axes; by default a fifth of `images`, the same whatever the seed.
        test_labels: Their labels.
        axes: Order of the axes: "NHW" (grey), "NHWC" or "NCHW". It may be left out for three axes, and for four if
            just one of the second and the last has size 1 or 3.
        name: What to call the data set.
        image_size: One side or (height, width) in pixels to which bytes are resized bilinearly; None for floating
            point, which is left as it is.
        validation_size: Number of validation images, 0 for none; by default a tenth of the training images.
        train_size: Number of training images; by default all that are not for validation.
        seed: Seed of the split into training and validation.

    Raises:
        ValueError: A wrong shape or type, a value out of range, axes that are unknown or cannot be told, test images
            without labels, or a size that does not fit.
    """
    if image_size is not None:
        image_size = height_and_width("image_size", image_size)
    train, test, num_classes = read_arrays(images, labels, test_images=test_images, test_labels=test_labels, axes=axes)
    return assemble(
        name,
        train,
        test,
        num_classes,
        image_size=image_size,
        validation_size=validation_size,
        train_size=train_size,
        seed=seed,
    )
