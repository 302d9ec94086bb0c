"""Arrays of an .npz file: written whole, and read with a check of each; nothing is unpickled."""

import io
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from teka.errors import wrong_shape, wrong_value
from teka.files import write_bytes

KINDS = {"U": "a text", "u": "bytes", "iu": "whole numbers", "fiu": "numbers"}  # of dtypes, by their letters
Layout = Mapping[str, tuple[str, tuple[int | str, ...]]]


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays, whole or not at all."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_bytes(path, buffer.getbuffer())


def read_arrays(path: Path, layout: Layout, expected: str) -> dict[str, np.ndarray]:
    """Read arrays by name, kind (a key of `KINDS`) and shape; a size with a name is at least 1 and ever the same."""
    if not path.is_file():
        raise ValueError(f"{path} is not a file, expected {expected}")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not an .npz archive")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in layout if name in archive.files}
    except (ValueError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    sizes: dict[str, int] = {}
    for name, (kinds, shape) in layout.items():
        if name not in arrays:
            raise ValueError(f"{path} lacks an array: {name}")
        _check(f"{path}: {name}", arrays[name], kinds, shape, sizes)
        if "f" in kinds:
            arrays[name] = arrays[name].astype(np.float64)
    return arrays


def _check(name: str, array: np.ndarray, kinds: str, shape: Sequence[int | str], sizes: dict[str, int]) -> None:
    if array.dtype.kind not in kinds:
        raise wrong_value(name, f"{array.dtype} of shape {array.shape}", KINDS[kinds])
    pairs = zip(shape, array.shape, strict=False)
    known = tuple(sizes.setdefault(wanted, size) if isinstance(wanted, str) else wanted for wanted, size in pairs)
    if array.shape != known or array.ndim != len(shape) or 0 in known:
        words = ", ".join(f"{size} = {sizes[size]}" if size in sizes else str(size) for size in shape)
        raise wrong_shape(name, array.shape, f"({words}), none of them 0")
