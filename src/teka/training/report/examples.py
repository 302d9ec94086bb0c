"""Read `examples.npz`: example images as the models saw them shifted, and what each model predicted."""

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from teka.errors import wrong_shape, wrong_value


@dataclass(frozen=True)
class Examples:
    """Example images, shifted, with the models' predictions.

    Args:
        images: Grey values as the models saw them, uint8 of shape (shifts, examples, height, width).
        shifts: Shift in pixels (dy, dx) of each, downwards and to the right, of shape (shifts, 2).
        labels: The right class of each example, of shape (examples,).
        model_names: Name of each model, (models,).
        predictions: Class predicted, of shape (models, shifts, examples).
    """

    images: NDArray[np.uint8]
    shifts: NDArray[np.integer]
    labels: NDArray[np.integer]
    model_names: tuple[str, ...]
    predictions: NDArray[np.integer]


def _whole(path: Path, name: str, array: np.ndarray) -> np.ndarray:
    if not np.issubdtype(array.dtype, np.integer):
        raise wrong_value(f"{path}: {name}", str(array.dtype), "whole numbers")
    return array


def load_examples(path: str | Path) -> Examples:
    """Read `examples.npz`; nothing in it is unpickled.

    Args:
        path: The file.

    Raises:
        ValueError: The file is missing or not such an archive, or an array is missing, of the wrong kind or shape; it
            names the file and the array.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path} is not a file, expected the examples.npz of a finished run")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not an .npz archive")
    names = ("images", "shifts", "labels", "model_names", "predictions")
    try:
        with np.load(path, allow_pickle=False) as archive:
            images, shifts, labels, model_names, predictions = (archive[name] for name in names)
    except KeyError as error:
        raise ValueError(f"{path} lacks an array: {error.args[0]}") from error
    except (ValueError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if images.dtype != np.uint8 or images.ndim != 4 or 0 in images.shape:
        came = f"{images.dtype} of shape {images.shape}"
        raise wrong_value(f"{path}: images", came, "uint8 of shape (shifts, examples, height, width)")
    num_shifts, num_examples = images.shape[:2]
    if model_names.ndim != 1 or model_names.dtype.kind != "U" or not len(model_names):
        raise wrong_value(
            f"{path}: model_names", f"{model_names.dtype} of shape {model_names.shape}", "a list of texts"
        )
    for name, array, shape in (
        ("shifts", shifts, (num_shifts, 2)),
        ("labels", labels, (num_examples,)),
        ("predictions", predictions, (len(model_names), num_shifts, num_examples)),
    ):
        if _whole(path, name, array).shape != shape:
            raise wrong_shape(f"{path}: {name}", array.shape, f"{shape} beside images of shape {images.shape}")
    return Examples(images, shifts, labels, tuple(str(name) for name in model_names), predictions)
