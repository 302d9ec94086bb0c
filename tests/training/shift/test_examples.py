import numpy as np
import pytest

from teka.training.shift_page import load_examples


def test_arrays_come_back_as_saved(tmp_path, example_arrays):
    np.savez_compressed(tmp_path / "examples.npz", **example_arrays)
    examples = load_examples(tmp_path / "examples.npz")
    for name, array in example_arrays.items():
        assert np.array_equal(examples[name], array)


@pytest.mark.parametrize("name", ["images", "shifts", "labels", "model_names", "predictions"])
def test_a_missing_array_is_named(tmp_path, example_arrays, name):
    del example_arrays[name]
    np.savez(tmp_path / "examples.npz", **example_arrays)
    with pytest.raises(ValueError, match=rf"examples\.npz lacks an array: .*{name}"):
        load_examples(tmp_path / "examples.npz")


@pytest.mark.parametrize(
    ("name", "change"),
    [
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
    ],
)
def test_a_wrong_array_is_named(tmp_path, example_arrays, name, change):
    np.savez(tmp_path / "examples.npz", **{**example_arrays, name: change(example_arrays[name])})
    with pytest.raises(ValueError, match=rf"examples\.npz: {name} (is|has shape) .*, expected"):
        load_examples(tmp_path / "examples.npz")


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"not an archive"])
def test_what_is_not_an_archive_is_named(tmp_path, content):
    (tmp_path / "examples.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"examples\.npz is not an \.npz archive"):
        load_examples(tmp_path / "examples.npz")


def test_a_damaged_archive_is_named(tmp_path, example_arrays):
    path = tmp_path / "examples.npz"
    np.savez(path, **example_arrays)
    content = bytearray(path.read_bytes())
    content[400:900] = bytes(500)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"examples\.npz"):
        load_examples(path)
