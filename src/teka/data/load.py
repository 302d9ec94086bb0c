"""Data sets by name or path."""

from pathlib import Path

import numpy as np
from torch import Tensor

from teka.checks import check_image_size, check_instance, check_name, check_sizes
from teka.data.catalogue import DIGIT_NAMES, PUBLISHED_DATASETS, read_digits
from teka.data.dataset import Dataset, Parts, Side, assemble
from teka.data.fetch import Fetcher
from teka.data.own_images import find_classes, read_arrays, read_image_folder, read_npz
from teka.data.published import PublishedDataset
from teka.errors import unknown_name, wrong_type, wrong_value
from teka.files import expand_user, make_directory

NAMES = ("digits", *PUBLISHED_DATASETS)


def load(
    name: str,
    *,
    data_dir: str | Path | None = None,
    image_size: Side | None = None,
    validation_size: int | None = None,
    train_size: int | None = None,
    seed: int = 0,
) -> Dataset:
    """Load a data set and part its training images into training and validation.

    In the order `numpy.random.default_rng(seed).permutation(N)` of the training images the last `validation_size` are
    for validation, the first `train_size` of the others for training. For test are all published test images in their
    order; of one's own images without a test part it is a fifth, the same whatever the seed.

    Args:
        name: "digits" (needs scikit-learn and no files), "mnist", "fashion-mnist" or "cifar10"; or the path of a folder
            with a sub-folder of pictures for each class, maybe within `train`, `val` and `test`, or of an .npz file
            with the arrays of `teka.data.from_arrays`. A folder that has the name of a data set is meant by `./mnist`.
        data_dir: Folder with the published files, or with a folder of the data set's name that has them (for CIFAR-10
            also `cifar-10-batches-bin`, as its archive unpacks); Fashion-MNIST is found without it where Debian's
            package dataset-fashion-mnist is installed. A path that is not absolute is looked for in it first.
        image_size: One side or (height, width) in pixels. For digits the canvas that the 8×8 images lie in the middle
            of, 16 by default; for the others the size to which they are resized bilinearly, by default as published.
        validation_size: Validation images; by default 137 of digits, 5,000 of others published, and of your own images
            those declared for validation, or a tenth of the training images.
        train_size: Number of training images; by default all that are not for validation.
        seed: Seed of this split alone. Leave it when the seed of a run changes: runs are compared on the same split.

    Raises:
        ImportError: digits without scikit-learn, or a folder of pictures or a resizing without Pillow.
        ValueError: An unknown name, a size that does not fit, or files that are missing, damaged or others.
    """
    check_path("name", name)
    check_path("data_dir", data_dir, or_none=True)
    name = str(name)
    if image_size is not None:
        image_size = check_image_size(
            "image_size", image_size, smallest=8 if name == "digits" else 1
        )
    check_sizes({"seed": seed}, 0)
    if name == "digits":
        parts, image_size = (
            Parts(*read_digits(16 if image_size is None else image_size), len(DIGIT_NAMES)),
            None,
        )
        validation_size = 137 if validation_size is None else validation_size
    elif name in PUBLISHED_DATASETS:
        parts = Parts(
            *PUBLISHED_DATASETS[name].read(data_dir), len(PUBLISHED_DATASETS[name].class_names)
        )
        validation_size = 5000 if validation_size is None else validation_size
    else:
        path = find_path(name, data_dir)
        if path is None:
            looked = " or ".join(dict.fromkeys(map(str, _places(name, data_dir))))
            raise ValueError(
                f"{unknown_name('name', name, NAMES)} No folder of images or .npz file is at {looked}."
            )
        parts = read_image_folder(path, image_size=image_size) if path.is_dir() else read_npz(path)
    return assemble(name, parts, image_size, validation_size, train_size, seed)


