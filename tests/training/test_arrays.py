"""Arrays of files, by the layout of a report's examples."""

import numpy as np
import pytest

from teka.training.arrays import read_arrays, write_arrays
from teka.training.shift_page import EXAMPLES

ARRAYS = {
    "images": np.arange(5 * 3 * 7 * 11, dtype=np.uint8).reshape(5, 3, 7, 11),
    "shifts": np.array([(0, -2), (0, 0), (0, 2), (-2, 0), (2, -1)]),
    "labels": np.array([4, 9, 1]),
    "model_names": np.array(["absolute", "rotation"]),
    "predictions": np.arange(2 * 5 * 3).reshape(2, 5, 3),
}
CHANGES = (
    ("images", lambda array: array.astype(np.float32)),
    ("images", lambda array: array[0]),
    ("images", lambda array: array[:0]),
    ("shifts", lambda array: array[:, :1]),
    ("shifts", lambda array: array[:-1]),
    ("shifts", lambda array: array + 0.5),
    ("labels", lambda array: array[:-1]),
    ("model_names", lambda array: array[:0]),
    ("model_names", lambda array: np.arange(2)),
    ("predictions", lambda array: array.swapaxes(1, 2)),
    ("predictions", lambda array: array[:1]),
    ("predictions", lambda array: array.astype(float)),
)


@pytest.fixture
def read(tmp_path):
    """Read arrays back from a file."""

    def through(arrays):
        write_arrays(tmp_path / "examples.npz", arrays)
        return read_arrays(tmp_path / "examples.npz", EXAMPLES, "examples")

    return through


def test_arrays_come_back_as_saved(read):
    examples = read(ARRAYS)
    assert all(np.array_equal(examples[name], array) for name, array in ARRAYS.items())


def test_a_missing_array_is_named(read):
    for name in ARRAYS:
        with pytest.raises(ValueError, match=rf"examples\.npz lacks an array: .*{name}"):
            read({other: array for other, array in ARRAYS.items() if other != name})


def test_a_wrong_array_is_named(read):
    for name, change in CHANGES:
        with pytest.raises(ValueError, match=rf"examples\.npz: {name} (is|has shape) .*, expected"):
            read({**ARRAYS, name: change(ARRAYS[name])})


def test_what_is_not_an_archive_or_is_damaged_is_named(read, tmp_path):
    path = tmp_path / "examples.npz"
    read(ARRAYS)
    whole = path.read_bytes()
    for content in (b"", b"\x93NUMPY", b"not an archive", whole[:200] + bytes(500) + whole[700:]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"examples\.npz"):
            read_arrays(path, EXAMPLES, "examples")
    for content in (b"", b"not an archive"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"examples\.npz is not an \.npz archive"):
            read_arrays(path, EXAMPLES, "examples")
