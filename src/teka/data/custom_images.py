"""Functions that load your own labeled images from picture files or NumPy arrays."""

import csv
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from teka.checks import check_dense_tensor, check_name
from teka.data.dataset import SPLITS, RawDataset, Split
from teka.data.pictures import GRAY_MODES, PictureFiles, read_picture, read_picture_header
from teka.errors import first_line_of_error, wrong_argument, wrong_shape, wrong_value
from teka.files import check_unpacked_size

Array = np.ndarray | Tensor
# Lowercase folder names of the splits.
SPLIT_FOLDERS = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
}
AXES = ("NHW", "NHWC", "NCHW")
# Names of arrays in an .npz file for each argument of `teka.data.from_arrays`, as in teka,
# MedMNIST, Keras and scikit-learn.
ARRAY_NAMES = {
    "images": ("images", "train_images", "x_train", "X_train", "x", "X", "data"),
    "labels": ("labels", "train_labels", "y_train", "y", "target"),
    "test_images": ("test_images", "x_test", "X_test"),
    "test_labels": ("test_labels", "y_test"),
    "validation_images": ("validation_images", "val_images", "x_val"),
    "validation_labels": ("validation_labels", "val_labels", "y_val"),
    "axes": ("axes",),
}


def is_picture_dataset(path: Path) -> bool:
    """Return True if a path is a folder or a CSV file, which are data sets of picture files."""
    return path.is_dir() or path.suffix.lower() == ".csv"


def list_labeled_pictures(path: Path) -> tuple[dict[str, list[tuple[Path, int]]], list[str]]:
    """List the picture files of each split, with their classes, without opening the files.

    Args:
        path: A folder with one sub-folder per class, or with folders for training and test that
            contain these sub-folders. Or a CSV file with the columns "file" and "label".

    Returns:
        A dictionary and the class names. The dictionary maps "train", "test" and possibly
        "validation" to the files of this split and their class indices. It contains only "train" if
        the data set does not declare splits.

    Raises:
        ValueError: The folder or the CSV file has another layout.
    """
    if path.is_dir():
        splits = {
            split: _list_labeled_files(folder)
            for split, folder in _find_split_folders(path).items()
        }
    else:
        splits = {"train": _read_labels_from_csv(path)}
    labels = list({label for _, label in splits["train"]})
    # Numbers are sorted by value, so that 10 follows 2.
    classes = sorted(labels, key=int if parse_class_numbers(labels) else None)
    if len(classes) < 2:
        raise wrong_value(
            f"the classes of {path}",
            classes,
            "at least two",
            "Every sub-folder of pictures, or every label in a CSV file, is one class.",
        )
    indices = {label: index for index, label in enumerate(classes)}
    labeled = {}
    for split, pictures in splits.items():
        unknown = {label for _, label in pictures}.difference(classes)
        if unknown:
            raise wrong_value(
                f"the {split} classes of {path}",
                sorted(unknown),
                f"classes of the training pictures: {', '.join(classes)}",
            )
        labeled[split] = [(file, indices[label]) for file, label in pictures]
    return labeled, classes


def _read_labels_from_csv(path: Path) -> list[tuple[Path, str]]:
    """Return the picture files and their labels from the columns of a CSV file.

    The columns are named "file" and "label". Paths are relative to the folder of the CSV file.
    Blanks around column names and labels, and blanks after commas, are ignored.
    """
    labels = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines, skipinitialspace=True)
            header = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = header
            if header.count("file") != 1 or header.count("label") != 1:
                expected = "a header with the columns file and label"
                raise wrong_value(f"row 1 of {path}", header, expected)
            for number, row in enumerate(reader, start=2):
                unnamed: Any = row.pop(None, ())  # pyright: ignore[reportArgumentType]
                if any(unnamed):
                    raise wrong_value(
                        f"row {number} of {path}",
                        [*row.values(), *unnamed],
                        f"at most {len(header)} values",
                        "Write a value that contains a comma in quotation marks.",
                    )
                # Without "..", so that two names of a file are equal.
                file = Path(os.path.normpath(path.parent / (row["file"] or "")))
                if not os.path.isfile(file) or file in labels:  # noqa: PTH113, of any length
                    raise wrong_value(
                        f"the file in row {number} of {path}",
                        row["file"],
                        "an existing file that no other row names",
                    )
                labels[file] = (row["label"] or "").strip()
                if not labels[file]:
                    argument = f"the label in row {number} of {path}"
                    raise wrong_value(argument, row["label"], "the name of a class")
    except (csv.Error, UnicodeDecodeError) as error:
        raise wrong_argument(
            str(path), first_line_of_error(error), "a CSV file in UTF-8"
        ) from error
    return list(labels.items())


