"""Reading of your own images: picture files in a folder or a CSV list, and arrays."""

import csv
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from teka.checks import check_dense, check_image_size, check_name
from teka.data.dataset import ImageSize, RawDataset, Split
from teka.data.pictures import GRAY_MODES, PictureFiles, read_header, read_picture
from teka.errors import first_line, wrong_argument, wrong_shape, wrong_value
from teka.files import check_unpacked_size

Array = np.ndarray | Tensor
# Names of the folders of the splits, in lower case.
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
# Our name of an array for each name in an .npz file. The other names are those of MedMNIST, Keras
# and scikit-learn.
ARRAY_NAMES = {
    **dict.fromkeys(("images", "train_images", "x_train", "X_train", "x", "X", "data"), "images"),
    **dict.fromkeys(("labels", "train_labels", "y_train", "y", "target"), "labels"),
    **dict.fromkeys(("test_images", "x_test", "X_test"), "test_images"),
    **dict.fromkeys(("test_labels", "y_test"), "test_labels"),
    **dict.fromkeys(("validation_images", "val_images", "x_val"), "validation_images"),
    **dict.fromkeys(("validation_labels", "val_labels", "y_val"), "validation_labels"),
    "axes": "axes",
}


def has_pictures(path: Path) -> bool:
    """Return True if a path is a folder or a CSV file, and so a data set of picture files."""
    return path.is_dir() or path.suffix.lower() == ".csv"


def find_pictures(path: Path) -> tuple[dict[str, list[tuple[Path, int]]], list[str]]:
    """Find the picture files of each split and the classes, without reading the pictures.

    Args:
        path: A folder with a sub-folder for each class, maybe within folders for splits, or a CSV
            file with the columns file and label.

    Returns:
        The first result holds the files of each split with the indices of their classes. The splits
        are "train", "test" and maybe "validation", or only "train" if the data set declares no
        splits. The second result holds the names of the classes.

    Raises:
        ValueError: The folder or the CSV file has another layout.
    """
    if path.is_dir():
        folders = _find_split_folders(path) or {"train": path}
        splits = {split: _find_labeled(folder) for split, folder in folders.items()}
    else:
        splits = {"train": _read_labels(path)}
    classes = sort_classes(list({label for _, label in splits["train"]}))
    if len(classes) < 2:
        expected = "at least two sub-folders of pictures, or labels in a CSV file"
        raise wrong_value(f"the classes of {path}", classes, expected)
    indices = {label: index for index, label in enumerate(classes)}
    labeled = {}
    for split, pictures in splits.items():
        unknown = {label for _, label in pictures}.difference(classes)
        if unknown:
            expected = f"classes of the training pictures: {', '.join(classes)}"
            raise wrong_value(f"the {split} classes of {path}", sorted(unknown), expected)
        labeled[split] = [(file, indices[label]) for file, label in pictures]
    return labeled, classes


def _read_labels(path: Path) -> list[tuple[Path, str]]:
    """Read the files and labels of a CSV file. File names are relative to the folder of the CSV."""
    labels = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines)
            if not {"file", "label"} <= set(reader.fieldnames or ()):
                expected = "a header with the columns file and label"
                raise wrong_value(f"row 1 of {path}", reader.fieldnames, expected)
            for number, row in enumerate(reader, start=2):
                where = f"in row {number} of {path}"
                file = path.parent / (row["file"] or "")
                if not file.is_file() or file in labels:
                    expected = "an existing file that no other row names"
                    raise wrong_value(f"the file {where}", row["file"], expected)
                if not row["label"]:
                    raise wrong_value(f"the label {where}", row["label"], "the name of a class")
                labels[file] = row["label"]
    except (csv.Error, UnicodeDecodeError) as error:
        raise wrong_argument(str(path), first_line(error), "a CSV file in UTF-8") from error
    return list(labels.items())


