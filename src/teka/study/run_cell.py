"""Train and measure one cell of a study."""

import dataclasses
import functools
import shutil
from pathlib import Path

import torch
from torch import nn

from teka.audit import accuracy_by_shift, equivariance_error
from teka.data import Dataset, Split
from teka.errors import wrong_value
from teka.files import make_directory, write_json
from teka.flops import flop_counter
from teka.models import Performer
from teka.provenance import provenance
from teka.study.cell import Cell
from teka.study.learning_curve import LearningCurve
from teka.study.measure import Measure
from teka.training import Run
from teka.training.batches import batches
from teka.training.checkpoint import CHECKPOINTS, LAST, callback_state, load_weights
from teka.training.train import load_data, train

CELLS = "cells"
TRAINING = "training"
EVALUATION_BATCH = 250
EQUIVARIANCE_IMAGES = 16


def cell_file(folder: Path, cell: Cell) -> Path:
    """Where a cell's results are.

    Args:
        folder: Folder of the study's cells.
        cell: The cell.
    """
    return folder / f"{cell.name}.json"


def run_cell(cell: Cell, measure: Measure, folder: Path, *, data_dir: str | None, command: str) -> None:
    """Train a cell, measure it and write its JSON file; a training that was cut off goes on from its last epoch.

    The weights measured are those after the last step, so that all cells are measured after equally many. While a cell
    is trained its run lies in a folder of its own, which is removed when the JSON file is there. A cell whose loss
    became NaN or infinite is written too, with the message as "failed".

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
    place = folder.parent / TRAINING / folder.name / cell.name
    dataset = _load_data(run.data, data_dir, run.image_size, run.train_size, run.validation_size)
    if not len(dataset.validation):
        raise wrong_value("validation_size", 0, "1 or more: the learning curve is that of held-out images")
    curve = LearningCurve(dataset.validation, num_points=measure.curve_points, batch_size=EVALUATION_BATCH)
    about: dict[str, object] = {
        "labels": dict(cell.labels),
        "seed": run.seed,
        "run": cell.run.to_dict(),
        "threads": torch.get_num_threads(),
        **provenance(command),
    }
    try:
        result = train(run, place, resume=True, command=command, dataset=dataset, callbacks=[curve], progress_bar=False)
    except FloatingPointError as error:
        about["failed"] = str(error)
    else:
        if not curve.points:  # trained to its end before, and cut off in what comes now
            curve.load_state_dict(callback_state(place / CHECKPOINTS / LAST, LearningCurve.__name__))
        about |= _measured(run_model(cell, dataset, place), cell, dataset, measure)
        about |= {
            "parameters": result["parameters"],
            "steps": curve.points[-1].step,
            "seconds": round(curve.seconds, 3),
            "process_seconds": round(curve.process_seconds, 3),
            "learning_curve": [dataclasses.asdict(point) for point in curve.points],
        }
    write_json(cell_file(make_directory("out", folder), cell), about)
    shutil.rmtree(place)


@functools.lru_cache(maxsize=1)
def _load_data(
    name: str, data_dir: str | None, image_size: int | None, train_size: int | None, validation_size: int | None
) -> Dataset:
    """The data of a run; those of the last one are kept, as neighbouring cells have the same."""
    run = Run(
        data=name, data_dir=data_dir, image_size=image_size, train_size=train_size, validation_size=validation_size
    )
    return load_data(run)


def run_model(cell: Cell, dataset: Dataset, place: Path) -> nn.Module:
    """The model of a finished training after its last step, in evaluation mode.

    Args:
        cell: The cell.
        dataset: Its data.
        place: Folder of the training.
    """
    model = cell.run.make_model(
        image_size=dataset.image_size, in_channels=dataset.in_channels, num_classes=dataset.num_classes
    )
    load_weights(model, place / CHECKPOINTS / LAST)
    return model.eval()


def _measured(model: nn.Module, cell: Cell, dataset: Dataset, measure: Measure) -> dict[str, object]:
    test = _some(dataset.test, measure.images)
    right = 0
    with torch.inference_mode():
        for images, labels in batches(test, batch_size=EVALUATION_BATCH):
            right += int((model(images).argmax(dim=1) == labels).sum())
    shifted = Split(test.images[: measure.shifted_images], test.labels[: measure.shifted_images])
    moved = accuracy_by_shift(
        model, shifted.images, shifted.labels, measure.shifts, mode=measure.mode, batch_size=EVALUATION_BATCH
    )
    forward_flops, training_flops = flops_per_image(model, dataset)
    return {
        "backend": ", ".join(model.chosen_backends()) if isinstance(model, Performer) else "torch",
        "forward_flops": forward_flops,
        "training_flops": training_flops,
        "test_images": len(test),
        "accuracy": right / len(test),
        "mode": measure.mode,
        "shifts": [list(shift) for shift in moved.shifts],
        "shifted_images": moved.num_images,
        "accuracy_by_shift": moved.accuracy.tolist(),
        "minimum_accuracy": moved.minimum_accuracy,
        "worst_shift_accuracy": moved.worst_shift_accuracy,
        **_equivariance(model, shifted, measure),
    }


def _some(split: Split, count: int | None) -> Split:
    """Some images of a split, the same for every cell: published test images need not be in a random order."""
    if count is None or count >= len(split):
        return split
    chosen = torch.randperm(len(split), generator=torch.Generator().manual_seed(0))[:count]
    return Split(split.images[chosen], split.labels[chosen])


def _equivariance(model: nn.Module, split: Split, measure: Measure) -> dict[str, object]:
    """Largest relative change of the logits under the shifts, and two floors below which it says nothing."""
    images = split.images[:EQUIVARIANCE_IMAGES]
    error = equivariance_error(model, images, measure.shifts, mode=measure.mode)
    with torch.inference_mode():
        single = model(images).double()
        exact = model.double()(images.double())
        model.float()
    rounding = ((single - exact).norm() / exact.norm()).item()
    return {
        "equivariance_error": error.maximum,
        "repeat_floor": error.noise_floor,
        "noise_floor": max(error.noise_floor, rounding),
    }


def flops_per_image(model: nn.Module, dataset: Dataset) -> tuple[int, int]:
    """Operations of the matrix products for one image: forward, and forward with backward.

    Args:
        model: The model.
        dataset: Its data.
    """
    image, label = dataset.test.images[:1], dataset.test.labels[:1]
    with flop_counter() as forward, torch.no_grad():
        model(image)
    with flop_counter() as training:
        torch.nn.functional.cross_entropy(model(image), label).backward()
    model.zero_grad()
    return forward.get_total_flops(), training.get_total_flops()