def _find_split_folders(folder: Path) -> dict[str, Path]:
    """Return the folder of each split: "train", "test" and possibly "validation".

    A folder has splits if it contains a sub-folder for training and another for validation or test.
    Otherwise, the only split is "train", which is the folder itself. If there is no test folder,
    the validation folder is used for testing.
    """
    names = [path.name for path in _list_visible_paths(folder) if path.is_dir()]
    splits = {SPLIT_FOLDERS.get(name.lower(), name): folder / name for name in names}
    if "train" not in splits or splits.keys().isdisjoint(("validation", "test")):
        return {"train": folder}
    if len(splits) < len(names) or not splits.keys() <= set(SPLITS):
        raise wrong_value(
            f"the sub-folders of {folder}",
            names,
            "one each for train, val and test, or only classes",
        )
    if "test" not in splits:
        splits["test"] = splits.pop("validation")
    return splits


def _list_labeled_files(folder: Path) -> list[tuple[Path, str]]:
    """List all files in the sub-folders of a folder, with the sub-folder's name as their label."""
    pictures = []
    for subfolder in filter(Path.is_dir, _list_visible_paths(folder)):
        files = _list_visible_paths(subfolder)
        nested = [file.name for file in files if file.is_dir()]
        if nested or not files:
            raise wrong_value(
                f"the files in {subfolder}", nested, "one picture or more, and no folders"
            )
        pictures += [(file, subfolder.name) for file in files]
    return pictures


def _list_visible_paths(folder: Path) -> list[Path]:
    paths = [path for path in folder.iterdir() if not path.name.startswith(".")]
    return sorted(paths, key=lambda path: path.name)


def parse_class_numbers(names: Sequence[str]) -> list[int] | None:
    """Convert class names such as "7" to integers.

    Return None if a name is not an integer, or if two names are the same integer, such as "7" and
    "07".
    """
    try:
        numbers = [int(name) for name in names]
    except ValueError:
        return None
    return numbers if numbers and len(set(numbers)) == len(numbers) else None


def read_picture_dataset(path: Path, *, image_size: tuple[int, int] | None) -> RawDataset:
    """Create a data set from a folder of pictures, or from a CSV file that lists pictures.

    A picture is read from its file each time that it is used. The images are gray if every file is
    gray, and RGB otherwise.

    Args:
        path: The folder or CSV file, as in `list_labeled_pictures`.
        image_size: (height, width) to which the pictures are resized. If it is None, all pictures
            must have the same size.
    """
    pictures, classes = list_labeled_pictures(path)
    files = [file for split in pictures.values() for file, _ in split]
    in_channels = 1 if all(read_picture_header(file)[0] in GRAY_MODES for file in files) else 3
    height, width = image_size or read_picture(files[0]).shape[1:]

    def to_split(labeled: list[tuple[Path, int]]) -> Split:
        return Split(
            PictureFiles(
                [file for file, _ in labeled], in_channels, (height, width), image_size is not None
            ),
            torch.tensor([label for _, label in labeled], dtype=torch.int64),
        )

    validation = pictures.get("validation", [])
    train = to_split(pictures["train"] + validation)
    test = to_split(pictures["test"]) if "test" in pictures else None
    return RawDataset(train, test, len(validation), tuple(classes))


def copy_arrays_to_dataset(arrays: Mapping[str, Array | None], axes: str | None) -> RawDataset:
    """Create a data set from arrays of images and labels, after validating and copying them.

    Args:
        arrays: Arrays with the names "images" and "labels", and optionally the same names with the
            prefix "test_" or "validation_". Without test images, the validation images are used for
            testing.
        axes: Axis order of image arrays, such as "NHWC"; see `teka.data.from_arrays`.
    """
    if axes is None:
        axes = _guess_axes(_to_numpy("images", arrays["images"]).shape)
    check_name("axes", axes, AXES)
    train, test, validation = (
        _copy_arrays_to_split(arrays, prefix, axes) for prefix in ("", "test_", "validation_")
    )
    assert train is not None
    if test is None:
        test = validation
        validation = None
    if validation is None:
        return RawDataset(train, test)
    images, labels = map(torch.cat, zip(train[:], validation[:], strict=True))
    return RawDataset(Split(images, labels), test, len(validation))


