"""Images of one's own: picture files in a folder for each class, or arrays with their labels."""

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from teka.checks import MAX_SIZE, check_dense, check_image_size, check_name
from teka.data.dataset import Levels, Parts, Side, Split
from teka.data.pictures import read_picture, resize_bilinear
from teka.errors import first_line, wrong_argument, wrong_shape, wrong_value
from teka.files import check_unpacked_size
from teka.memory import check_memory

Array = np.ndarray | Tensor
# What the folders of a data set's parts may be called, in any case.
PART_NAMES = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}
AXES = ("NHW", "NHWC", "NCHW")
# What an .npz file may call its arrays: our names first, then those of Keras, MedMNIST and scikit-learn.
KEYS = {
    "images": ("images", "train_images", "x_train", "X_train", "x", "X", "data"),
    "labels": ("labels", "train_labels", "y_train", "y", "target"),
    "test_images": ("test_images", "x_test", "X_test"),
    "test_labels": ("test_labels", "y_test"),
    "validation_images": ("validation_images", "val_images", "x_val"),
    "validation_labels": ("validation_labels", "val_labels", "y_val"),
    "axes": ("axes",),
}


def find_parts(folder: Path) -> dict[str, Path]:
    """Return the folders of the parts "train", "test" and maybe "validation" that a folder declares, or none.

    A folder declares parts if it has a sub-folder for training and one for validation or test. Without one for test,
    that for validation is the test part.
    """
    names = [path.name for path in _visible(folder) if path.is_dir()]
    parts: dict[str, Path] = {}
    others = []
    for name in names:
        part = next((part for part, known in PART_NAMES.items() if name.lower() in known), None)
        if part is None:
            others.append(name)
        elif part in parts:
            raise wrong_value(
                f"the sub-folders of {folder}",
                names,
                f"one for {part}, not {parts[part].name} and {name}",
            )
        else:
            parts[part] = folder / name
    if "train" not in parts or len(parts) < 2:
        return {}
    if others:
        expected = f"only parts (train, val, test) or only classes, not {others}"
        raise wrong_value(f"the sub-folders of {folder}", names, expected)
    if "test" not in parts:
        parts["test"] = parts.pop("validation")
    return parts


def find_classes(folder: Path) -> list[str]:
    """Return the sorted names of the classes of a folder of pictures."""
    top = find_parts(folder).get("train", folder)
    return sort_classes([path.name for path in _visible(top) if path.is_dir()])


def sort_classes(names: Sequence[str]) -> list[str]:
    """Sort class names: by number if all of them are different integers, else as words.

    >>> sort_classes(["10", "2", "0"]), sort_classes(["class_10", "class_2"])
    (['0', '2', '10'], ['class_10', 'class_2'])
    """
    numbers = class_numbers(names)
    if numbers is None:
        return sorted(names)
    return [name for _, name in sorted(zip(numbers, names, strict=True))]


def class_numbers(names: Sequence[str]) -> list[int] | None:
    """Return the integers that class names are, or None if they are not all different integers."""
    if not names or not all(re.fullmatch(r"-?[0-9]+", name) for name in names):
        return None
    numbers = [int(name) for name in names]
    return numbers if len(set(numbers)) == len(numbers) else None


def find_pictures(folder: Path) -> tuple[dict[str, list[tuple[Path, int]]], list[str]]:
    """Return the picture files of each part with the indices of their classes, and the names of the classes.

    A folder without parts has the one part "all".
    """
    tops, classes = find_parts(folder) or {"all": folder}, find_classes(folder)
    first = tops.get("train", folder)
    if len(classes) < 2:
        came = f"{len(classes)} ({', '.join(classes)})" if classes else "none"
        raise wrong_value(f"the classes of {first}", came, "at least two sub-folders of pictures")
    parts = {}
    for part, top in tops.items():
        found: list[tuple[Path, int]] = []
        for place in filter(Path.is_dir, _visible(top)):
            if not (paths := _visible(place)):
                raise wrong_argument(f"the pictures in {place}", "none", "at least one")
            for path in filter(Path.is_dir, paths):
                raise wrong_argument(
                    f"the pictures in {place}", f"the folder {path.name}", "files only"
                )
            if place.name not in classes:
                raise wrong_value(
                    f"the classes of {top}", place.name, f"those of {first}: {', '.join(classes)}"
                )
            found += [(path, classes.index(place.name)) for path in paths]
        parts[part] = found
    return parts, classes


