"""Time a training step of every model of a study, all in turn."""

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Generator
from torch.nn.functional import cross_entropy

from reproduction.study.cells import CellResult, FailedCell
from reproduction.study.run_cell import load_cell_data, share_of_cores, torch_threads
from reproduction.study.run_study import Progress
from reproduction.study.study import Cell, Study
from teka.codec import NonNegativeFloat, decode, encode
from teka.data import Dataset
from teka.files import make_directory, read_json, write_json
from teka.provenance import provenance
from teka.training.classifier import is_large_on_cpu, make_augmentations, make_optimizer

STEP_SECONDS = "step_seconds.json"
STAGE = "timing"
WARMUP, ROUNDS, STEPS = 2, 9, 2


@dataclass(frozen=True, kw_only=True)
class ModelSeconds:
    """Processor seconds of a training step of the model with these levels: the median of the rounds, and the ends."""

    labels: Mapping[str, str]
    seconds: NonNegativeFloat
    lowest: float | None = None
    highest: float | None = None


@dataclass(frozen=True, kw_only=True)
class StepSeconds:
    """What `step_seconds.json` holds: seconds of a step of every model, in how many rounds, with what and when."""

    command: str = ""
    teka: str = ""
    torch: str = ""
    hardware: str
    date: str
    threads: int | None = None
    rounds: int
    steps_a_round: int | None = None
    models: tuple[ModelSeconds, ...]

    def time(
        self, cells: Iterable[CellResult | FailedCell]
    ) -> tuple[CellResult | FailedCell, ...] | None:
        """The cells, their CPU seconds steps times those of one; None where a finished one's model was not timed."""
        seconds = {frozenset(model.labels.items()): model.seconds for model in self.models}
        timed = []
        for cell in cells:
            if isinstance(cell, CellResult):
                one = seconds.get(frozenset(cell.labels.items()))
                if one is None:
                    return None
                curve = tuple(
                    replace(point, process_seconds=one * point.step)
                    for point in cell.learning_curve
                )
                cell = replace(cell, process_seconds=one * cell.steps, learning_curve=curve)
            timed.append(cell)
        return tuple(timed)


def read_step_seconds(folder: Path) -> StepSeconds | None:
    """A study's `step_seconds.json`; None where there is none."""
    path = folder / STEP_SECONDS
    if not path.exists():
        return None
    try:
        return decode(StepSeconds, read_json(path), "step_seconds")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


class StepTimer:
    """A cell's model with all that a step of its training needs; every step takes the same batch."""

    def __init__(self, cell: Cell, dataset: Dataset) -> None:
        run = cell.run
        self.cell = cell
        self.model = run.make_model(**dataset.sizes)
        self.optimizer = make_optimizer(
            self.model, run, fused=True if is_large_on_cpu(self.model) else None
        )
        self.augmentations = make_augmentations(run)
        self.images = dataset.train.images[: run.batch_size]
        self.labels = dataset.train.labels[: run.batch_size]

    def take(self, count: int) -> float:
        """Take steps, and give the processor seconds of one."""
        run, dtype, start = (
            self.cell.run,
            getattr(torch, self.cell.run.precision),
            time.process_time(),
        )
        for _ in range(count):
            images = self.images
            for augmentation in self.augmentations:
                images = augmentation(images, Generator().manual_seed(run.seed))
            self.optimizer.zero_grad()
            with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
                loss = cross_entropy(
                    self.model(images), self.labels, label_smoothing=run.label_smoothing
                )
            loss.backward()
            if run.gradient_clip:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), run.gradient_clip)
            self.optimizer.step()
        return (time.process_time() - start) / count


def measure_step_seconds(
    study: Study,
    out: str | Path,
    *,
    data_dir: str | None = None,
    processes: int = 1,
    command: str = "",
    progress: Callable[[Progress], None] = lambda _: None,
) -> Path:
    """Time a training step of every model of a study in turn, and write `step_seconds.json`, whose path it gives.

    The processor seconds of cells that were trained on different days, or beside other work, cannot be compared. Here
    every model takes two steps in each of nine rounds; the median of the rounds is what a step (the gradient of one
    batch, clipping and the optimizer, on the CPU) takes. With this file a study's tables and plots take a cell's
    seconds to be its steps times those of one step.

    Args:
        study: The study.
        out: Its folder.
        data_dir: Folder with the data sets' files.
        processes: As in `run_study`: the threads are the share of the cores that a cell trained by so many has.
        command: The command to keep with the numbers.
        progress: Called at the beginning and after every model of every round.

    Raises:
        ValueError: No process, or data that cannot be loaded.
    """
    threads = share_of_cores(processes)
    folder = make_directory("out", out)
    cells = [study.make_cell(labels, study.seeds[0]) for labels in study.combinations()]
    done = itertools.count()

    def tell(cell: Cell | None) -> None:
        progress(Progress(STAGE, next(done), len(cells) * (ROUNDS + 1), cell))

    tell(None)
    with torch_threads(threads):
        timers: dict[StepTimer, list[float]] = {}
        for cell in cells:
            timer = StepTimer(cell, load_cell_data(cell.run, data_dir))
            timer.take(WARMUP)
            timers[timer] = []
            tell(cell)
        for _, (timer, found) in itertools.product(range(ROUNDS), timers.items()):
            found.append(timer.take(STEPS))
            tell(timer.cell)
        models = []
        for timer, found in timers.items():
            median, low, high = (round(of(found), 6) for of in (statistics.median, min, max))
            models.append(
                ModelSeconds(labels=timer.cell.labels, seconds=median, lowest=low, highest=high)
            )
        measured = StepSeconds(
            **provenance(command),
            threads=threads,
            rounds=ROUNDS,
            steps_a_round=STEPS,
            models=tuple(models),
        )
    return write_json(folder / STEP_SECONDS, encode(measured))
