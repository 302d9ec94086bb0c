"""Images of one's own: picture files in a folder for each class, or arrays with their labels."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from teka.checks import LARGEST, check_name, height_and_width
from teka.data.dataset import Levels, Parts, Side, Split, hold_out_test
from teka.data.pictures import open_picture, resize_bilinear
from teka.errors import wrong_shape, wrong_value
from teka.memory import check_memory

Array = np.ndarray | Tensor
PARTS = ("train", "test")
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
GREY = ("1", "L", "LA")
_BYTES = (*GREY, "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB")


def find_classes(folder: Path) -> tuple[list[Path], list[str]]:
    """The folders of a folder's parts, `train` and `test` or itself alone, and the sorted names of its classes."""
    names = [path.name for path in _visible(folder) if path.is_dir()]
    if not set(PARTS) <= set(names):
        return [folder], sort_classes(names)
    if others := sorted(set(names) - set(PARTS)):
        raise wrong_value(f"the sub-folders of {folder}", names, f"only train and test, or only classes; not {others}")
    classes = [path.name for path in _visible(folder / PARTS[0]) if path.is_dir()]
    return [folder / part for part in PARTS], sort_classes(classes)


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


def find_pictures(folder: Path) -> tuple[list[list[tuple[Path, int]]], list[str]]:
    """The picture files of each part of a folder with the indices of their classes, and the classes' names."""
    tops, classes = find_classes(folder)
    if len(classes) < 2:
        came = f"{len(classes)} ({', '.join(classes)})" if classes else "none"
        raise wrong_value(f"the classes of {tops[0]}", came, "at least two sub-folders of pictures")
    parts = []
    for top in tops:
        found: list[tuple[Path, int]] = []
        for place in filter(Path.is_dir, _visible(top)):
            if not (paths := _visible(place)):
                raise wrong_value(f"the pictures in {place}", "none", "at least one")
            for path in filter(Path.is_dir, paths):
                raise wrong_value(f"the pictures in {place}", f"the folder {path.name}", "files only")
            if place.name not in classes:
                raise wrong_value(f"the classes of {top}", place.name, f"those of {tops[0]}: {', '.join(classes)}")
            found += [(path, classes.index(place.name)) for path in paths]
        parts.append(found)
    return parts, classes


def read_image_folder(folder: Path, *, image_size: Side | None = None) -> tuple[Levels, Levels, int]:
    """Training and test images of a folder that has a sub-folder for each class, and the number of classes.

    Without parts a fifth is for test (`hold_out_test`). The images are grey if every file is stored as grey, else RGB;
    a palette counts as colour. Without an `image_size`, to which all are resized, all must be of one size.
    """
    parts, classes = find_pictures(folder)
    pictures = [one for part in parts for one in part]
    images = _read_all([path for path, _ in pictures], image_size)
    levels = Levels(images, torch.tensor([label for _, label in pictures]))
    counts = [len(part) for part in parts]
    indices = hold_out_test(len(levels)) if len(parts) == 1 else torch.arange(len(levels)).split(counts)
    train, test = (levels.take(part) for part in indices)
    return train, test, len(classes)


def _visible(folder: Path) -> list[Path]:
    return sorted((path for path in folder.iterdir() if not path.name.startswith(".")), key=lambda path: path.name)


def _read_all(paths: list[Path], image_size: Side | None) -> UInt8[Tensor, "images channels h w"]:
    images = []
    for path in paths:
        image = _read(path)
        if not images:
            size = image.shape[1:] if image_size is None else height_and_width("image_size", image_size)
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


def _read(path: Path) -> UInt8[Tensor, "channels h w"]:
    picture = open_picture(path)
    if picture.mode not in _BYTES:
        raise wrong_value(f"the pixel type of {path}", picture.mode, "8 bits a channel")
    if picture.has_transparency_data:
        lowest = np.asarray(picture.convert("RGBA"))[..., 3].min()
        if lowest < 255:
            raise wrong_value(f"the opacity of {path}", f"{lowest} of 255", "a picture without transparency")
    levels = np.array(picture.convert("L" if picture.mode in GREY else "RGB"))
    return torch.from_numpy(np.atleast_3d(levels)).permute(2, 0, 1)


