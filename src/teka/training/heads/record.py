"""Read `heads.npz`: where the heads of a network looked in the course of its training."""

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from teka.errors import wrong_shape, wrong_value

NUMBERS = ("heads", "local", "distinct", "window_3", "window_5", "local_window_3", "spread", "distance")
# Eigenvalues of a precision below this are a head that attends everywhere: a standard deviation of 1,000 tokens.
LEAST_PRECISION = 1e-6


@dataclass(frozen=True)
class HeadRecord:
    """The heads of all layers, one after another, at some moments of a training.

    Offsets are key less query, in tokens, downwards and to the right.

    Args:
        encoding: How the heads see positions.
        content: Their content kernel, or empty.
        grid: Rows and columns of tokens.
        query: Row and column of the token that was looked from.
        layer: Layer of each head, from 0, shape (heads,).
        epoch: Whole epochs before each moment, shape (moments,).
        train_accuracy: Accuracy of each moment on the training images, NaN where not measured.
        validation_accuracy: The same on held-out images.
        center: Centers of Gaussians, shape (moments, heads, 2), NaN for other heads.
        precision: Their Σ⁻¹, shape (moments, heads, 2, 2).
        mean: Means of the attention, shape (moments, heads, 2).
        covariance: Its covariances, shape (moments, heads, 2, 2).
        offset: Offsets with the largest weight, shape (moments, heads, 2).
        weight: Those weights, shape (moments, heads).
        numbers: How near the heads of each layer are to a grid, by the name of what is counted, (moments, layers).
        chance: The same for random initial parameters in the mean, (layers,).
    """

    encoding: str
    content: str
    grid: tuple[int, int]
    query: tuple[int, int]
    layer: NDArray[np.integer]
    epoch: NDArray[np.integer]
    train_accuracy: NDArray[np.floating]
    validation_accuracy: NDArray[np.floating]
    center: NDArray[np.floating]
    precision: NDArray[np.floating]
    mean: NDArray[np.floating]
    covariance: NDArray[np.floating]
    offset: NDArray[np.integer]
    weight: NDArray[np.floating]
    numbers: Mapping[str, NDArray[np.floating]]
    chance: Mapping[str, NDArray[np.floating]]

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return int(self.layer.max()) + 1

    @property
    def is_gaussian(self) -> bool:
        """Whether the heads are Gaussians, with centers and precisions of their own."""
        return bool(np.isfinite(self.center).all())

    @property
    def middles(self) -> NDArray[np.floating]:
        """Where each head looks, (moments, heads, 2): the center of a Gaussian, else the attention's mean."""
        return self.center if self.is_gaussian else self.mean

    def shapes(self, moment: int) -> NDArray[np.floating]:
        """Covariance of each head at a moment, (heads, 2, 2): that of the Gaussian, else the attention's.

        Args:
            moment: Which of the moments.
        """
        if not self.is_gaussian:
            return self.covariance[moment]
        values, vectors = np.linalg.eigh(self.precision[moment])
        return np.einsum("hak,hk,hbk->hab", vectors, 1 / np.maximum(values, LEAST_PRECISION), vectors)


def load_head_record(path: str | Path) -> HeadRecord:
    """Read `heads.npz`; nothing in it is unpickled.

    Args:
        path: The file.

    Raises:
        ValueError: The file is missing or not such an archive, or an array is missing or of the wrong kind or shape; it
            names the file and the array.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path} is not a file, expected the heads.npz of a run of model 'self_attention'")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not an .npz archive")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    reader = _Reader(path, arrays)
    layer = reader.whole("layer", (None,))
    epoch = reader.whole("epoch", (None,))
    if not len(layer) or not len(epoch) or set(layer.tolist()) != set(range(int(layer.max()) + 1)):
        raise wrong_value(
            f"{path}: layer and epoch", (layer.tolist(), len(epoch)), "heads of layers from 0, and a moment"
        )
    heads, moments, layers = len(layer), len(epoch), int(layer.max()) + 1
    rows, columns = reader.whole("grid", (2,)).tolist()
    row, column = reader.whole("query", (2,)).tolist()
    return HeadRecord(
        encoding=reader.text("encoding"),
        content=reader.text("content"),
        grid=(rows, columns),
        query=(row, column),
        layer=layer,
        epoch=epoch,
        train_accuracy=reader.real("train_accuracy", (moments,)),
        validation_accuracy=reader.real("validation_accuracy", (moments,)),
        center=reader.real("center", (moments, heads, 2)),
        precision=reader.real("precision", (moments, heads, 2, 2)),
        mean=reader.real("mean", (moments, heads, 2)),
        covariance=reader.real("covariance", (moments, heads, 2, 2)),
        offset=reader.whole("offset", (moments, heads, 2)),
        weight=reader.real("weight", (moments, heads)),
        numbers={name: reader.real(name, (moments, layers)) for name in NUMBERS},
        chance={name: reader.real(f"chance_{name}", (layers,)) for name in NUMBERS},
    )


class _Reader:
    """Arrays of a file, checked one by one."""

    def __init__(self, path: Path, arrays: Mapping[str, np.ndarray]) -> None:
        self.path = path
        self.arrays = arrays

    def _get(self, name: str) -> np.ndarray:
        if name not in self.arrays:
            raise ValueError(f"{self.path} lacks an array: {name}")
        return self.arrays[name]

    def text(self, name: str) -> str:
        array = self._get(name)
        if array.dtype.kind != "U" or array.ndim:
            raise wrong_value(f"{self.path}: {name}", f"{array.dtype} of shape {array.shape}", "a text")
        return str(array)

    def whole(self, name: str, shape: tuple[int | None, ...]) -> NDArray[np.integer]:
        array = self._get(name)
        if not np.issubdtype(array.dtype, np.integer):
            raise wrong_value(f"{self.path}: {name}", str(array.dtype), "whole numbers")
        return self._shaped(name, array, shape)

    def real(self, name: str, shape: tuple[int | None, ...]) -> NDArray[np.floating]:
        array = self._get(name)
        if array.dtype.kind not in "fiu":
            raise wrong_value(f"{self.path}: {name}", str(array.dtype), "numbers")
        return self._shaped(name, array, shape).astype(np.float64)

    def _shaped(self, name: str, array: np.ndarray, shape: tuple[int | None, ...]) -> np.ndarray:
        if array.ndim != len(shape) or any(
            want not in (None, side) for want, side in zip(shape, array.shape, strict=True)
        ):
            raise wrong_shape(f"{self.path}: {name}", array.shape, str(shape).replace("None", "any"))
        return array