def _find_split_folders(folder: Path) -> dict[str, Path]:
    """Return the folders of "train", "test" and maybe "validation", or {} without such folders.

    The folder must have a sub-folder for training and one for validation or test. Without a test
    folder, the validation folder is used for test.
    """
    names = [path.name for path in _visible(folder) if path.is_dir()]
    splits: dict[str, Path] = {}
    others = []
    for name in names:
        split = SPLIT_FOLDERS.get(name.lower())
        if split is None:
            others.append(name)
        elif split in splits:
            expected = f"one for {split}, not {splits[split].name} and {name}"
            raise wrong_value(f"the sub-folders of {folder}", names, expected)
        else:
            splits[split] = folder / name
    if "train" not in splits or len(splits) < 2:
        return {}
    if others:
        expected = f"only splits (train, val, test) or only classes, not {others}"
        raise wrong_value(f"the sub-folders of {folder}", names, expected)
    if "test" not in splits:
        splits["test"] = splits.pop("validation")
    return splits


def _find_labeled(folder: Path) -> list[tuple[Path, str]]:
    """Return the files in each sub-folder of a folder, with the name of the sub-folder as label."""
    pictures = []
    for subfolder in filter(Path.is_dir, _visible(folder)):
        files = _visible(subfolder)
        nested = [file.name for file in files if file.is_dir()]
        if nested or not files:
            expected = "one picture or more, and no folders"
            raise wrong_value(f"the files in {subfolder}", nested, expected)
        pictures += [(file, subfolder.name) for file in files]
    return pictures


def _visible(folder: Path) -> list[Path]:
    paths = [path for path in folder.iterdir() if not path.name.startswith(".")]
    return sorted(paths, key=lambda path: path.name)


def sort_classes(names: Sequence[str]) -> list[str]:
    """Sort class names as numbers if all of them are different integers, and as text otherwise.

    >>> sort_classes(["10", "2", "0"]), sort_classes(["class_10", "class_2"])
    (['0', '2', '10'], ['class_10', 'class_2'])
    """
    return sorted(names, key=int if class_numbers(names) else None)


def class_numbers(names: Sequence[str]) -> list[int] | None:
    """Return class names as integers, or None if they are not all different integers."""
    try:
        numbers = [int(name) for name in names]
    except ValueError:
        return None
    return numbers if numbers and len(set(numbers)) == len(numbers) else None


def read_picture_set(path: Path, *, image_size: ImageSize | None = None) -> RawDataset:
    """Return the pictures of a folder or a CSV file as `PictureFiles`.

    The images are gray if every file is gray, and RGB otherwise. All pictures must have the same
    size, unless they are resized to an `image_size`.
    """
    pictures, classes = find_pictures(path)
    files = [file for split in pictures.values() for file, _ in split]
    in_channels = 1 if all(read_header(file)[0] in GRAY_MODES for file in files) else 3
    resize = image_size is not None
    size = check_image_size(
        "image_size", image_size if resize else read_picture(files[0]).shape[1:]
    )

    def to_split(labeled: list[tuple[Path, int]]) -> Split:
        images = PictureFiles([file for file, _ in labeled], in_channels, size, resize)
        return Split(images, torch.tensor([label for _, label in labeled], dtype=torch.int64))

    validation = pictures.get("validation", [])
    train = to_split(pictures["train"] + validation)
    test = to_split(pictures["test"]) if "test" in pictures else None
    return RawDataset(train, test, len(classes), len(validation))


def read_arrays(arrays: Mapping[str, Array | None], axes: str | None = None) -> RawDataset:
    """Make a data set from copies of its arrays, and check the arrays.

    Args:
        arrays: Arrays named "images" and "labels", and maybe the same names with the prefix "test_"
            or "validation_". Without test images, the validation images are used for test.
        axes: Order of the axes, see `teka.data.from_arrays`.
    """
    if axes is None:
        axes = _guess_axes(_to_numpy("images", arrays["images"]).shape)
    check_name("axes", axes, AXES)
    train = _read_split(arrays, "", axes)
    test = _read_split(arrays, "test_", axes)
    validation = _read_split(arrays, "validation_", axes)
    assert train is not None
    if test is None:
        test, validation = validation, None
    num_validation = 0
    if validation is not None:
        num_validation = len(validation)
        images = torch.cat([train.images, validation.images])
        train = Split(images, torch.cat([train.labels, validation.labels]))
    labels = train.labels if test is None else torch.cat([train.labels, test.labels])
    num_classes = 1 + int(labels.max()) if len(labels) else 1
    return RawDataset(train, test, num_classes, num_validation)


