import re

import numpy as np
import pytest
import torch

from reproduction.baselines import SelfAttentionNetwork
from reproduction.heads.record import HEADS_FILE, HeadRecorder, Moment, load_head_record
from teka.training import Run, train
from teka.training.checkpoint import CHECKPOINTS, LAST, callback_state, read_weights
from tests.reproduction.heads.head_records import head_arrays
from tests.training.interrupt import InterruptAt

RUN = Run.of(
    data="digits", image_size=8, train_size=96, validation_size=40, model="self_attention", dim=6, depth=2,
    heads=(3, 2), epochs=3, batch_size=32, learning_rate=0.02, dropout=0.2,
)  # fmt: skip


@pytest.fixture
def save(tmp_path):
    def to_file(arrays):
        np.savez_compressed(tmp_path / "heads.npz", **arrays)
        return tmp_path / "heads.npz"

    return to_file


def test_arrays_come_back_as_saved(save):
    arrays = head_arrays()
    record = load_head_record(save(arrays))
    assert (record.position, record.content, record.grid, record.query) == (
        "quadratic",
        "",
        (5, 7),
        (2, 3),
    )
    assert record.num_layers == 2
    for name in (
        "layer",
        "epoch",
        "train_accuracy",
        "center",
        "precision",
        "mean",
        "covariance",
        "offset",
        "weight",
    ):
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


def test_a_gaussian_without_width_in_one_direction_or_without_end_in_another_has_a_finite_shape(
    save,
):
    arrays = head_arrays(layers=(2,), moments=1)
    arrays["precision"] = np.array([[[[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]]])
    shapes = load_head_record(save(arrays)).shapes(0)
    np.testing.assert_allclose(shapes, [np.diag([1.0, 1e6]), np.diag([1e6, 1e6])])


def test_a_missing_array_is_named(save):
    arrays = head_arrays()
    for name in arrays:
        with pytest.raises(ValueError, match=rf"heads\.npz lacks an array: {name}$"):
            load_head_record(
                save({other: array for other, array in arrays.items() if other != name})
            )


CHANGES = {
    "encoding": lambda array: np.arange(2),
    "grid": lambda array: array[:1],
    "layer": lambda array: array + 0.5,
    "epoch": lambda array: array[None],
    "center": lambda array: array[:-1],
    "precision": lambda array: array[..., 0],
    "offset": lambda array: array.astype(float),
    "weight": lambda array: array.astype(str),
    "window_3": lambda array: array[:, :1],
    "chance_spread": lambda array: array[:1],
}


def test_a_wrong_array_is_named(save):
    for name, change in CHANGES.items():
        arrays = head_arrays()
        with pytest.raises(ValueError, match=rf"heads\.npz: {name} must (be|have)"):
            load_head_record(save({**arrays, name: change(arrays[name])}))


def test_layers_are_counted_from_0_without_a_gap(save):
    for layer in ([], [1, 1, 1, 1, 1], [0, 0, 2, 2, 2]):
        with pytest.raises(ValueError, match=r"heads\.npz: layer must (be|have)"):
            load_head_record(save({**head_arrays(), "layer": np.array(layer, dtype=int)}))


def test_pickled_objects_are_refused(save):
    with pytest.raises(ValueError, match=r"heads\.npz cannot be read: .*allow_pickle"):
        load_head_record(save({**head_arrays(), "encoding": np.array([None], dtype=object)}))


def test_a_record_that_is_missing_is_named(tmp_path):
    with pytest.raises(
        ValueError, match=re.escape("heads.npz is not a file, expected the heads.npz of a run")
    ):
        load_head_record(tmp_path / "heads.npz")


def arrays(folder):
    with np.load(folder / HEADS_FILE, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded") / "run"
    train(RUN, folder)
    return folder


def test_the_record_has_the_start_and_every_epoch(recorded):
    found = arrays(recorded)
    assert found["epoch"].tolist() == [0, 1, 2, 3]
    assert found["layer"].tolist() == [0, 0, 0, 1, 1]
    assert found["center"].shape == (4, 5, 2)
    assert found["window_3"].shape == (4, 2)
    assert found["chance_window_3"].shape == (2,)
    assert (found["grid"].tolist(), found["query"].tolist()) == ([4, 4], [2, 2])
    assert (str(found["encoding"]), str(found["content"])) == ("quadratic", "")
    assert np.isnan(found["validation_accuracy"][0])
    assert (found["validation_accuracy"][1:] >= 0).all()
    assert (found["train_accuracy"][1:] <= 1).all()


def test_the_start_are_the_initial_parameters_and_the_end_those_of_the_last_checkpoint(recorded):
    found = arrays(recorded)
    weights = read_weights(recorded / CHECKPOINTS / LAST)
    last = torch.cat([weights[f"blocks.{block}.attention.relative.center"] for block in (0, 1)])
    np.testing.assert_array_equal(found["center"][-1], last.double().numpy())
    torch.manual_seed(RUN.seed)
    model = RUN.make_model(image_size=(8, 8), in_channels=1, num_classes=10)
    first = torch.cat(
        [
            dict(model.named_parameters())[f"blocks.{block}.attention.relative.center"]
            for block in (0, 1)
        ]
    )
    np.testing.assert_array_equal(found["center"][0], first.detach().double().numpy())
    assert (found["center"][0] != found["center"][-1]).any()


def test_a_checkpoint_holds_the_moments(recorded):
    kept = callback_state(recorded / CHECKPOINTS / LAST, HeadRecorder.__name__)["moments"]
    assert isinstance(kept, list)
    moments = [Moment.from_dict(one) for one in kept]
    np.testing.assert_array_equal(
        np.stack([moment.heads.mean.numpy() for moment in moments]), arrays(recorded)["mean"]
    )


def test_a_resumed_run_has_the_record_of_an_uninterrupted_one(recorded, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(RUN, tmp_path / "broken", callbacks=[InterruptAt(7)])
    assert (tmp_path / "broken" / HEADS_FILE).is_file()
    train(RUN, tmp_path / "broken", resume=True)
    whole, resumed = arrays(recorded), arrays(tmp_path / "broken")
    assert whole.keys() == resumed.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(array, resumed[name], err_msg=name)


def test_a_run_that_began_without_a_record_has_one_from_there_on(recorded, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(SelfAttentionNetwork, "training_callbacks", lambda *arguments: [])
        with pytest.raises(KeyboardInterrupt):
            train(RUN, tmp_path / "run", callbacks=[InterruptAt(4)])
    assert not (tmp_path / "run" / HEADS_FILE).exists()
    train(RUN, tmp_path / "run", resume=True)
    assert arrays(tmp_path / "run")["epoch"].tolist() == [1, 2, 3]


def test_other_models_leave_no_record(trained):
    assert not (trained.folder / HEADS_FILE).exists()
