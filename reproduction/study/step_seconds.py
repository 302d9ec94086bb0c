"""CPU time of a training step of each model of a study."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import joblib
import torch

from reproduction.benchmarks.measurement import interleaved_medians
from reproduction.study.results import STEP_SECONDS
from reproduction.study.study import Study
from reproduction.study.train_and_measure import load_dataset
from reproduction.training import train_steps
from teka.files import make_directory, write_json
from teka.provenance import provenance
from teka.training import Run

SECONDS = 2.0  # of each model


def measure_step_seconds(
    study: Study,
    out: str | Path,
    *,
    data_dir: str | None = None,
    processes: int = 1,
    command: str = "",
) -> Path:
    """Time a training step of every model of a study, and write the times to a file.

    The models take turns, so that other work on the machine slows all of them alike. If the file
    exists, the CPU seconds in tables are the number of steps times the time of a step.

    Args:
        study: The study.
        out: Folder of its results.
        data_dir: Folder with the files of the data sets.
        processes: Number of models that share the CPU cores in the training of the study.
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
    medians = interleaved_medians(steps, SECONDS, time.process_time)
    models = [
        {"labels": study_model.labels, "seconds": medians[study_model.name]}
        for study_model in study_models
    ]
    path = make_directory("out", out) / STEP_SECONDS
    return write_json(path, {**provenance(command), "models": models})


def make_training_step(run: Run) -> Callable[[], object]:
    """Create a model, and return a function that trains it for one step on a fixed batch."""
    dataset = load_dataset(run.images)
    model = run.make_model(**dataset.sizes)
    batch = dataset.train[: run.batch_size]
    return partial(
        train_steps,
        model,
        [torch.optim.AdamW(model.parameters())],
        lambda step: batch,
        num_steps=1,
        is_bfloat16=run.precision == "bfloat16",
    )
