"""Images of one's own: arrays, or tensors, with their labels."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from teka.checks import LARGEST
from teka.data.dataset import Split
from teka.data.hold_out import hold_out_test
from teka.data.levels import Levels
from teka.errors import unknown_name, wrong_shape, wrong_value

AXES = ("NHW", "NHWC", "NCHW")
KEYS = ("images", "labels", "test_images", "test_labels", "axes")
_CHANNELS = (1, 3)


def read_arrays(
    images: np.ndarray | Tensor,
    labels: np.ndarray | Tensor,
    *,
    test_images: np.ndarray | Tensor | None = None,
    test_labels: np.ndarray | Tensor | None = None,
    axes: str | None = None,
) -> tuple[Levels | Split, Levels | Split, int]:
    """Training and test images from arrays; without test images, a fifth is held out (`hold_out_test`).

    Args:
        images: Bytes, levels 0 … 255, or floating point intensities in [0, 1]; background, where there is one, is 0.
        labels: Whole numbers from 0, shape (N,).
        test_images: Images for test, in the same axes.
        test_labels: Their labels.
        axes: Order of the axes: "NHW" (grey), "NHWC" or "NCHW". It may be left out for three axes, and for four if
            just one of the second and the last has size 1 or 3.

    Returns:
        Training and test images, shapes (N, C, H, W), and the number of classes, one more than the highest label.

    Raises:
        ValueError: A wrong shape or type, a value out of range, axes that are unknown or cannot be told, or test
            images without labels.
    """
    if (test_images is None) != (test_labels is None):
        raise wrong_value("test_labels", None if test_labels is None else "given", "given just when test_images are")
    known = _axes("images", _array(images)) if axes is None else axes
    if known not in AXES:
        raise unknown_name("axes", known, AXES)
    part = _part("images", _array(images), "labels", _array(labels), known)
    if test_images is None or test_labels is None:
        train, test = (part.take(indices) for indices in hold_out_test(len(part)))
    else:
        train = part
        test = _part("test_images", _array(test_images), "test_labels", _array(test_labels), known)
    highest = max(int(some.labels.max()) if len(some) else 0 for some in (train, test))
    return train, test, highest + 1


def read_npz(path: Path) -> tuple[Levels | Split, Levels | Split, int]:
    """Training and test images from an .npz file with the arguments of `read_arrays` as its keys; never unpickled.

    Args:
        path: The file: `images`, `labels` and, if wanted, `test_images` and `test_labels`, and `axes`, a string.

    Raises:
        ValueError: Not an .npz file, a damaged one, a key that is missing or unknown, an array of objects, or arrays
            that `read_arrays` does not take; the message names the file.
    """
    try:
        loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise ValueError("it holds a single array")
        with loaded as file:
            for key in file.files:
                if key not in KEYS:
                    raise unknown_name("its key", key, KEYS)
            arrays = {key: file[key] for key in file.files}
        for key in KEYS[:2]:
            if key not in arrays:
                raise ValueError(f"it has no {key}, only {', '.join(arrays) or 'nothing'}")
        axes = arrays.pop("axes", None)
        return read_arrays(**arrays, axes=None if axes is None else str(axes))
    except Exception as error:  # what a damaged or made-up header raises depends on where it is wrong
        raise ValueError(f"{path} is not an .npz file of images and labels: {error}") from error


def _array(given: np.ndarray | Tensor) -> np.ndarray:
    return given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)


def _axes(argument: str, images: np.ndarray) -> str:
    if images.ndim == 3:
        return "NHW"
    possible = [axes for axes in AXES if len(axes) == images.ndim and images.shape[axes.index("C")] in _CHANNELS]
    if len(possible) == 1:
        return possible[0]
    if images.ndim == 4:
        raise wrong_value("axes", None, f"'NHWC' or 'NCHW': the shape of {argument}, {images.shape}, does not tell")
    raise wrong_shape(argument, images.shape, "(N, H, W), (N, H, W, C) or (N, C, H, W)")


def _part(
    images_argument: str, images: np.ndarray, labels_argument: str, labels: np.ndarray, axes: str
) -> Levels | Split:
    if images.ndim != len(axes):
        raise wrong_shape(images_argument, images.shape, f"({', '.join(axes)})")
    if labels.shape != images.shape[:1]:
        raise wrong_shape(labels_argument, labels.shape, f"({len(images)},), one label for each image")
    if labels.dtype.kind not in "iu":
        raise wrong_value(f"{labels_argument}.dtype", str(labels.dtype), "a whole number type")
    if labels.size and not 0 <= labels.min() <= labels.max() <= LARGEST:
        raise wrong_value(labels_argument, f"from {labels.min()} to {labels.max()}", f"classes from 0 to {LARGEST}")
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        expected = "uint8 for levels 0 … 255, or floating point for intensities from 0 to 1"
        raise wrong_value(f"{images_argument}.dtype", str(images.dtype), expected)
    ordered = images[:, None] if axes == "NHW" else images.transpose([axes.index(axis) for axis in "NCHW"])
    # Copies, so that neither later changes of the arrays nor their strides or byte order matter.
    classes = torch.from_numpy(labels.astype(np.int64))
    if images.dtype == np.uint8:
        return Levels(torch.from_numpy(np.array(ordered, order="C")), classes, highest=255)
    intensities = np.array(ordered, dtype=np.float32, order="C")
    lowest, highest = (intensities.min(), intensities.max()) if intensities.size else (0, 0)
    if not (lowest >= 0 and highest <= 1):
        raise wrong_value(images_argument, f"from {lowest} to {highest}", "intensities from 0 to 1, or uint8 levels")
    return Split(torch.from_numpy(intensities), classes)
