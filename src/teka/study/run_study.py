"""Run the cells of a study side by side, and go on where it was."""

import inspect
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import torch

from teka.errors import wrong_value
from teka.files import make_directory, read_json
from teka.models import MODELS
from teka.study.cell import Cell
from teka.study.measure import Measure
from teka.study.run_cell import CELLS, cell_file, run_cell
from teka.study.study import Study
from teka.study.threads import share_of_cores
from teka.training import Run

TUNING = "tuning"
Places = Sequence[tuple[Mapping[str, str], int]]  # the levels and the seed of cells


@dataclass(frozen=True)
class Progress:
    """How far a study is.

    Args:
        stage: "tuning" or "cells".
        done: Cells that are finished.
        total: All cells of the stage that were asked for.
        cell: The cell that has just been finished, or None at the beginning.
    """

    stage: str
    done: int
    total: int
    cell: Cell | None


def run_study(
    study: Study,
    out: str | Path,
    *,
    data_dir: str | None = None,
    processes: int = 1,
    only: Mapping[str, Sequence[str]] | None = None,
    command: str = "",
    progress: Callable[[Progress], None] = lambda _: None,
) -> Path:
    """Train every cell of a study that has no result yet, after the cells that tune a field.

    The folder holds `tuning/` and `cells/`, with a JSON file for each finished cell. Killed at any moment, the same
    call goes on: finished cells stay, and one that was being trained goes on from its last whole epoch.

    Args:
        study: The study.
        out: Its folder.
        data_dir: Folder with the data sets' files.
        processes: Number of cells trained side by side, each on its share of the cores.
        only: Levels of some factors, or "seed" with some seeds; the other cells are left for later.
        command: The command to keep with the numbers.
        progress: Called at the beginning of a stage and after every cell.

    Returns:
        The folder.

    Raises:
        ValueError: A folder with other cells of the same name, an unknown factor or level, no cell left by `only`.
        ChildProcessError: A process was killed; its cell is not finished, all others stay.
    """
    threads = share_of_cores(processes)
    places = study.places(only or {})
    folder = make_directory("out", out)
    context = multiprocessing.get_context("spawn")  # threads that torch has begun do not outlive a fork
    # Processes start when there is something to do, and serve both stages.
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_begin, initargs=(threads,)) as pool:
        return _run_stages(study, places, folder, data_dir, pool, command, progress)


def _run_stages(
    study: Study,
    places: Places,
    folder: Path,
    data_dir: str | None,
    pool: ProcessPoolExecutor,
    command: str,
    progress: Callable[[Progress], None],
) -> Path:
    groups = study.tuning_cells(places)
    tuning = [cell for cells in groups.values() for cell in cells]
    run_cells(tuning, study.measure, folder / TUNING, data_dir, pool, command, TUNING, progress)
    chosen = {levels: _best(cells, folder / TUNING) for levels, cells in groups.items()}
    cells = study.cells(places, chosen)
    run_cells(cells, study.measure, folder / CELLS, data_dir, pool, command, CELLS, progress)
    return folder


def run_cells(
    cells: Sequence[Cell],
    measure: Measure,
    folder: Path,
    data_dir: str | None,
    pool: ProcessPoolExecutor,
    command: str,
    stage: str,
    progress: Callable[[Progress], None],
) -> None:
    """Train and measure the cells that have no file yet.

    Args:
        cells: The cells.
        measure: What is measured.
        folder: Folder of their files.
        data_dir: Folder with the data sets' files.
        pool: The processes that train.
        command: The command to keep with the numbers.
        stage: What to call this in `progress`.
        progress: Called at the beginning and after every cell.

    Raises:
        ValueError: A file that another run wrote.
        ChildProcessError: A process was killed.
    """
    waiting = [cell for cell in cells if not is_done(folder, cell)]
    done = len(cells) - len(waiting)
    progress(Progress(stage, done, len(cells), None))
    if not waiting:
        return
    running: dict[Future[None], Cell] = {}
    try:
        for cell in waiting:
            running[pool.submit(run_cell, cell, measure, folder, data_dir=data_dir, command=command)] = cell
        while running:
            finished, _ = wait(running, return_when="FIRST_COMPLETED")
            for future in finished:
                cell = running.pop(future)
                _raise_with_name(future, cell)
                done += 1
                progress(Progress(stage, done, len(cells), cell))
    except BrokenProcessPool as error:
        raise ChildProcessError(
            "a process of the study was killed, perhaps for want of memory; the same command goes on, "
            "with fewer --processes if it was memory"
        ) from error
    except BaseException:
        # What is being trained can be gone on with; waiting for it would not be an interruption.
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.kill()  # files are written whole or not at all
        raise


def is_done(folder: Path, cell: Cell) -> bool:
    """Whether a cell has its file.

    Args:
        folder: Folder of the cells' files.
        cell: The cell.

    Raises:
        ValueError: The file is another run's.
    """
    path = cell_file(folder, cell)
    if not path.exists():
        return False
    found = read_json(path).get("run")
    # Fields that came after the file was written have their defaults, which change nothing.
    run = Run.from_dict(found) if isinstance(found, dict) else None
    wanted, came = _decided(cell.run), {} if run is None else _decided(run)
    if came != wanted:
        fields = ", ".join(key for key in wanted if came.get(key) != wanted[key])
        raise wrong_value("out", str(folder.parent), f"a folder of this study; {path.name} differs in {fields}")
    return True


def _decided(run: Run) -> dict[str, object]:
    """The fields of a run, with what its model has by itself where they leave that open."""
    fields = run.to_dict()
    own = inspect.signature(MODELS[run.model]).parameters
    return {name: own[name].default if value is None and name in own else value for name, value in fields.items()}


def _best(cells: Sequence[Cell], folder: Path) -> object:
    """The tuned value with the lowest loss on held-out images in the mean of the places; the first of equals."""
    field = list(cells[0].labels)[-1]
    losses: dict[object, float] = {}
    for cell in cells:
        curve = read_json(cell_file(folder, cell)).get("learning_curve")
        value = cell.run.to_dict()[field]
        loss = curve[-1]["loss"] if isinstance(curve, list) else float("inf")
        losses[value] = losses.get(value, 0.0) + loss
    return min(losses, key=losses.__getitem__)


def _begin(threads: int) -> None:
    """Set up a process of the pool: its share of the cores, and interruptions left to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    # Of many trainings side by side, one line each would hide the progress.
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def _die_with_parent() -> None:
    """End this process when its parent is gone, however it went: the study may be started again at once."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _raise_with_name(future: Future[None], cell: Cell) -> None:
    try:
        future.result()
    except ValueError as error:
        raise ValueError(f"cell {cell.name}: {error}") from error
