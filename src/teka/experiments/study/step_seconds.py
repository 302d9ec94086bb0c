"""Time a training step of every model of a study, all in turn."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Generator
from torch.nn.functional import cross_entropy

from teka.data import Dataset
from teka.experiments.study.cell import Cell
from teka.experiments.study.run_cell import load_cell_data
from teka.experiments.study.run_study import Progress
from teka.experiments.study.study import Study
from teka.experiments.study.threads import share_of_cores, torch_threads
from teka.files import make_directory, write_json
from teka.provenance import provenance
from teka.training.classifier import is_large_on_cpu, make_augmentations, make_optimizer

STEP_SECONDS = "step_seconds.json"
STAGE = "timing"
WARMUP, ROUNDS, STEPS = 2, 9, 2


class StepTimer:
    """A cell's model with all that a step of its training needs.

    Args:
        cell: The cell.
        dataset: Its data, of which every step takes the same batch.
    """

    def __init__(self, cell: Cell, dataset: Dataset) -> None:
        run = cell.run
        self.cell = cell
        self.model = run.make_model(
            image_size=dataset.image_size, in_channels=dataset.in_channels, num_classes=dataset.num_classes
        )
        self.optimizer = make_optimizer(self.model, run, fused=True if is_large_on_cpu(self.model) else None)
        self.augmentations = make_augmentations(run)
        self.images = dataset.train.images[: run.batch_size]
        self.labels = dataset.train.labels[: run.batch_size]
        self.seconds: list[float] = []

    def warm_up(self) -> None:
        """Take steps that are not timed."""
        for _ in range(WARMUP):
            self._step()

    def measure(self) -> None:
        """Take steps and note the processor seconds of one."""
        start = time.process_time()
        for _ in range(STEPS):
            self._step()
        self.seconds.append((time.process_time() - start) / STEPS)

    def _step(self) -> None:
        run, images = self.cell.run, self.images
        for augmentation in self.augmentations:
            images = augmentation(images, Generator().manual_seed(run.seed))
        self.optimizer.zero_grad()
        dtype = getattr(torch, run.precision)
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            loss = cross_entropy(self.model(images), self.labels, label_smoothing=run.label_smoothing)
        loss.backward()
        if run.gradient_clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), run.gradient_clip)
        self.optimizer.step()


def measure_step_seconds(
    study: Study,
    out: str | Path,
    *,
    data_dir: str | None = None,
    processes: int = 1,
    command: str = "",
    progress: Callable[[Progress], None] = lambda _: None,
) -> Path:
    """Time a training step of every model of a study, all in turn in this process, and write `step_seconds.json`.

    The processor seconds of cells that were trained on different days, or beside other work, cannot be compared. Here
    every model takes two steps in each of nine rounds, so that whatever the machine does meets all of them alike; the
    median of the rounds is what a step takes. With this file a study's tables and plots take a cell's seconds to be its
    steps times those of one step. A step is the gradient of one batch, clipping and the optimizer, on the CPU.

    Args:
        study: The study.
        out: Its folder.
        data_dir: Folder with the data sets' files.
        processes: As in `run_study`: the threads are the share of the cores that a cell trained by so many has.
        command: The command to keep with the numbers.
        progress: Called at the beginning and after every model of every round.

    Returns:
        The file.

    Raises:
        ValueError: No process, or data that cannot be loaded.
    """
    threads = share_of_cores(processes)
    folder = make_directory("out", out)
    cells = [study.make_cell(labels, study.seeds[0]) for labels in study.combinations()]
    total = len(cells) * (ROUNDS + 1)
    progress(Progress(STAGE, 0, total, None))
    with torch_threads(threads):
        timers = []
        for cell in cells:
            timers.append(StepTimer(cell, load_cell_data(cell.run, data_dir)))
            timers[-1].warm_up()
            progress(Progress(STAGE, len(timers), total, cell))
        for turn in range(ROUNDS):
            for place, timer in enumerate(timers):
                timer.measure()
                progress(Progress(STAGE, (turn + 1) * len(cells) + place + 1, total, timer.cell))
        about = {**provenance(command), "threads": threads, "rounds": ROUNDS, "steps_a_round": STEPS}
    write_json(folder / STEP_SECONDS, {**about, "models": [_measured(timer) for timer in timers]})
    return folder / STEP_SECONDS


def _measured(timer: StepTimer) -> dict[str, object]:
    seconds = {"seconds": statistics.median(timer.seconds), "lowest": min(timer.seconds), "highest": max(timer.seconds)}
    return {"labels": dict(timer.cell.labels), **{name: round(value, 6) for name, value in seconds.items()}}
