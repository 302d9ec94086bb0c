"""Train and measure one cell of a study, or train a finished one again and compare."""

import dataclasses
import functools
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import nn
from torch.nn.functional import cross_entropy

from reproduction.baselines import SelfAttentionNetwork
from reproduction.heads.measure import chance_head_grids
from reproduction.heads.record import HeadRecorder, Moment
from reproduction.study.cells import (
    CELLS,
    MODELS,
    CellResult,
    CurvePoint,
    FailedCell,
    find_cell,
    list_cells,
    training_folder,
    write_cell,
)
from reproduction.study.measure import EVALUATION_BATCH, measure_heads, measure_model
from reproduction.study.study import Cell, Measure, Study
from teka.data import Dataset, Split
from teka.errors import unknown_name, wrong_value
from teka.provenance import provenance
from teka.training import Run
from teka.training.checkpoint import BEST, CHECKPOINTS, LAST, callback_state, load_weights
from teka.training.run import DataOptions
from teka.training.train import load_data, train
from teka.training.trained_run import TrainedRun, evaluate, export

WEIGHT_FILES = {"last": LAST, "best": BEST}
# The numbers that only the run decides; times are the machine's.
COMPARED = (
    "accuracy",
    "minimum_accuracy",
    "worst_shift_accuracy",
    "steps",
    "parameters",
    "forward_flops",
)


