import json

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LambdaCallback

from teka.data import from_arrays
from teka.nn import RandomFeatures
from teka.training import Execution, Run, evaluate, export, restore, train
from teka.training.checkpoint import read_weights
from tests.training.interrupt import InterruptAt


def read_best_weights(folder):
    return read_weights(folder / "checkpoints" / "best.ckpt")


def test_train_saves_run_result_logs_and_two_checkpoints(trained, tiny):
    folder = trained.folder
    assert Run.load(folder) == tiny
    result = json.loads((folder / "result.json").read_text())
    assert result["parameters"] == sum(
        parameter.numel() for parameter in trained.model.parameters()
    )
    assert result["epochs"] == 2
    assert result["seconds"] > 0
    assert result["train_images"] == 96
    assert result["validation_images"] == 40
    assert {"command", "teka", "torch", "hardware", "date"} <= set(result)
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    rows = (folder / "logs" / "version_0" / "metrics.csv").read_text().splitlines()
    assert {"epoch", "train_loss", "train_accuracy", "validation_accuracy"} <= set(
        rows[0].split(",")
    )
    assert list((folder / "logs" / "version_0").glob("events.out.tfevents.*"))


def test_the_same_seed_gives_the_same_weights(tiny, trained, tmp_path):
    train(tiny, tmp_path / "again")
    first, second = read_best_weights(trained.folder), read_best_weights(tmp_path / "again")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_different_seeds_give_different_weights(tiny, trained, tmp_path):
    train(tiny.replace(seed=1), tmp_path / "other")
    first, second = read_best_weights(trained.folder), read_best_weights(tmp_path / "other")
    assert not torch.equal(first["head.weight"], second["head.weight"])


@pytest.mark.parametrize("step", [1, 4])  # the tests of throughput interrupt the last epoch
def test_interrupted_run_resumes_to_the_weights_of_an_uninterrupted_run(
    run_with_dropout, tmp_path, step
):
    run = Run.load(run_with_dropout)
    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "broken", callbacks=[InterruptAt(step)])
    assert not (tmp_path / "broken" / "result.json").exists()
    train(run, tmp_path / "broken", resume=True)
    whole, resumed = (
        read_weights(folder / "checkpoints" / "last.ckpt")
        for folder in (run_with_dropout, tmp_path / "broken")
    )
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert json.loads((tmp_path / "broken" / "result.json").read_text())["epochs"] == 3


def test_resuming_a_finished_run_changes_nothing(trained, tiny):
    before = (trained.folder / "result.json").read_bytes()
    result = train(tiny, trained.folder, resume=True)
    assert result == json.loads(before)
    assert (trained.folder / "result.json").read_bytes() == before


def test_the_model_is_in_training_mode_and_gives_its_warnings(tiny, tmp_path):
    modes = []
    callback = LambdaCallback(
        on_train_start=lambda _, module: modes.extend(part.training for part in module.modules())
    )
    run = tiny.replace(depth=1, pool="class", epochs=1)
    with pytest.warns(UserWarning, match="depth of at least 2") as warned:
        train(run, tmp_path / "run", callbacks=[callback])
    assert modes
    assert all(modes)
    assert len([warning for warning in warned if "depth" in str(warning.message)]) == 1


def test_train_does_not_overwrite_runs_or_files(trained, tiny, tmp_path):
    with pytest.raises(ValueError, match="a folder without a run"):
        train(tiny, trained.folder)
    with pytest.raises(ValueError, match="It differs in learning_rate"):
        train(tiny.replace(learning_rate=0.5), trained.folder, resume=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="out must be"):
        train(tiny, tmp_path / "file")


class TrainAgain(Callback):
    """Start a second training into the same folder while the first one runs."""

    def __init__(self, run, folder):
        self.run, self.folder, self.messages = run, folder, []

    def on_train_epoch_end(self, trainer, pl_module):
        for resume in (False, True):
            with pytest.raises(
                ValueError, match="out must be a folder in which no other training run is active"
            ) as error:
                train(self.run, self.folder, resume=resume)
            self.messages.append(str(error.value))


def test_second_training_in_the_same_folder_is_an_error(tiny, tmp_path):
    second = TrainAgain(tiny.replace(seed=1, epochs=1), tmp_path / "run")
    first = tiny.replace(epochs=1)
    result = train(first, tmp_path / "run", callbacks=[second])
    assert len(second.messages) == 2
    assert Run.load(tmp_path / "run") == first
    assert train(first, tmp_path / "run", resume=True) == result  # the lock is free again


def test_training_that_cannot_start_removes_its_new_folder(tiny, tmp_path):
    (tmp_path / "mine").mkdir()
    cases = [
        ("data", tiny.replace(data="nowhere"), None),
        ("random_shift", tiny.replace(random_shift=99), None),
        ("accelerator", tiny, Execution(accelerator="mps")),  # found after the logs are opened
    ]
    for message, run, execution in cases:
        for name in ("new", "mine"):
            with pytest.raises(ValueError, match=message):
                train(run, tmp_path / name, execution=execution)
    assert list(tmp_path.iterdir()) == [tmp_path / "mine"]