def read_npz(path: Path) -> RawDataset:
    """Read images and labels from an .npz file, whose arrays have names in `ARRAY_NAMES`.

    Nothing is unpickled. Labels may have shape (N, 1).
    """
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("it is not a zip archive")
        loaded = np.load(path, allow_pickle=False)
        assert isinstance(loaded, np.lib.npyio.NpzFile)
        arrays: dict[str, np.ndarray] = {}
        with loaded as file:
            check_unpacked_size(file.zip, path)
            for name in file.files:
                check_name("a name of an array", name, ARRAY_NAMES)
                own_name = ARRAY_NAMES[name]
                if own_name in arrays:
                    raise ValueError(f"it has {own_name} twice, also as {name}")
                array = file[name]
                is_column = own_name.endswith("labels") and array.shape[1:] == (1,)
                arrays[own_name] = array[:, 0] if is_column else array
        axes = arrays.pop("axes", None)
        if not {"images", "labels"} <= arrays.keys():
            raise ValueError(f"it has only {', '.join(arrays) or 'no arrays'}")
        return read_arrays(arrays, None if axes is None else str(axes))
    except Exception as error:  # a damaged file raises different errors for different positions
        expected = f"an .npz file of images and labels ({first_line(error)})"
        raise wrong_value("name", str(path), expected) from error


def _guess_axes(shape: Sequence[int]) -> str:
    if len(shape) == 3:
        return "NHW"
    if len(shape) != 4:
        raise wrong_shape("images", shape, "(N, H, W), (N, H, W, C) or (N, C, H, W)")
    is_first = shape[1] in (1, 3)
    if is_first == (shape[3] in (1, 3)):
        hint = f"The shape of images, {tuple(shape)}, does not tell."
        raise wrong_value("axes", None, "'NHWC' or 'NCHW'", hint)
    return "NCHW" if is_first else "NHWC"


def _to_numpy(argument: str, array: Array | None) -> np.ndarray:
    if isinstance(array, Tensor):
        check_dense(argument, array)
        # NumPy has no bfloat16.
        array = array.float() if array.dtype == torch.bfloat16 else array
        return array.detach().cpu().numpy()
    try:
        return np.asarray(array)
    except (ValueError, MemoryError) as error:
        raise wrong_value(argument, array, f"an array ({first_line(error)})") from error


def _read_split(arrays: Mapping[str, Array | None], prefix: str, axes: str) -> Split | None:
    """Return the checked and copied arrays of a split, or None if the split has no arrays."""
    names = (f"{prefix}images", f"{prefix}labels")
    missing = [name for name in names if arrays.get(name) is None]
    if len(missing) == 2 and prefix:
        return None
    if missing:
        raise wrong_value(missing[0], None, f"given together with {' and '.join(names)}")
    pixels, labels = (_to_numpy(name, arrays[name]) for name in names)
    if pixels.ndim != len(axes):
        raise wrong_shape(names[0], pixels.shape, f"({', '.join(axes)})")
    if labels.shape != pixels.shape[:1]:
        raise wrong_shape(names[1], labels.shape, f"({len(pixels)},), one label for each image")
    if labels.dtype.kind not in "iu":
        raise wrong_value(f"{names[1]}.dtype", str(labels.dtype), "an integer dtype")
    if labels.size and labels.min() < 0:
        raise wrong_value(f"the smallest label in {names[1]}", labels.min(), "at least 0")
    if pixels.dtype != np.uint8 and pixels.dtype.kind != "f":
        expected = "uint8 for levels from 0 to 255, or a float dtype for intensities from 0 to 1"
        raise wrong_value(f"{names[0]}.dtype", str(pixels.dtype), expected)
    if axes == "NHW":
        pixels = pixels[:, None]
    elif axes == "NHWC":
        pixels = pixels.transpose(0, 3, 1, 2)
    dtype = np.uint8 if pixels.dtype == np.uint8 else np.float32
    # The copy does not change with the array, and has PyTorch's strides and byte order.
    pixels = np.array(pixels, dtype=dtype, order="C")
    return Split(torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64)))