def read_arrays(
    images: Array,
    labels: Array,
    *,
    test_images: Array | None = None,
    test_labels: Array | None = None,
    axes: str | None = None,
) -> Parts:
    """Training and test images from the arrays that `teka.data.from_arrays` takes, and the number of classes."""
    if (test_images is None) != (test_labels is None):
        raise wrong_value("test_labels", None if test_labels is None else "given", "given just when test_images are")
    known = _axes(np.shape(images)) if axes is None else axes
    check_name("axes", known, AXES)
    train = _part("images", images, labels, known)
    if test_images is None or test_labels is None:
        train, test = (train.take(indices) for indices in hold_out_test(len(train)))
    else:
        test = _part("test_images", test_images, test_labels, known)
    return train, test, 1 + max(int(part.labels.max()) if len(part) else 0 for part in (train, test))


def read_npz(path: Path) -> Parts:
    """Training and test images from an .npz file with names of `KEYS`; never unpickled.

    Validation images, if it has any, are the last of those for training. Labels may be of shape (N, 1).
    """
    try:
        loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise ValueError("it holds a single array")
        with loaded as file:
            arrays: dict[str, np.ndarray] = {}
            for key in file.files:
                check_name("its key", key, [name for names in KEYS.values() for name in names])
                argument = next(argument for argument, names in KEYS.items() if key in names)
                if argument in arrays:
                    raise ValueError(f"it has {argument} twice, the second time as {key}")
                given = file[key]
                arrays[argument] = given[:, 0] if "labels" in argument and given.shape[1:] == (1,) else given
        for key in ("images", "labels"):
            if key not in arrays:
                raise ValueError(f"it has no {key}, only {', '.join(arrays) or 'nothing'}")
            if (more := arrays.pop(f"validation_{key}", None)) is not None:
                arrays[key] = np.concatenate([arrays[key], more])
        axes = arrays.pop("axes", None)
        return read_arrays(**arrays, axes=None if axes is None else str(axes))
    except Exception as error:  # what a damaged or made-up header raises depends on where it is wrong
        raise ValueError(f"{path} is not an .npz file of images and labels: {error}") from error


def _axes(shape: Sequence[int]) -> str:
    if len(shape) == 3:
        return "NHW"
    possible = [axes for axes in AXES if len(axes) == len(shape) and shape[axes.index("C")] in (1, 3)]
    if len(possible) == 1:
        return possible[0]
    if len(shape) == 4:
        raise wrong_value("axes", None, f"'NHWC' or 'NCHW': the shape of images, {tuple(shape)}, does not tell")
    raise wrong_shape("images", shape, "(N, H, W), (N, H, W, C) or (N, C, H, W)")


def _as_array(given: Array) -> np.ndarray:
    if not isinstance(given, Tensor):
        return np.asarray(given)
    # NumPy has no bfloat16.
    return (given.float() if given.dtype == torch.bfloat16 else given).detach().cpu().numpy()


def _part(argument: str, images: Array, labels: Array, axes: str) -> Levels | Split:
    labels_argument = argument.replace("images", "labels")
    images, labels = map(_as_array, (images, labels))
    if images.ndim != len(axes):
        raise wrong_shape(argument, images.shape, f"({', '.join(axes)})")
    if labels.shape != images.shape[:1]:
        raise wrong_shape(labels_argument, labels.shape, f"({len(images)},), one label for each image")
    if labels.dtype.kind not in "iu":
        raise wrong_value(f"{labels_argument}.dtype", str(labels.dtype), "a whole number type")
    if labels.size and not 0 <= labels.min() <= labels.max() <= LARGEST:
        raise wrong_value(labels_argument, f"from {labels.min()} to {labels.max()}", f"classes from 0 to {LARGEST}")
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        expected = "uint8 for levels 0 … 255, or floating point for intensities from 0 to 1"
        raise wrong_value(f"{argument}.dtype", str(images.dtype), expected)
    ordered = images[:, None] if axes == "NHW" else images.transpose([axes.index(axis) for axis in "NCHW"])
    # Copies, so that neither later changes of the arrays nor their strides or byte order matter.
    classes = torch.from_numpy(labels.astype(np.int64))
    if images.dtype == np.uint8:
        return Levels(torch.from_numpy(np.array(ordered, order="C")), classes)
    intensities = np.array(ordered, dtype=np.float32, order="C")
    lowest, highest = (intensities.min(), intensities.max()) if intensities.size else (0, 0)
    if not (lowest >= 0 and highest <= 1):
        raise wrong_value(argument, f"from {lowest} to {highest}", "intensities from 0 to 1, or uint8 levels")
    return Split(torch.from_numpy(intensities), classes)