def test_projections_are_redrawn_on_schedule_and_saved(tiny, tmp_path):
    train(tiny.replace(redraw_every=4), tmp_path / "run")  # of the 6 steps, only the 4th redraws
    model = restore(tmp_path / "run").model
    last = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)[
        "state_dict"
    ]
    draws = [int(value) for name, value in last.items() if name.endswith("num_draws")]
    assert draws == [2] * len(
        [module for module in model.modules() if isinstance(module, RandomFeatures)]
    )


def test_training_stops_early_without_improvement(tiny, tmp_path):
    run = tiny.replace(epochs=9, patience=1, learning_rate=1e-12, kernel="squared_relu")
    assert train(run, tmp_path / "run")["epochs"] == 2


def test_best_checkpoint_is_the_last_without_validation_images(tiny, tmp_path):
    train(tiny.replace(validation_size=0), tmp_path / "run")
    best, last = (
        read_weights(tmp_path / "run" / "checkpoints" / name) for name in ("best.ckpt", "last.ckpt")
    )
    assert all(torch.equal(best[name], last[name]) for name in best)


def test_nan_loss_is_an_error(tiny, tmp_path):
    run = tiny.replace(
        learning_rate=1e30, gradient_clip=0.0, kernel="squared_relu", schedule="constant"
    )
    with pytest.raises(
        FloatingPointError, match=r"in epoch 1, step 1\..*learning_rate.*No epoch is complete\."
    ):
        train(run.replace(epochs=5), tmp_path / "run")
    with pytest.raises(
        FloatingPointError, match="the validation loss is nan"
    ):  # after the only step
        train(run.replace(epochs=1, batch_size=96), tmp_path / "short")
    assert not (tmp_path / "short" / "checkpoints").exists()


def test_options_unsuitable_for_images_or_machine_leave_no_run(tiny, tmp_path):
    parts, gpu = Execution(accumulate=33), Execution(accelerator="gpu")
    cases = [
        (
            tiny.replace(random_shift=9),
            None,
            r"random_shift must be at most a side of the images, \(8, 8\).*got 9",
        ),
        (tiny, parts, "accumulate × processes must be at most batch_size = 32.*got 33"),
        *(
            []
            if torch.cuda.is_available()
            else [(tiny, gpu, "accelerator must be available with enough devices.*got 'gpu'")]
        ),
    ]
    for run, execution, message in cases:
        with pytest.raises(ValueError, match=message):
            train(run, tmp_path / "run", execution=execution)
        assert not (tmp_path / "run" / "run.json").exists()


def test_missing_classes_are_reported(tiny, tmp_path):
    labels = torch.arange(60) % 2
    dataset = from_arrays(torch.rand(60, 8, 8), 2 * labels + 1, name="odd")
    with pytest.warns(UserWarning, match="No image of odd has the label 0, 2. Labels should count"):
        train(tiny.replace(epochs=1), tmp_path / "odd", dataset=dataset)
    labels[:] = 1
    with pytest.raises(ValueError, match="data must be training images of at least two classes"):
        train(tiny, tmp_path / "one", dataset=from_arrays(torch.rand(60, 8, 8), labels))
    assert not (tmp_path / "one" / "run.json").exists()


class StopWithinEpoch(Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        trainer.should_stop = trainer.global_step == 5


def test_callback_can_stop_a_training_within_an_epoch(tiny, tmp_path):
    run = tiny.replace(batch_size=16, patience=None)
    assert train(run, tmp_path / "run", callbacks=[StopWithinEpoch()])["epochs"] == 1


def test_run_on_custom_data_needs_the_data_to_be_restored(tiny, tmp_path):
    images, labels = torch.rand(60, 8, 8), torch.arange(60) % 3
    custom_dataset = from_arrays(images, labels, name="noise")
    train(tiny.replace(epochs=1), tmp_path / "run", dataset=custom_dataset)
    with pytest.raises(
        ValueError, match=r"dataset must be 'noise', on which the run was trained.*got 'digits'"
    ):
        restore(tmp_path / "run")
    trained = restore(tmp_path / "run", dataset=custom_dataset)
    assert (evaluate(trained).dataset, evaluate(trained).test_images) == ("noise", 12)
    config = json.loads((export(trained, tmp_path / "model") / "config.json").read_text())
    assert (config["class_names"], config["facts"]["evaluation"]["dataset"]) == (None, "noise")


def test_every_position_encoding_can_be_trained(tiny, tmp_path):
    for position in (
        "none",
        "absolute",
        "rotation",
        "clipped",
        "rotation_joint",
        "clipped_features",
    ):
        run = tiny.replace(position=position, epochs=1, train_size=32, validation_size=0)
        result = train(run, tmp_path / position, progress_bar=False)
        assert result["epochs"] == 1, position
