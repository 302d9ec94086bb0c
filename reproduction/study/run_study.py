"""Training of a study by several processes or by a Dask cluster."""

import contextlib
import functools
import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any

import joblib
from rich.console import Console
from rich.progress import track

from reproduction.study.cells import CELLS, TRAINING, add_cell, load_cells
from reproduction.study.run_cell import run_cell, use_threads
from reproduction.study.study import Cell, Levels, Study
from teka.checks import check_name, check_sizes
from teka.errors import wrong_value
from teka.files import make_directory, resolve_path
from teka.training import Run
from teka.training.processes import process_rank

CONNECT_SECONDS = 10


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
    after their last complete epoch. Calls with different cells can share a folder.

    Args:
        study: The study.
        out: Folder of the results.
        data_dir: Folder with the files of the data sets.
        processes: Number of cells that are trained at the same time, each with an equal share of
            the CPU cores.
        parallel: "loky" for processes of this machine, "dask" for a new local cluster, or
            "dask:ADDRESS" for a running one, whose workers have one thread and share the folder.
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
        folder=folder,
        data_dir=None if data_dir is None else str(resolve_path("data_dir", data_dir)),
        command=command,
        num_threads=max(1, joblib.cpu_count() // processes),
    )
    saved = load_cells(folder / CELLS)
    remaining = [cell for cell in cells if not is_finished(saved, cell, folder)]
    num_finished = len(cells) - len(remaining)
    calls = [joblib.delayed(train)(cell) for cell in remaining]
    console = Console(stderr=True)
    with _engine(parallel, processes):
        results: Any = joblib.Parallel(return_as="generator_unordered", pre_dispatch="all")(calls)
        try:
            for name, content in track(results, "cells", len(cells), num_finished, console=console):
                add_cell(folder / CELLS, name, content)
                shutil.rmtree(folder / TRAINING / name, ignore_errors=True)
                num_finished += 1
                print(f"{num_finished}/{len(cells)} {name}", flush=True)
        except BrokenExecutor as error:
            raise ChildProcessError(
                "A training process was killed, perhaps because memory ran out. "
                "Run the same command again to resume, with fewer --processes if necessary."
            ) from error
    return folder


def _train(cell: Cell, num_threads: int, **options: Any) -> tuple[str, dict[str, Any]]:
    """Train a cell, and return its name and content."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    try:
        with _without_launcher(), use_threads(num_threads):
            return cell.name, run_cell(cell, **options)
    except ValueError as error:
        raise ValueError(f"cell {cell.name}: {error}") from error


@contextlib.contextmanager
def _without_launcher() -> Iterator[None]:
    """Train alone within this context, even if torchrun or srun started the process."""
    variables = dict(os.environ)
    ranks = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    for name in variables:
        if name.startswith(("SLURM_", "TORCHELASTIC_")) or name in ranks:
            del os.environ[name]
    rank = process_rank(0)
    try:
        yield
    finally:
        os.environ |= variables
        process_rank(rank)


def is_finished(saved: dict[str, dict[str, Any]], cell: Cell, folder: Path) -> bool:
    """Return True if a cell is saved. Raise a ValueError if the saved cell has a different run."""
    if cell.name not in saved:
        return False
    if fields := cell.run.differing_fields(Run.from_dict(saved[cell.name]["run"])):
        expected = f"the folder of this study; {cell.name} differs in {', '.join(fields)}"
        raise wrong_value("out", str(folder), expected)
    return True


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
