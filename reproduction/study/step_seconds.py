"""CPU time of a training step of every model of a study, measured in interleaved rounds."""

import tempfile
from pathlib import Path
from typing import Any

import joblib
import pandas as pd
from rich.progress import track

from reproduction.study.cells import STEP_SECONDS
from reproduction.study.run_cell import LearningCurve, load_dataset, use_threads
from reproduction.study.study import Study
from teka.files import make_directory, write_json
from teka.provenance import provenance
from teka.training import Run, train

NUM_ROUNDS = 9
STEPS_PER_ROUND = 4


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
    runs = [cell.run.replace(data_dir=data_dir) for cell in cells]
    with use_threads(max(1, joblib.cpu_count() // processes)):
        rounds = [[_time_step(run) for run in runs] for _ in track(range(NUM_ROUNDS), "timing")]
        content = provenance(command) | {"rounds": NUM_ROUNDS}
    seconds = pd.DataFrame(rounds).agg(["median", "min", "max"])
    models = [
        {"labels": cell.labels, "seconds": median, "lowest": lowest, "highest": highest}
        for cell, (median, lowest, highest) in zip(cells, seconds.T.to_numpy(), strict=True)
    ]
    return write_json(make_directory("out", out) / STEP_SECONDS, {**content, "models": models})


def _time_step(run: Run) -> float:
    """Return the CPU seconds of a step in a short training, after as many steps to warm up."""
    short = run.replace(train_size=2 * STEPS_PER_ROUND * run.batch_size, epochs=1, patience=None)
    dataset = load_dataset(short.images)
    curve = LearningCurve(dataset.validation, num_points=2)
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"progress_bar": False}
        train(short, folder, dataset=dataset, callbacks=[curve], **options)
    first, last = (point["process_seconds"] for point in curve.state["points"])
    return (last - first) / STEPS_PER_ROUND
