"""Training of a study by several processes or by a Dask cluster."""

import contextlib
import functools
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any

import joblib
from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import track

from reproduction.study.cells import CELLS, TUNING, find_cell
from reproduction.study.run_cell import run_cell, use_threads
from reproduction.study.study import Cell, Levels, Study, Tune
from teka.checks import check_name, check_sizes
from teka.errors import wrong_value
from teka.files import make_directory, resolve_path
from teka.training import Run
from teka.training.execution import without_launcher

CONNECT_SECONDS = 10
TRAINING = threading.Lock()  # all threads of a process share the random state of PyTorch


def run_study(
    study: Study,
    out: str | Path,
    *,
    data_dir: str | None = None,
    processes: int = 1,
    parallel: str = "loky",
    only: Levels | None = None,
    command: str = "",
) -> Path:
    """Train and measure every cell of a study that is not finished, and return the folder.

    The same call resumes an interrupted study: finished cells are kept, and the others continue
    after their last complete epoch. Several calls, also on several machines that share the folder,
    divide the cells among themselves.

    Args:
        study: The study.
        out: Folder of the results.
        data_dir: Folder with the files of the data sets.
        processes: Number of cells that are trained at the same time, each with an equal share of
            the CPU cores.
        parallel: "loky" for processes of this machine, "dask" for a new local cluster, or
            "dask:ADDRESS" for a running one.
        only: Levels of some factors, to train only their cells. "seed" is a factor too.
        command: Command line that is saved with the results.

    Raises:
        ImportError: Dask is not installed.
        ValueError: An argument is invalid, or the folder has cells of another study.
        ChildProcessError: A process was killed.
    """
    check_sizes({"processes": processes})
    cells = study.cells(only)
    folder = resolve_path("out", make_directory("out", out))
    train = functools.partial(
        _train,
        measure=study.measure,
        data_dir=None if data_dir is None else str(resolve_path("data_dir", data_dir)),
        command=command,
        num_threads=max(1, joblib.cpu_count() // processes),
    )
    with _engine(parallel, processes):
        if study.tune is not None:
            cells = _tune(study, study.tune, cells, train, folder / TUNING)
        _train_all(cells, train, folder / CELLS)
    return folder


def _train_all(cells: list[Cell], train: Any, folder: Path) -> None:
    # The first pass skips cells that other calls are training. The second pass waits for them.
    for is_waiting in (False, True):
        remaining = [cell for cell in cells if not is_finished(folder, cell)]
        if not remaining:
            return
        calls = [joblib.delayed(train)(cell, folder, is_waiting) for cell in remaining]
        results = joblib.Parallel(return_as="generator_unordered", pre_dispatch="all")(calls)
        console = Console(stderr=True)
        num_finished = len(cells) - len(remaining)
        try:
            for name in track(results, folder.name, len(cells), num_finished, console=console):
                num_finished += 1
                print(f"{folder.name} {num_finished}/{len(cells)} {name}", flush=True)
        except BrokenExecutor as error:
            raise ChildProcessError(
                "A training process was killed, perhaps because memory ran out. "
                "Run the same command again to resume, with fewer --processes if necessary."
            ) from error


def _train(cell: Cell, folder: Path, is_waiting: bool, num_threads: int, **options: Any) -> str:
    """Train a cell unless another process has it, and return its name."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    path = folder.parent / "training" / folder.name / f"{cell.name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, blocking=is_waiting)
    try:
        with TRAINING, without_launcher(), use_threads(num_threads), lock:
            if not is_finished(folder, cell):
                run_cell(cell, folder=folder, **options)
            path.unlink()
    except Timeout:
        return f"{cell.name} is trained by another process"
    except ValueError as error:
        raise ValueError(f"cell {cell.name}: {error}") from error
    return cell.name


def is_finished(folder: Path, cell: Cell) -> bool:
    """Return True if a cell is saved. Raise a ValueError if the saved cell has a different run."""
    saved = find_cell(folder, cell.name)
    if saved is None:
        return False
    if fields := cell.run.differs_from(Run.from_dict(saved["run"])):
        expected = f"the folder of this study; {cell.name} differs in {', '.join(fields)}"
        raise wrong_value("out", str(folder.parent), expected)
    return True


def _tune(study: Study, tune: Tune, cells: list[Cell], train: Any, folder: Path) -> list[Cell]:
    """Return the cells with the values that have the lowest mean loss in the trials."""

    def levels(cell: Cell) -> tuple[str, ...]:
        return tuple(cell.labels[factor] for factor in tune.per)

    tuned = set(map(levels, cells))
    trials = [trial for trial in study.tuning_cells() if levels(trial) in tuned]
    _train_all(trials, train, folder)
    losses: dict[tuple[str, ...], dict[Any, float]] = {}
    for trial in trials:
        curve = (find_cell(folder, trial.name) or {}).get("learning_curve")
        total = losses.setdefault(levels(trial), {})
        value = getattr(trial.run, tune.field)
        total[value] = total.get(value, 0.0) + (curve[-1]["loss"] if curve else float("inf"))
    best = {key: min(values, key=values.__getitem__) for key, values in losses.items()}
    return [
        study.make_cell(cell.labels, cell.run.seed, **{tune.field: best[levels(cell)]})
        for cell in cells
    ]


@contextlib.contextmanager
def _engine(parallel: str, processes: int) -> Iterator[None]:
    """Set the engine that runs the calls of joblib."""
    name, _, address = parallel.partition(":")
    check_name("parallel", name, ("loky", "dask"))
    if name == "loky":
        with joblib.parallel_config(
            name, n_jobs=processes, initializer=_follow_parent, initargs=(os.getpid(),)
        ):
            yield
        return
    from distributed import Client

    options: dict[str, Any] = {"address": address}
    if not address:
        options = {"n_workers": processes, "threads_per_worker": 1, "dashboard_address": None}
    client = Client(timeout=CONNECT_SECONDS, **options)
    with client, joblib.parallel_config(name, n_jobs=-1):
        yield


def _follow_parent(parent: int) -> None:
    """End this process when its parent ends, and leave interruptions to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