def read_image_folder(folder: Path, *, image_size: Side | None = None) -> Parts:
    """Return the images of a folder that has a sub-folder for each class, maybe within parts.

    The images are gray if every file is stored as gray, else RGB.
    Without an `image_size`, to which all are resized, all must be of one size.
    """
    parts, classes = find_pictures(folder)
    pictures = [one for part in parts.values() for one in part]
    images = _read_all([path for path, _ in pictures], image_size)
    levels = Levels(images, torch.tensor([label for _, label in pictures]))
    if "all" in parts:
        return Parts(levels, None, len(classes))
    indices = torch.arange(len(levels)).split([len(part) for part in parts.values()])
    by_part = {part: levels.take(chosen) for part, chosen in zip(parts, indices, strict=True)}
    return Parts(by_part["train"], by_part["test"], len(classes), by_part.get("validation"))


def _visible(folder: Path) -> list[Path]:
    return sorted(
        (path for path in folder.iterdir() if not path.name.startswith(".")),
        key=lambda path: path.name,
    )


def _read_all(paths: list[Path], image_size: Side | None) -> UInt8[Tensor, "images channels h w"]:
    images = []
    for path in paths:
        image = read_picture(path, in_channels=None)
        if not images:
            size = (
                image.shape[1:]
                if image_size is None
                else check_image_size("image_size", image_size)
            )
            check_memory("image_size", image_size, len(paths) * size[0] * size[1], "pictures")
        images.append(image if image_size is None else resize_bilinear(image[None], image_size)[0])
        if images[-1].shape[1:] != images[0].shape[1:]:
            (height, width), (first_height, first_width) = images[-1].shape[1:], images[0].shape[1:]
            raise ValueError(
                f"{path} has {height} × {width} pixels, expected the {first_height} × {first_width} of {paths[0]}; "
                "with image_size every image is resized"
            )
    channels = max(len(image) for image in images)
    return torch.stack([image.expand(channels, -1, -1) for image in images])


def read_arrays(
    images: Array,
    labels: Array,
    *,
    test_images: Array | None = None,
    test_labels: Array | None = None,
    validation_images: Array | None = None,
    validation_labels: Array | None = None,
    axes: str | None = None,
) -> Parts:
    """Return the images of the arrays that `teka.data.from_arrays` takes, with validation images if there are any.

    Without test images the validation images are for test.
    """
    known = _axes(_as_array("images", images).shape) if axes is None else axes
    check_name("axes", known, AXES)
    train = _part("images", images, labels, known)
    others = []
    for part, part_images, part_labels in (
        ("test", test_images, test_labels),
        ("validation", validation_images, validation_labels),
    ):
        if (part_images is None) != (part_labels is None):
            came = None if part_labels is None else "given"
            raise wrong_value(f"{part}_labels", came, f"given just when {part}_images are")
        if part_images is not None and part_labels is not None:
            others.append(_part(f"{part}_images", part_images, part_labels, known))
    num_classes = 1 + max(int(part.labels.max()) if len(part) else 0 for part in (train, *others))
    return Parts(
        train, others[0] if others else None, num_classes, others[1] if len(others) > 1 else None
    )


