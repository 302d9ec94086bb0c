"""CPU time of a training step of every model of a study, measured in interleaved rounds."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import joblib
import torch

from reproduction.benchmarks.measurement import interleaved_medians
from reproduction.study.cells import STEP_SECONDS
from reproduction.study.run_cell import load_dataset
from reproduction.study.run_study import use_threads
from reproduction.study.study import Study
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
    """Time a training step of every model, and return the path of `step_seconds.json`.

    The models take turns, so that other work on the machine slows all of them alike. With this
    file, the tables compute the CPU seconds of a cell from its number of steps.

    Args:
        study: The study.
        out: Folder of its results.
        data_dir: Folder with the files of the data sets.
        processes: Number of cells that share the CPU cores in the training of the study.
        command: Command line that is saved with the results.
    """
    cells = study.cells({"seed": [str(study.seeds[0])]})
    with use_threads(max(1, joblib.cpu_count() // processes)):
        steps = {cell.name: make_step(cell.run.replace(data_dir=data_dir)) for cell in cells}
        medians = interleaved_medians(steps, SECONDS, time.process_time)
        content = provenance(command)
    models = [{"labels": cell.labels, "seconds": medians[cell.name]} for cell in cells]
    return write_json(make_directory("out", out) / STEP_SECONDS, {**content, "models": models})


def make_step(run: Run) -> Callable[[], object]:
    """Return a function that trains a new model of a run on the same batch again and again."""
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
