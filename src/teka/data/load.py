"""Loading of data sets, by name or path or from arrays."""

from pathlib import Path

import numpy as np
from torch import Tensor

from teka.checks import check_flags, check_image_size, check_name, check_path
from teka.data.custom_images import (
    copy_arrays_to_dataset,
    is_picture_dataset,
    read_npz,
    read_picture_dataset,
)
from teka.data.dataset import Dataset, ImageSize, divide_into_splits
from teka.data.published import DIGIT_SIZE, PUBLISHED_DATASETS, read_digits
from teka.errors import unknown_name_error
from teka.files import expand_user, make_directory

NAMES = ("digits", *PUBLISHED_DATASETS)


def load(
    name: str | Path,
    *,
    data_dir: str | Path | None = None,
    image_size: ImageSize | None = None,
    validation_size: int | None = None,
    train_size: int | None = None,
    seed: int = 0,
    stream: bool | None = None,
) -> Dataset:
    """Load a data set by its name or path, and divide it into training, validation and test images.

    The training images are shuffled by `numpy.random.default_rng(seed).permutation(N)`. Of the
    shuffled images, the last `validation_size` are for validation, and the first `train_size` of
    the others are for training. If your own data set has no test images, a fifth of its images is
    held out for testing. This fifth is the same for every seed.

    >>> import teka
    >>> digits = teka.data.load("digits")
    >>> digits.train.images.shape, len(digits.test)
    (torch.Size([1300, 1, 16, 16]), 360)

    Args:
        name: Name or path of the data set:

            - "digits", which needs scikit-learn but no files,
            - "mnist", "fashion-mnist" or "cifar10",
            - a folder with a sub-folder of pictures for each class, or with folders `train`, `val`
              and `test` that contain these sub-folders,
            - a CSV file with the columns file and label,
            - an .npz file with the arrays of `teka.data.from_arrays`.

            Write `./mnist` for a folder that has the name of a data set.
        data_dir: Folder with the files of published data sets. Relative paths are first looked up
            in this folder.
        image_size: New size of the images in pixels, (height, width) or the side of a square. For
            digits, the size of the canvas around the 8×8 images, 16 by default.
        validation_size: Number of validation images. The default is 137 for digits, 5,000 for other
            published data sets, and for your own data the declared validation images or a tenth of
            the training images.
        train_size: Number of training images. By default, all images that remain.
        seed: Seed of the split. Keep it when the seed of a run changes, so that runs are compared
            on the same split.
        stream: Read pictures from their files in every epoch instead of once. The default is True
            if all intensities need more than a quarter of the memory. Data sets that are not
            picture files are always held in memory.

    Raises:
        ImportError: scikit-learn is not installed (for digits), or Pillow (for pictures and
            resizing).
        ValueError: The name is unknown, a size is out of range, or files are missing or damaged.
    """
    check_path("name", name)
    if data_dir is not None:
        check_path("data_dir", data_dir)
    if stream is not None:
        check_flags({"stream": stream})
    name = str(name)
    if image_size is not None:
        image_size = check_image_size(
            "image_size", image_size, smallest=DIGIT_SIZE if name == "digits" else 1
        )
    if name == "digits":
        raw = read_digits(image_size or (16, 16))
        image_size = None
        validation_size = 137 if validation_size is None else validation_size
    elif name in PUBLISHED_DATASETS:
        raw = PUBLISHED_DATASETS[name].read(data_dir)
        validation_size = 5000 if validation_size is None else validation_size
    else:
        path = find_dataset_path(name, data_dir)
        if path is None:
            paths = " or ".join(map(str, _list_candidate_paths(name, data_dir)))
            raise unknown_name_error(
                "the name of the data set",
                name,
                NAMES,
                f"There is no folder, CSV file or .npz file at {paths}. If the data set of a run "
                "has moved, pass its parent folder as data_dir.",
            )
        raw = (
            read_picture_dataset(path, image_size=image_size)
            if is_picture_dataset(path)
            else read_npz(path)
        )
    return divide_into_splits(
        name,
        raw,
        image_size=image_size,
        validation_size=validation_size,
        train_size=train_size,
        seed=seed,
        stream=stream,
    )


def from_arrays(
    images: np.ndarray | Tensor,
    labels: np.ndarray | Tensor,
    *,
    test_images: np.ndarray | Tensor | None = None,
    test_labels: np.ndarray | Tensor | None = None,
    axes: str | None = None,
    name: str = "arrays",
    image_size: ImageSize | None = None,
    validation_size: int | None = None,
    train_size: int | None = None,
    seed: int = 0,
) -> Dataset:
    """Create a data set from copies of your own arrays or tensors.

    >>> import numpy as np, teka
    >>> images = np.random.default_rng(0).integers(0, 256, (50, 8, 8), dtype=np.uint8)
    >>> dataset = teka.data.from_arrays(images, np.arange(50) % 2)
    >>> len(dataset.train), len(dataset.validation), len(dataset.test)
    (36, 4, 10)

    Args:
        images: Levels from 0 to 255 (uint8), or intensities from 0 to 1 (floating point).
        labels: Class of each image, integers from 0, shape (N,).
        test_images: Test images with the same axes. By default a fifth of `images`, the same for
            every seed.
        test_labels: Class of each test image.
        axes: Order of the axes: "NHW" (gray), "NHWC" or "NCHW". It is required if the shape is
            ambiguous: both or neither of the second and the last axis have size 1 or 3.
        name: Name of the data set.
        image_size: As in `load`, but only for uint8.
        validation_size: As in `load`. By default a tenth of the training images.
        train_size: As in `load`.
        seed: As in `load`.

    Raises:
        ValueError: An array has another shape, dtype or range, or sizes do not match.
    """
    arrays = {
        "images": images,
        "labels": labels,
        "test_images": test_images,
        "test_labels": test_labels,
    }
    return divide_into_splits(
        name,
        copy_arrays_to_dataset(arrays, axes),
        image_size=image_size,
        validation_size=validation_size,
        train_size=train_size,
        seed=seed,
    )


def download(name: str, data_dir: str | Path = "data") -> Path:
    """Download a published data set, so that `load(name, data_dir=data_dir)` finds it.

    Complete files are kept, and damaged files are replaced. Files of MNIST and Fashion-MNIST are
    checked by the SHA-256 of their unpacked content. For CIFAR-10, the archive is checked by its
    hash, and unpacked files only by their size and labels, because no hashes of them are published.
    A progress bar is shown on stderr.

    >>> import teka
    >>> teka.data.download("mnist", "data")  # doctest: +SKIP
    PosixPath('data/mnist')

    Args:
        name: "mnist", "fashion-mnist" or "cifar10".
        data_dir: Folder for the files. It is created if necessary.

    Returns:
        The folder with the files.

    Raises:
        ImportError: pooch is not installed.
        ConnectionError: A file could not be downloaded in several attempts.
    """
    check_name("name", name, PUBLISHED_DATASETS)
    return PUBLISHED_DATASETS[name].download(make_directory("data_dir", data_dir))


def find_dataset_path(name: str, data_dir: str | Path | None) -> Path | None:
    """Return the path of the folder or file of a data set, or None if it does not exist.

    A relative path is first looked up in `data_dir`, and then in the working directory.
    """
    return next((path for path in _list_candidate_paths(name, data_dir) if path.exists()), None)


def _list_candidate_paths(name: str, data_dir: str | Path | None) -> list[Path]:
    path = expand_user(name)
    return [path] if data_dir is None else [expand_user(data_dir) / path, path]
