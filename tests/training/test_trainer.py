import json

import pytest
import torch
from lightning.pytorch import Callback

from teka.data import from_arrays
from teka.nn import RandomFeatures
from teka.training import Execution, Run, evaluate, export, restore, train
from teka.training.checkpoint import read_weights
from tests.training.interrupt import InterruptAt


def weights(folder):
    return read_weights(folder / "checkpoints" / "best.ckpt")


def test_a_run_leaves_its_settings_its_result_its_logs_and_two_checkpoints(trained, tiny):
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
    first, second = weights(trained.folder), weights(tmp_path / "again")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_another_seed_gives_other_weights(tiny, trained, tmp_path):
    train(tiny.replace(seed=1), tmp_path / "other")
    first, second = weights(trained.folder), weights(tmp_path / "other")
    assert not torch.equal(first["head.weight"], second["head.weight"])


@pytest.mark.parametrize("step", [1, 4])  # and in the last one where throughput is measured
def test_a_run_interrupted_in_any_epoch_resumes_to_the_numbers_of_an_uninterrupted_one(
    dropping, tmp_path, step
):
    run = Run.load(dropping)
    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "broken", callbacks=[InterruptAt(step)])
    assert not (tmp_path / "broken" / "result.json").exists()
    train(run, tmp_path / "broken", resume=True)
    whole, resumed = (
        read_weights(folder / "checkpoints" / "last.ckpt")
        for folder in (dropping, tmp_path / "broken")
    )
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert json.loads((tmp_path / "broken" / "result.json").read_text())["epochs"] == 3


def test_resuming_a_finished_run_changes_nothing(trained, tiny):
    before = (trained.folder / "result.json").read_bytes()
    result = train(tiny, trained.folder, resume=True)
    assert result == json.loads(before)
    assert (trained.folder / "result.json").read_bytes() == before


def test_a_folder_of_a_run_or_of_another_run_and_a_file_are_not_written_over(
    trained, tiny, tmp_path
):
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
                ValueError, match="out must be a folder in which no other training is running"
            ) as error:
                train(self.run, self.folder, resume=resume)
            self.messages.append(str(error.value))


def test_a_second_training_in_the_same_folder_is_refused_while_the_first_one_runs(tiny, tmp_path):
    second = TrainAgain(tiny.replace(seed=1, epochs=1), tmp_path / "run")
    first = tiny.replace(epochs=1)
    result = train(first, tmp_path / "run", callbacks=[second])
    assert len(second.messages) == 2
    assert Run.load(tmp_path / "run") == first
    assert train(first, tmp_path / "run", resume=True) == result  # the lock is free again


def test_projections_are_redrawn_on_schedule_and_saved(tiny, tmp_path):
    train(
        tiny.replace(redraw_every=4), tmp_path / "run"
    )  # 2 epochs of 3 steps: before step 4 alone
    model = restore(tmp_path / "run").model
    last = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)[
        "state_dict"
    ]
    draws = [int(value) for name, value in last.items() if name.endswith("num_draws")]
    assert draws == [2] * len(
        [module for module in model.modules() if isinstance(module, RandomFeatures)]
    )


def test_training_stops_early_when_nothing_gets_better(tiny, tmp_path):
    run = tiny.replace(epochs=9, patience=1, learning_rate=1e-12, kernel="squared_relu")
    assert train(run, tmp_path / "run")["epochs"] == 2


def test_the_best_checkpoint_is_the_last_when_nothing_is_held_out(tiny, tmp_path):
    train(tiny.replace(validation_size=0), tmp_path / "run")
    best, last = (
        read_weights(tmp_path / "run" / "checkpoints" / name) for name in ("best.ckpt", "last.ckpt")
    )
    assert all(torch.equal(best[name], last[name]) for name in best)


def test_a_loss_that_is_not_a_number_ends_the_run_with_a_message(tiny, tmp_path):
    run = tiny.replace(
        learning_rate=1e30, gradient_clip=0.0, kernel="squared_relu", schedule="constant"
    )
    with pytest.raises(FloatingPointError, match="learning_rate"):
        train(run.replace(epochs=5), tmp_path / "run")
    with pytest.raises(
        FloatingPointError, match="the validation loss is nan"
    ):  # after the only step
        train(run.replace(epochs=1, batch_size=96), tmp_path / "short")
    assert not (tmp_path / "short" / "checkpoints").exists()


def test_options_that_do_not_fit_the_images_or_the_machine_leave_no_run(tiny, tmp_path):
    parts, gpu = Execution(accumulate=33), Execution(accelerator="gpu")
    asked = [
        (
            tiny.replace(random_shift=9),
            None,
            r"random_shift must be at most a side of the images, \(8, 8\).*got 9",
        ),
        (tiny, parts, "accumulate × processes must be at most batch_size = 32.*got 33"),
        *(
            []
            if torch.cuda.is_available()
            else [(tiny, gpu, "accelerator must be an accelerator of this machine.*got 'gpu'")]
        ),
    ]
    for run, execution, message in asked:
        with pytest.raises(ValueError, match=message):
            train(run, tmp_path / "run", execution=execution)
        assert not (tmp_path / "run" / "run.json").exists()


class StopWithin(Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        trainer.should_stop = trainer.global_step == 5


def test_a_callback_may_end_a_training_within_an_epoch(tiny, tmp_path):
    run = tiny.replace(batch_size=16, patience=None)
    assert train(run, tmp_path / "run", callbacks=[StopWithin()])["epochs"] == 1


def test_a_run_on_data_of_ones_own_is_restored_with_them_alone(tiny, tmp_path):
    images, labels = torch.rand(60, 8, 8), torch.arange(60) % 3
    mine = from_arrays(images, labels, name="noise")
    train(tiny.replace(epochs=1), tmp_path / "run", dataset=mine)
    with pytest.raises(
        ValueError, match=r"dataset must be 'noise', on which the run was trained.*got 'digits'"
    ):
        restore(tmp_path / "run")
    trained = restore(tmp_path / "run", dataset=mine)
    assert (evaluate(trained).dataset, evaluate(trained).test_images) == ("noise", 12)
    config = json.loads((export(trained, tmp_path / "model") / "config.json").read_text())
    assert (config["class_names"], config["facts"]["evaluation"]["dataset"]) == (None, "noise")


def test_every_position_trains(tiny, tmp_path):
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