def read_npz(path: Path) -> RawDataset:
    """Read images and labels from a NumPy archive (.npz), without executing code from the file.

    `ARRAY_NAMES` lists the array names that are recognized. Labels have shape (N,) or (N, 1).
    """
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("it is not a zip archive")
        arrays: dict[str, np.ndarray] = {}
        arguments = {name: argument for argument, names in ARRAY_NAMES.items() for name in names}
        with np.load(path, allow_pickle=False) as file:
            check_unpacked_size(file.zip, path)
            for name in file.files:
                argument = arguments.get(name)
                if argument is None:
                    raise ValueError(f"{name} is not one of {', '.join(ARRAY_NAMES)}")
                if argument in arrays:
                    raise ValueError(f"it has {argument} twice, also as {name}")
                array = file[name]
                is_column = argument.endswith("labels") and array.shape[1:] == (1,)
                arrays[argument] = array[:, 0] if is_column else array
        axes = arrays.pop("axes", None)
        if not {"images", "labels"} <= arrays.keys():
            raise ValueError(f"it has only {', '.join(arrays) or 'no arrays'}")
        return copy_arrays_to_dataset(arrays, None if axes is None else str(axes))
    except Exception as error:  # a damaged file raises different errors for different positions
        raise ValueError(
            f"{path} must be a folder of pictures, a .csv file that lists pictures, or an .npz "
            f"file of images and labels: {first_line_of_error(error)}"
        ) from error


def _guess_axes(shape: Sequence[int]) -> str:
    if len(shape) == 3:
        return "NHW"
    if len(shape) != 4:
        raise wrong_shape("images", shape, "(N, H, W), (N, H, W, C) or (N, C, H, W)")
    is_first = shape[1] in (1, 3)
    if is_first == (shape[3] in (1, 3)):
        raise wrong_value(
            "axes", None, "'NHWC' or 'NCHW'", f"The shape of images, {tuple(shape)}, is ambiguous."
        )
    return "NCHW" if is_first else "NHWC"


def _to_numpy(argument: str, array: Array | None) -> np.ndarray:
    if isinstance(array, Tensor):
        check_dense_tensor(argument, array)
        # NumPy has no bfloat16.
        array = array.float() if array.dtype == torch.bfloat16 else array
        return array.detach().cpu().numpy()
    try:
        return np.asarray(array)
    except (ValueError, MemoryError) as error:
        raise wrong_value(argument, array, f"an array ({first_line_of_error(error)})") from error


def _copy_arrays_to_split(
    arrays: Mapping[str, Array | None], prefix: str, axis_order: str
) -> Split | None:
    """Validate and copy the arrays of a training, validation or test split.

    Return None if there are no arrays for this split.

    Args:
        arrays: Arrays of all splits, as in `copy_arrays_to_dataset`.
        prefix: Prefix of the split's array names: "", "test_" or "validation_".
        axis_order: Axis order of image arrays, such as "NHWC".
    """
    names = (f"{prefix}images", f"{prefix}labels")
    missing = [name for name in names if arrays.get(name) is None]
    if len(missing) == 2 and prefix:
        return None
    if missing:
        raise wrong_value(missing[0], None, f"given together with {' and '.join(names)}")
    pixels, labels = (_to_numpy(name, arrays[name]) for name in names)
    if pixels.ndim != len(axis_order):
        raise wrong_shape(names[0], pixels.shape, f"({', '.join(axis_order)})")
    if labels.shape != pixels.shape[:1]:
        raise wrong_shape(names[1], labels.shape, f"({len(pixels)},), one label for each image")
    if labels.dtype.kind not in "iu":
        raise wrong_value(f"{names[1]}.dtype", str(labels.dtype), "an integer dtype")
    if labels.size and labels.min() < 0:
        raise wrong_value(f"the smallest label in {names[1]}", labels.min(), "at least 0")
    if pixels.dtype != np.uint8 and pixels.dtype.kind != "f":
        raise wrong_value(
            f"{names[0]}.dtype",
            str(pixels.dtype),
            "uint8 or a floating-point dtype",
            "Use uint8 for levels from 0 to 255, and floating point for intensities from 0 to 1.",
        )
    if axis_order == "NHW":
        pixels = pixels[:, None]
    elif axis_order == "NHWC":
        pixels = pixels.transpose(0, 3, 1, 2)
    dtype = np.uint8 if pixels.dtype == np.uint8 else np.float32
    # The copy is independent of the array, and has PyTorch's strides and byte order.
    pixels = np.array(pixels, dtype=dtype, order="C")
    return Split(torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64)))
