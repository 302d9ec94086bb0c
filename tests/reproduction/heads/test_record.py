import numpy as np
import pytest
import torch

from reproduction.baselines import SelfAttentionNetwork
from reproduction.heads.record import HEADS_FILE, HeadRecorder
from teka.training import Run, train
from teka.training.checkpoint import CHECKPOINTS, LAST, read_checkpoint, read_weights
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


def load_arrays(folder):
    with np.load(folder / HEADS_FILE, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


@pytest.fixture(scope="module")
def recorded_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded") / "run"
    train(RUN, folder)
    return folder


def test_record_has_the_start_and_every_epoch(recorded_folder):
    record = load_arrays(recorded_folder)
    assert record["epoch"].tolist() == [0, 1, 2, 3]
    assert record["layer"].tolist() == [0, 0, 0, 1, 1]
    assert record["center"].shape == (4, 5, 2)
    assert record["window_3"].shape == (4, 2)
    assert record["chance_window_3"].shape == (2,)
    assert record["grid"].tolist() == [4, 4]


def test_record_begins_with_initial_and_ends_with_final_parameters(recorded_folder):
    record = load_arrays(recorded_folder)
    weights = read_weights(recorded_folder / CHECKPOINTS / LAST)
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


def test_checkpoint_has_the_recorded_moments(recorded_folder):
    callbacks = read_checkpoint(recorded_folder / CHECKPOINTS / LAST)["callbacks"]
    moments = callbacks[HeadRecorder.__name__]["moments"]
    assert isinstance(moments, list)
    means = np.stack([moment["mean"].numpy() for moment in moments])
    np.testing.assert_array_equal(means, load_arrays(recorded_folder)["mean"])


def test_resumed_run_has_the_record_of_an_uninterrupted_run(recorded_folder, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(RUN, tmp_path / "broken", callbacks=[InterruptAt(7)])
    assert (tmp_path / "broken" / HEADS_FILE).is_file()
    train(RUN, tmp_path / "broken", resume=True)
    whole, resumed = load_arrays(recorded_folder), load_arrays(tmp_path / "broken")
    assert whole.keys() == resumed.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(array, resumed[name], err_msg=name)


def test_record_can_begin_when_a_run_is_resumed(recorded_folder, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(SelfAttentionNetwork, "training_callbacks", lambda *arguments: [])
        with pytest.raises(KeyboardInterrupt):
            train(RUN, tmp_path / "run", callbacks=[InterruptAt(4)])
    assert not (tmp_path / "run" / HEADS_FILE).exists()
    train(RUN, tmp_path / "run", resume=True)
    assert load_arrays(tmp_path / "run")["epoch"].tolist() == [1, 2, 3]


def test_other_models_leave_no_record(trained):
    assert not (trained.folder / HEADS_FILE).exists()