def share_of_cores(processes: int) -> int:
    """Threads of each of so many processes side by side, at least 1."""
    # Fewer than the machine's where a scheduler or `taskset` gave this process some of them; macOS does not say.
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    if not 1 <= processes <= 16 * cores:
        raise wrong_value(
            "processes", processes, f"at least 1 and at most {16 * cores}, 16 for each core"
        )
    return max(1, cores // processes)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch work with so many threads for as long as the block runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class LearningCurve(Callback):
    """Measures held-out images after some of the steps, and the time of the steps alone.

    Neither measuring nor loading counts as time of a step. The points, part of a checkpoint, are at equal distances in
    steps, the last one after the last step; None is one after every epoch, of a run that may stop before its last.
    """

    def __init__(self, split: Split, *, num_points: int | None) -> None:
        self.split = split
        self.num_points = num_points
        self.points: list[CurvePoint] = []
        self.seconds = 0.0
        self.process_seconds = 0.0
        self._since = (0.0, 0.0)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        """Start both clocks."""
        self._since = (time.perf_counter(), time.process_time())

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: STEP_OUTPUT,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Stop the clocks, and measure if it is time to."""
        if pl_module.device.type == "cuda":
            torch.cuda.synchronize()
        self.seconds += time.perf_counter() - self._since[0]
        self.process_seconds += time.process_time() - self._since[1]
        if self._is_due(trainer):
            self.points.append(self._measure(pl_module, trainer.global_step))

    def state_dict(self) -> dict[str, object]:
        """The curve so far."""
        points = [dataclasses.asdict(point) for point in self.points]
        return {
            "points": points,
            "seconds_of_steps": self.seconds,
            "process_seconds": self.process_seconds,
        }

    def load_state_dict(self, state_dict: dict) -> None:
        """Resume a curve."""
        self.points = [CurvePoint(**point) for point in state_dict["points"]]
        self.seconds = state_dict["seconds_of_steps"]
        self.process_seconds = state_dict["process_seconds"]

    def _is_due(self, trainer: Trainer) -> bool:
        if self.num_points is None:
            return trainer.is_last_batch
        total, step = int(trainer.estimated_stepping_batches), trainer.global_step
        return (
            step * self.num_points // total > (step - 1) * self.num_points // total
        )  # first at or after a share

    def _measure(self, module: LightningModule, step: int) -> CurvePoint:
        module.eval()
        with torch.inference_mode():
            batches = self.split.images.split(EVALUATION_BATCH)
            logits = torch.cat([module(batch.to(module.device)) for batch in batches]).cpu()
        module.train()
        return CurvePoint(
            step=step,
            seconds=self.seconds,
            process_seconds=self.process_seconds,
            accuracy=(logits.argmax(dim=1) == self.split.labels).double().mean().item(),
            loss=cross_entropy(logits, self.split.labels).item(),
        )


def run_cell(
    cell: Cell, measure: Measure, folder: Path, *, data_dir: str | None, command: str
) -> None:
    """Train a cell, on from its last epoch if it was cut off, measure it, or keep why it "failed", in its file."""
    place = training_folder(folder, cell.name)
    dataset = load_cell_data(cell.run, data_dir)
    if not len(dataset.validation):
        raise wrong_value(
            "validation_size", 0, "1 or more; the learning curve is that of held-out images"
        )
    # The last step of a run that may stop early is not known before.
    curve = LearningCurve(
        dataset.validation, num_points=measure.curve_points if cell.run.patience is None else None
    )
    about: dict[str, Any] = {
        "labels": cell.labels,
        "seed": cell.run.seed,
        "run": cell.run.to_dict(),
        "threads": torch.get_num_threads(),
        **provenance(command),
    }
    try:
        run, more = cell.run.replace(data_dir=data_dir), [curve]
        trained = train(
            run,
            place,
            resume=True,
            dataset=dataset,
            callbacks=more,
            progress_bar=False,
            throughput=False,
        )
    except FloatingPointError as error:
        result: CellResult | FailedCell = FailedCell(**about, failed=str(error))
    else:
        if not curve.points:  # trained to its end before, and cut off in what comes now
            curve.load_state_dict(
                callback_state(place / CHECKPOINTS / LAST, LearningCurve.__name__)
            )
        model = run_model(cell, dataset, place, measure)
        measured = measure_model(model, dataset, measure)
        kept = callback_state(place / CHECKPOINTS / LAST, HeadRecorder.__name__).get("moments")
        if isinstance(model, SelfAttentionNetwork) and isinstance(kept, list):
            moments = [Moment.from_dict(one) for one in kept]
            measured["heads"] = measure_heads(
                moments, chance_head_grids(cell.run, moments[0].heads.layers, model.grid)
            )
        measured |= {name: trained[name] for name in ("parameters", "epochs")}
        result = CellResult(
            **about,
            **measured,
            steps=curve.points[-1].step,
            seconds=round(curve.seconds, 3),
            process_seconds=round(curve.process_seconds, 3),
            learning_curve=tuple(curve.points),
        )
        if measure.save is not None:
            if measure.weights == "last":  # what a training tells is of its best epoch
                trained["validation_accuracy"] = curve.points[-1].accuracy
            finished = TrainedRun(place, run, model, dataset, trained)
            evaluate(finished, command=command)
            export(finished, folder.parent / MODELS / cell.name, dtype=measure.save)
    write_cell(folder, cell.name, result)
    shutil.rmtree(place)


def load_cell_data(run: Run, data_dir: str | None) -> Dataset:
    """The data of a cell's run; those of the last one are kept, as neighbouring cells have the same."""
    return _load_data(dataclasses.replace(run.images, data_dir=data_dir))


@functools.lru_cache(maxsize=1)
def _load_data(images: DataOptions) -> Dataset:
    return load_data(Run(images=images))


def run_model(cell: Cell, dataset: Dataset, place: Path, measure: Measure) -> nn.Module:
    """The model of a finished training with the weights that are measured, in evaluation mode."""
    model = cell.run.make_model(**dataset.sizes)
    load_weights(model, place / CHECKPOINTS / WEIGHT_FILES[measure.weights])
    return model.eval()


def repeat_cell(
    study: Study, folder: str | Path, name: str, *, data_dir: str | None = None
) -> tuple[dict[str, object], ...]:
    """Train a finished cell again, from nothing and elsewhere; gives what only the run decides, stored and repeated.

    It takes as many threads as it took then; another processor or another version of torch may still round otherwise.

    Args:
        study: The study.
        folder: Its folder, which stays as it is.
        name: Of the cell's file, without `.json`.
        data_dir: Folder with the data sets' files.

    Raises:
        ValueError: No such cell, or a file that is not one.
    """
    cells = Path(folder) / CELLS
    stored = find_cell(cells, name)
    if stored is None:
        raise unknown_name("repeat", name, [other for other, *_ in list_cells(cells)])
    labels, fields, threads = stored.get("labels"), stored.get("run"), stored.get("threads")
    if not (isinstance(labels, dict) and isinstance(fields, dict) and isinstance(threads, int)):
        raise ValueError(
            f"{cells / name}.json lacks labels, run or threads, expected the file of a cell"
        )
    # Sums parted among other numbers of threads round otherwise.
    with torch_threads(threads), tempfile.TemporaryDirectory(prefix="teka-") as elsewhere:
        place = Path(elsewhere) / CELLS
        cell = Cell(labels, Run.from_dict(fields))
        run_cell(cell, study.measure, place, data_dir=data_dir, command="")
        repeated = find_cell(place, cell.name) or {}
    return tuple({key: content.get(key) for key in COMPARED} for content in (stored, repeated))
