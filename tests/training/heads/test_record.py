import re

import numpy as np
import pytest
from tests.training.heads.head_records import head_arrays

from teka.training.heads.record import load_head_record


@pytest.fixture
def save(tmp_path):
    def to_file(arrays):
        np.savez_compressed(tmp_path / "heads.npz", **arrays)
        return tmp_path / "heads.npz"

    return to_file


def test_arrays_come_back_as_saved(save):
    arrays = head_arrays()
    record = load_head_record(save(arrays))
    assert (record.encoding, record.content, record.grid, record.query) == ("quadratic", "", (5, 7), (2, 3))
    assert record.num_layers == 2
    for name in ("layer", "epoch", "train_accuracy", "center", "precision", "mean", "covariance", "offset", "weight"):
        np.testing.assert_array_equal(getattr(record, name), arrays[name])
    np.testing.assert_array_equal(record.numbers["window_3"], arrays["window_3"])
    np.testing.assert_array_equal(record.chance["window_3"], arrays["chance_window_3"])


def test_gaussians_are_shown_by_their_own_shape_and_others_by_their_attention(save):
    arrays = head_arrays()
    arrays["mean"] = arrays["center"] + 9
    arrays["covariance"] = 7 * arrays["covariance"]
    record = load_head_record(save(arrays))
    np.testing.assert_array_equal(record.middles, arrays["center"])
    np.testing.assert_allclose(record.shapes(1), np.linalg.inv(arrays["precision"][1]))
    arrays["center"] = np.full_like(arrays["center"], np.nan)
    record = load_head_record(save(arrays))
    np.testing.assert_array_equal(record.middles, arrays["mean"])
    np.testing.assert_array_equal(record.shapes(1), arrays["covariance"][1])


def test_a_gaussian_without_width_in_one_direction_or_without_end_in_another_has_a_finite_shape(save):
    arrays = head_arrays(layers=(2,), moments=1)
    arrays["precision"] = np.array([[[[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]]])
    shapes = load_head_record(save(arrays)).shapes(0)
    np.testing.assert_allclose(shapes, [np.diag([1.0, 1e6]), np.diag([1e6, 1e6])])


@pytest.mark.parametrize("name", sorted(head_arrays()))
def test_a_missing_array_is_named(save, name):
    arrays = head_arrays()
    del arrays[name]
    with pytest.raises(ValueError, match=rf"heads\.npz lacks an array: {name}$"):
        load_head_record(save(arrays))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("encoding", lambda array: np.arange(2)),
        ("grid", lambda array: array[:1]),
        ("layer", lambda array: array + 0.5),
        ("epoch", lambda array: array[None]),
        ("center", lambda array: array[:-1]),
        ("precision", lambda array: array[..., 0]),
        ("offset", lambda array: array.astype(float)),
        ("weight", lambda array: array.astype(str)),
        ("window_3", lambda array: array[:, :1]),
        ("chance_spread", lambda array: array[:1]),
    ],
)
def test_a_wrong_array_is_named(save, name, change):
    arrays = head_arrays()
    arrays[name] = change(arrays[name])
    with pytest.raises(ValueError, match=rf"heads\.npz: {name} (is|has shape) .*, expected"):
        load_head_record(save(arrays))


@pytest.mark.parametrize("layer", [[], [1, 1, 1, 1, 1], [0, 0, 2, 2, 2]])
def test_layers_are_counted_from_0_without_a_gap(save, layer):
    with pytest.raises(ValueError, match="heads of layers from 0"):
        load_head_record(save({**head_arrays(), "layer": np.array(layer, dtype=int)}))


def test_pickled_objects_are_refused(save):
    with pytest.raises(ValueError, match=r"heads\.npz cannot be read: .*allow_pickle"):
        load_head_record(save({**head_arrays(), "encoding": np.array([None], dtype=object)}))


def test_what_is_no_record_is_named(tmp_path):
    with pytest.raises(ValueError, match=re.escape("heads.npz is not a file, expected the heads.npz of a run")):
        load_head_record(tmp_path / "heads.npz")
    (tmp_path / "heads.npz").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"is not an \.npz archive"):
        load_head_record(tmp_path / "heads.npz")