def read_npz(path: Path) -> Parts:
    """Return the images of an .npz file with names of `KEYS`, of which nothing is unpickled.

    Labels may be of shape (N, 1).
    """
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("it is not a zip archive")
        loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise ValueError("it holds a single array")
        with loaded as file:
            arrays: dict[str, np.ndarray] = {}
            for key in file.files:
                check_name("its key", key, [name for names in KEYS.values() for name in names])
            check_unpacked_size(file.zip, path)
            for key in file.files:
                argument = next(argument for argument, names in KEYS.items() if key in names)
                if argument in arrays:
                    raise ValueError(f"it has {argument} twice, the second time as {key}")
                given = file[key]
                arrays[argument] = (
                    given[:, 0] if "labels" in argument and given.shape[1:] == (1,) else given
                )
        for key in ("images", "labels"):
            if key not in arrays:
                raise ValueError(f"it has no {key}, only {', '.join(arrays) or 'nothing'}")
        axes = arrays.pop("axes", None)
        return read_arrays(**arrays, axes=None if axes is None else str(axes))
    except (
        Exception
    ) as error:  # what a damaged or made-up header raises depends on where it is wrong
        raise wrong_value(
            "name", str(path), f"an .npz file of images and labels ({first_line(error)})"
        ) from error


def _axes(shape: Sequence[int]) -> str:
    if len(shape) == 3:
        return "NHW"
    possible = [
        axes for axes in AXES if len(axes) == len(shape) and shape[axes.index("C")] in (1, 3)
    ]
    if len(possible) == 1:
        return possible[0]
    if len(shape) == 4:
        raise wrong_value(
            "axes", None, f"'NHWC' or 'NCHW': the shape of images, {tuple(shape)}, does not tell"
        )
    raise wrong_shape("images", shape, "(N, H, W), (N, H, W, C) or (N, C, H, W)")


def _as_array(argument: str, given: Array) -> np.ndarray:
    if not isinstance(given, Tensor):
        try:
            return np.asarray(given)
        except (ValueError, MemoryError) as error:
            raise wrong_value(
                argument, type(given).__name__, f"an array ({first_line(error)})"
            ) from error
    check_dense(argument, given)
    # NumPy has no bfloat16.
    return (given.float() if given.dtype == torch.bfloat16 else given).detach().cpu().numpy()


def _part(argument: str, images: Array, labels: Array, axes: str) -> Levels | Split:
    labels_argument = argument.replace("images", "labels")
    images, labels = _as_array(argument, images), _as_array(labels_argument, labels)
    if images.ndim != len(axes):
        raise wrong_shape(argument, images.shape, f"({', '.join(axes)})")
    if labels.shape != images.shape[:1]:
        raise wrong_shape(
            labels_argument, labels.shape, f"({len(images)},), one label for each image"
        )
    if labels.dtype.kind not in "iu":
        raise wrong_value(f"{labels_argument}.dtype", str(labels.dtype), "a whole number type")
    if labels.size and not 0 <= labels.min() <= labels.max() <= MAX_SIZE:
        raise wrong_argument(
            labels_argument,
            f"from {labels.min()} to {labels.max()}",
            f"classes from 0 to {MAX_SIZE}",
        )
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        expected = "uint8 for levels 0 … 255, or floating point for intensities from 0 to 1"
        raise wrong_value(f"{argument}.dtype", str(images.dtype), expected)
    ordered = (
        images[:, None]
        if axes == "NHW"
        else images.transpose([axes.index(axis) for axis in "NCHW"])
    )
    # Copies, so that neither later changes of the arrays nor their strides or byte order matter.
    classes = torch.from_numpy(labels.astype(np.int64))
    if images.dtype == np.uint8:
        return Levels(torch.from_numpy(np.array(ordered, order="C")), classes)
    intensities = np.array(ordered, dtype=np.float32, order="C")
    lowest, highest = (intensities.min(), intensities.max()) if intensities.size else (0, 0)
    if not (lowest >= 0 and highest <= 1):
        raise wrong_argument(
            argument, f"from {lowest} to {highest}", "intensities from 0 to 1, or uint8 levels"
        )
    return Split(torch.from_numpy(intensities), classes)
