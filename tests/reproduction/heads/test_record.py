import numpy as np
import pytest
import torch

from reproduction.baselines import SelfAttentionNetwork
from reproduction.heads.record import HEADS_FILE, HeadRecorder, load_head_record
from teka.training import Run, train
from teka.training.checkpoint import CHECKPOINTS, LAST, read_checkpoint, read_weights
from tests.reproduction.heads.head_records import head_arrays
from tests.training.interrupt import InterruptAt

RUN = Run.from_fields(
    data="digits",
    image_size=8,
    train_size=96,
    validation_size=40,
    model="self_attention",
    dim=6,
    depth=2,
    heads=(3, 2),
    epochs=3,
    batch_size=32,
    learning_rate=0.02,
    dropout=0.2,
)


@pytest.fixture
def save(tmp_path):
    def to_file(arrays):
        np.savez_compressed(tmp_path / "heads.npz", **arrays)
        return tmp_path / "heads.npz"

    return to_file


def test_arrays_are_read_as_saved(save):
    arrays = head_arrays()
    record = load_head_record(save(arrays))
    assert record.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(record[name], array)


def test_pickled_objects_are_refused(save):
    with pytest.raises(ValueError, match="allow_pickle"):
        load_head_record(save({**head_arrays(), "encoding": np.array([None], dtype=object)}))


def arrays(folder):
    with np.load(folder / HEADS_FILE, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded") / "run"
    train(RUN, folder)
    return folder


def test_the_record_has_the_start_and_every_epoch(recorded):
    record = arrays(recorded)
    assert record["epoch"].tolist() == [0, 1, 2, 3]
    assert record["layer"].tolist() == [0, 0, 0, 1, 1]
    assert record["center"].shape == (4, 5, 2)
    assert record["window_3"].shape == (4, 2)
    assert record["chance_window_3"].shape == (2,)
    assert record["grid"].tolist() == [4, 4]


def test_the_start_are_the_initial_parameters_and_the_end_those_of_the_last_checkpoint(recorded):
    record = arrays(recorded)
    weights = read_weights(recorded / CHECKPOINTS / LAST)
    last = torch.cat([weights[f"blocks.{block}.attention.relative.center"] for block in (0, 1)])
    np.testing.assert_array_equal(record["center"][-1], last.double().numpy())
    torch.manual_seed(RUN.seed)
    model = RUN.make_model(image_size=(8, 8), in_channels=1, num_classes=10)
    first = torch.cat(
        [
            dict(model.named_parameters())[f"blocks.{block}.attention.relative.center"]
            for block in (0, 1)
        ]
    )
    np.testing.assert_array_equal(record["center"][0], first.detach().double().numpy())
    assert (record["center"][0] != record["center"][-1]).any()


def test_a_checkpoint_holds_the_moments(recorded):
    callbacks = read_checkpoint(recorded / CHECKPOINTS / LAST)["callbacks"]
    moments = callbacks[HeadRecorder.__name__]["moments"]
    assert isinstance(moments, list)
    means = np.stack([moment["mean"].numpy() for moment in moments])
    np.testing.assert_array_equal(means, arrays(recorded)["mean"])


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
