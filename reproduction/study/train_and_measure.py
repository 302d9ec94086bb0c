"""Training, measurement and timing of the models of a study."""

import functools
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch.nn.functional import cross_entropy

from reproduction.benchmarks.measurement import measure_median_times
from reproduction.heads.record import HEADS_FILE
from reproduction.study.model_metrics import compute_logits, measure_model
from reproduction.study.results import STEP_SECONDS, TRAINING
from reproduction.study.study import MeasureSettings, Study, StudyModel
from reproduction.training import train_steps
from teka.codec import encode
from teka.data import Dataset, Split
from teka.errors import wrong_value
from teka.files import make_directory, write_json
from teka.provenance import gather_provenance
from teka.training import Run, train
from teka.training.checkpoint import BEST, CHECKPOINTS, LAST, load_weights, read_checkpoint
from teka.training.run import DataOptions
from teka.training.trained_run import TrainedRun, evaluate, export
from teka.training.trainer import load_data

SECONDS = 2.0  # mean duration of timing each model


class LearningCurve(Callback):
    """Lightning callback that measures accuracy and loss on held-out images during training.

    It also measures the CPU time of the training steps, without the time for loading batches and
    for the measurements. The learning curve is saved in the checkpoints.

    Args:
        split: Held-out images.
        num_points: Number of measurements, at equally spaced training steps. None measures after
            every epoch.
    """

    def __init__(self, split: Split, num_points: int | None) -> None:
        self.split = split
        self.num_points = num_points
        self.state: dict[str, Any] = {"points": [], "process_seconds": 0.0}

    def on_train_batch_start(self, *args: Any, **kwargs: Any) -> None:
        """Store the CPU time at the start of a training step."""
        self.started = time.process_time()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Add the CPU time of a step, and measure accuracy and loss if a measurement is due."""
        self.state["process_seconds"] += time.process_time() - self.started
        if self._is_due(trainer):
            pl_module.eval()
            logits = compute_logits(pl_module, self.split.images)
            pl_module.train()
            is_correct = logits.argmax(dim=1) == self.split.labels
            point = {
                "step": trainer.global_step,
                "process_seconds": self.state["process_seconds"],
                "accuracy": is_correct.double().mean().item(),
                "loss": cross_entropy(logits, self.split.labels).item(),
            }
            self.state["points"].append(point)

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.state = state_dict

    def _is_due(self, trainer: Trainer) -> bool:
        if self.num_points is None:
            return trainer.is_last_batch
        step, total = trainer.global_step, int(trainer.estimated_stepping_batches)
        return step * self.num_points // total > (step - 1) * self.num_points // total


def train_and_measure(
    study_model: StudyModel,
    folder: Path,
    *,
    measure: MeasureSettings,
    data_dir: str | None = None,
    command: str = "",
) -> dict[str, Any]:
    """Train and measure one model of a study, and return the results to save.

    Interrupted training resumes after the last complete epoch. If the loss diverges, the results
    contain the error message under the key "failed" instead of measurements.

    Args:
        study_model: Model of the study, with its training run.
        folder: Folder of the study, for checkpoints, model files and measurements of heads.
        measure: Settings of the measurements.
        data_dir: Folder with the files of the data sets.
        command: Command line that is saved with the results.
    """
    training = folder / TRAINING / study_model.name
    run = study_model.run.replace(data_dir=data_dir)
    dataset = load_cached_dataset(run.images)
    if not len(dataset.validation):
        raise wrong_value("validation_size", 0, "at least 1, for the learning curve")
    num_points = measure.curve_points if run.patience is None else None
    result: dict[str, Any] = {
        "labels": study_model.labels,
        "seed": run.seed,
        "run": study_model.run.to_dict(),
        "threads": torch.get_num_threads(),
        **gather_provenance(command),
    }
    callbacks = [LearningCurve(dataset.validation, num_points)]
    try:
        trained = train(
            run, training, resume=True, dataset=dataset, callbacks=callbacks, progress_bar=False
        )
    except FloatingPointError as error:
        return encode({**result, "failed": str(error)})
    # If the training was complete before, the callback has no points but the checkpoint has them.
    curve = read_checkpoint(training / CHECKPOINTS / LAST)["callbacks"]["LearningCurve"]
    points = curve["points"]
    model = run.make_model(**dataset.sizes)
    load_weights(model, training / CHECKPOINTS / (LAST if measure.weights == "last" else BEST))
    result |= {
        **measure_model(model.eval(), dataset, measure),
        **{name: trained[name] for name in ("parameters", "epochs", "seconds")},
        "process_seconds": round(curve["process_seconds"], 3),
        "steps": points[-1]["step"],
        "learning_curve": points,
    }
    if measure.save is not None:
        if measure.weights == "last":
            trained["validation_accuracy"] = points[-1]["accuracy"]
        finished = TrainedRun(training, run, model, dataset, trained)
        evaluate(finished, command=command)
        export(finished, folder / "models" / study_model.name, dtype=measure.save)
    if (training / HEADS_FILE).is_file():
        heads = make_directory("out", folder / "heads") / f"{study_model.name}.npz"
        shutil.copyfile(training / HEADS_FILE, heads)
    return encode(result)


@functools.lru_cache(maxsize=1)
def load_cached_dataset(images: DataOptions) -> Dataset:
    """Load the data set of a training run.

    The data set stays in memory until another one is loaded, because the next model of a study
    often uses the same data set.
    """
    return load_data(Run(images=images))


def time_training_steps(
    study: Study,
    out: str | Path,
    *,
    data_dir: str | None = None,
    processes: int = 1,
    command: str = "",
) -> Path:
    """Measure the CPU time of one training step for each model of a study, and save the times.

    The timing alternates between the models, so that other work on the machine slows all of them
    equally. The tables of the study then show these times, multiplied by the number of training
    steps, instead of the CPU times measured during training.

    Args:
        study: The study.
        out: Folder with the study's results.
        data_dir: Folder with the files of the data sets.
        processes: Number of models that share the CPU cores when the study is trained.
        command: Command line that is saved with the results.

    Returns:
        The path of the file `step_seconds.json`.
    """
    study_models = study.models({"seed": [str(study.seeds[0])]})
    torch.set_num_threads(max(1, joblib.cpu_count() // processes))
    steps = {
        study_model.name: make_training_step(study_model.run.replace(data_dir=data_dir))
        for study_model in study_models
    }
    medians = measure_median_times(steps, SECONDS, time.process_time)
    models = [
        {"labels": study_model.labels, "seconds": medians[study_model.name]}
        for study_model in study_models
    ]
    path = make_directory("out", out) / STEP_SECONDS
    return write_json(path, {**gather_provenance(command), "models": models})


def make_training_step(run: Run) -> Callable[[], object]:
    """Return a function that trains the model of a run for one step on a fixed batch."""
    dataset = load_cached_dataset(run.images)
    model = run.make_model(**dataset.sizes)
    batch = dataset.train[: run.batch_size]
    return functools.partial(
        train_steps,
        model,
        [torch.optim.AdamW(model.parameters())],
        lambda step: batch,
        num_steps=1,
        is_bfloat16=run.precision == "bfloat16",
    )
