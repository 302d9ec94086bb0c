"""Train and measure one cell of a study."""

import dataclasses
import functools
import shutil
from pathlib import Path

import torch
from torch import nn

from teka.data import Dataset
from teka.errors import wrong_value
from teka.experiments.study.cell import Cell
from teka.experiments.study.learning_curve import LearningCurve
from teka.experiments.study.measure import Measure
from teka.experiments.study.measure_heads import measure_heads
from teka.experiments.study.measure_model import EVALUATION_BATCH, measure_model
from teka.files import make_directory, write_json
from teka.models import SelfAttentionNetwork
from teka.provenance import provenance
from teka.training import Run
from teka.training.checkpoint import BEST, CHECKPOINTS, LAST, callback_state, load_weights
from teka.training.heads.record import HeadRecorder, Moment, chance_of
from teka.training.train import load_data, train

CELLS = "cells"
TRAINING = "training"
WEIGHT_FILES = {"last": LAST, "best": BEST}


def cell_file(folder: Path, cell: Cell) -> Path:
    """Where a cell's results are.

    Args:
        folder: Folder of the study's cells.
        cell: The cell.
    """
    return folder / f"{cell.name}.json"


def training_folder(folder: Path, cell: Cell) -> Path:
    """Where a cell's run lies while it is trained.

    Args:
        folder: Folder of the study's cells.
        cell: The cell.
    """
    return folder.parent / TRAINING / folder.name / cell.name


def run_cell(cell: Cell, measure: Measure, folder: Path, *, data_dir: str | None, command: str) -> None:
    """Train a cell, measure it and write its JSON file; a training that was cut off goes on from its last epoch.

    While a cell is trained its run lies in a folder of its own, which is removed when the JSON file is there. A cell
    whose loss became NaN or infinite is written too, with the message as "failed".

    Args:
        cell: The cell.
        measure: What is measured.
        folder: Folder of the study's cells.
        data_dir: Folder with the data sets' files.
        command: The command to keep with the numbers.

    Raises:
        ValueError: Data that cannot be loaded, or no held-out images for the learning curve.
    """
    run = dataclasses.replace(cell.run, data_dir=data_dir)
    place = training_folder(folder, cell)
    dataset = load_cell_data(cell.run, data_dir)
    if not len(dataset.validation):
        raise wrong_value("validation_size", 0, "1 or more: the learning curve is that of held-out images")
    # The last step of a run that may stop early is not known before.
    num_points = measure.curve_points if run.patience is None else None
    curve = LearningCurve(dataset.validation, num_points=num_points, batch_size=EVALUATION_BATCH)
    about: dict[str, object] = {
        "labels": dict(cell.labels),
        "seed": run.seed,
        "run": cell.run.to_dict(),
        "threads": torch.get_num_threads(),
        **provenance(command),
    }
    try:
        result = train(
            run,
            place,
            resume=True,
            command=command,
            dataset=dataset,
            callbacks=[curve],
            progress_bar=False,
            throughput=False,
        )
    except FloatingPointError as error:
        about["failed"] = str(error)
    else:
        if not curve.points:  # trained to its end before, and cut off in what comes now
            curve.load_state_dict(callback_state(place / CHECKPOINTS / LAST, LearningCurve.__name__))
        model = run_model(cell, dataset, place, measure)
        about |= measure_model(model, dataset, measure)
        kept = callback_state(place / CHECKPOINTS / LAST, HeadRecorder.__name__).get("moments")
        if isinstance(model, SelfAttentionNetwork) and isinstance(kept, list):
            moments = [Moment.from_dict(one) for one in kept]
            chance = chance_of(cell.run, moments[0].heads, model)
            about |= {"heads": measure_heads(moments, chance)}
        about |= {
            "parameters": result["parameters"],
            "steps": curve.points[-1].step,
            "epochs": result["epochs"],
            "seconds": round(curve.seconds, 3),
            "process_seconds": round(curve.process_seconds, 3),
            "learning_curve": [dataclasses.asdict(point) for point in curve.points],
        }
    write_json(cell_file(make_directory("out", folder), cell), about)
    shutil.rmtree(place)


def load_cell_data(run: Run, data_dir: str | None) -> Dataset:
    """The data of a cell's run; those of the last one are kept, as neighbouring cells have the same.

    Args:
        run: The run.
        data_dir: Folder with the data sets' files.

    Raises:
        ValueError: Data that cannot be loaded.
    """
    return _load_data(run.data, data_dir, run.image_size, run.train_size, run.validation_size)


@functools.lru_cache(maxsize=1)
def _load_data(
    name: str, data_dir: str | None, image_size: int | None, train_size: int | None, validation_size: int | None
) -> Dataset:
    run = Run(
        data=name, data_dir=data_dir, image_size=image_size, train_size=train_size, validation_size=validation_size
    )
    return load_data(run)


def run_model(cell: Cell, dataset: Dataset, place: Path, measure: Measure) -> nn.Module:
    """The model of a finished training with the weights that are measured, in evaluation mode.

    Args:
        cell: The cell.
        dataset: Its data.
        place: Folder of the training.
        measure: Says which weights.
    """
    model = cell.run.make_model(
        image_size=dataset.image_size, in_channels=dataset.in_channels, num_classes=dataset.num_classes
    )
    load_weights(model, place / CHECKPOINTS / WEIGHT_FILES[measure.weights])
    return model.eval()