def from_arrays(
    images: np.ndarray | Tensor,
    labels: np.ndarray | Tensor,
    *,
    test_images: np.ndarray | Tensor | None = None,
    test_labels: np.ndarray | Tensor | None = None,
    axes: str | None = None,
    name: str = "arrays",
    image_size: Side | None = None,
    validation_size: int | None = None,
    train_size: int | None = None,
    seed: int = 0,
) -> Dataset:
    """A data set of arrays or tensors, which are copied; the sizes and the seed part them as those of `load` do.

    Args:
        images: Bytes, levels 0 … 255, or floating point intensities in [0, 1]; background, where there is one, is 0.
        labels: Class of each image, whole numbers from 0, shape (N,).
        test_images: Images for test, in the same axes; by default a fifth of `images`, the same whatever the seed.
        test_labels: Their labels.
        axes: "NHW" (grey), "NHWC" or "NCHW"; needed if both or neither of the second and the last has size 1 or 3.
        name: What to call the data set.
        image_size: As for `load`, for bytes; None for floating point, which is left as it is.
        validation_size: As for `load`, a tenth of the training images by default.
        train_size: As for `load`.
        seed: As for `load`.
    """
    check_instance("name", name, str)
    parts = read_arrays(images, labels, test_images=test_images, test_labels=test_labels, axes=axes)
    return assemble(name, parts, image_size, validation_size, train_size, seed)


def download(name: str, data_dir: str | Path = "data", *, fetcher: Fetcher | None = None) -> Path:
    """Make sure that a folder holds the files of a data set; `load(name, data_dir=data_dir)` then reads them.

    Whole files that are there are left alone, and damaged ones replaced. The IDX files are checked by the SHA-256 of
    their unpacked content; CIFAR-10 by the MD5 of its archive, which is all that its authors publish, and of a copy
    that is there already, only sizes and labels.

    Args:
        name: "mnist", "fashion-mnist" or "cifar10".
        data_dir: The folder, made if it is missing; the files go into one of the data set's name within.
        fetcher: How patient to be with servers.

    Raises:
        ImportError: Something is to be fetched, and pooch is not installed.
        ConnectionError: No address gave a file.
    """
    dataset = published_dataset(name)
    check_path("data_dir", data_dir)
    if fetcher is not None:
        check_instance("fetcher", fetcher, Fetcher)
    folder = make_directory("data_dir", expand_user(data_dir))
    return dataset.download(folder, Fetcher() if fetcher is None else fetcher)


def published_dataset(name: str) -> PublishedDataset:
    """The data set of this name, if it has files on the web."""
    check_instance("name", name, str)
    if name == "digits":
        raise wrong_value(
            "name", name, "a data set with files; the digits come inside scikit-learn"
        )
    check_name("name", name, PUBLISHED_DATASETS)
    return PUBLISHED_DATASETS[name]


def class_names(name: str, *, data_dir: str | Path | None = None) -> tuple[str, ...] | None:
    """A name for each class of what `load` takes, in the order of its labels; None for arrays, which have none."""
    if name == "digits":
        return DIGIT_NAMES
    if name in PUBLISHED_DATASETS:
        return PUBLISHED_DATASETS[name].class_names
    path = find_path(name, data_dir)
    return tuple(find_classes(path)) if path is not None and path.is_dir() else None


def check_path(argument: str, path: object, *, or_none: bool = False) -> None:
    """Check that an argument is a path that a file system can have."""
    if or_none and path is None:
        return
    if not isinstance(path, (str, Path)):
        raise wrong_type(argument, path, "a string or a path")
    if "\0" in str(path) or not str(path):
        raise wrong_value(argument, str(path), "a path")


def find_path(name: str, data_dir: str | Path | None = None) -> Path | None:
    """The folder or file that a path means, looked for in `data_dir` first; None if there is none."""
    return next((place for place in _places(name, data_dir) if place.exists()), None)


def _places(name: str, data_dir: str | Path | None) -> list[Path]:
    given = expand_user(name)
    return [given] if data_dir is None else [expand_user(data_dir) / given, given]
