"""Training of cells by several processes or by a Dask cluster."""

import contextlib
import functools
import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import joblib
import torch
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console
from rich.progress import track

from reproduction.study.cells import CELLS, TRAINING, add_cell, load_cells
from reproduction.study.run_cell import run_cell
from reproduction.study.study import Cell, Levels, Study
from teka.checks import check_name, check_sizes
from teka.errors import wrong_value
from teka.files import make_directory, resolve_path
from teka.training import Run

CONNECT_SECONDS = 10


def run_study(
    study: Study,
    out: str | Path,
    *,
    train_cell: Callable[..., dict[str, Any]] | None = None,
    data_dir: str | None = None,
    processes: int = 1,
    parallel: str = "loky",
    only: Levels | None = None,
    command: str = "",
) -> Path:
    """Train and measure every cell of a study that is not finished, and return the folder.

    The same call resumes an interrupted study: finished cells are kept, and the others continue
    after their last saved state. Calls with different cells can share a folder.

    Args:
        study: The study.
        out: Folder of the results.
        train_cell: Function of a cell and the folder that returns the content to save. By default
            `run_cell` with the measurements of the study.
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
        train_cell or functools.partial(run_cell, measure=study.measure),
        folder=folder,
        data_dir=None if data_dir is None else str(resolve_path("data_dir", data_dir)),
        command=command,
    )
    saved = load_cells(folder / CELLS)
    for cell in cells:
        check_saved_run(saved, cell, folder)
    calls = {cell.name: functools.partial(train, cell) for cell in cells}
    run_cells(folder / CELLS, calls, processes=processes, parallel=parallel)
    return folder


def run_cells(
    path: Path,
    calls: Mapping[str, Callable[[], dict[str, Any]]],
    *,
    processes: int,
    parallel: str = "loky",
) -> None:
    """Call the functions of the cells that a file lacks, and add their results to the file.

    Args:
        path: File of the cells.
        calls: Function of each cell, by the name of the cell.
        processes: Number of processes.
        parallel: Engine, see `run_study`.
    """
    finished = load_cells(path)
    num_threads = max(1, joblib.cpu_count() // processes)
    remaining = [
        joblib.delayed(_call)(name, call, num_threads)
        for name, call in calls.items()
        if name not in finished
    ]
    num_finished = len(calls) - len(remaining)
    console = Console(stderr=True)
    with _engine(parallel, processes):
        results: Any = joblib.Parallel(return_as="generator_unordered", pre_dispatch="all")(
            remaining
        )
        try:
            for name, content in track(results, "cells", len(calls), num_finished, console=console):
                add_cell(path, name, content)
                shutil.rmtree(path.parent / TRAINING / name, ignore_errors=True)
                num_finished += 1
                print(f"{num_finished}/{len(calls)} {name}", flush=True)
        except BrokenExecutor as error:
            raise ChildProcessError(
                "A training process was killed, perhaps because memory ran out. "
                "Run the same command again to resume, with fewer --processes if necessary."
            ) from error


def _call(
    name: str, call: Callable[[], dict[str, Any]], num_threads: int
) -> tuple[str, dict[str, Any]]:
    """Call the function of a cell, and return the name of the cell and the result."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    try:
        with _without_launcher(), use_threads(num_threads):
            return name, call()
    except ValueError as error:
        raise ValueError(f"cell {name}: {error}") from error


@contextlib.contextmanager
def use_threads(num_threads: int) -> Iterator[None]:
    """Set the number of threads of PyTorch within a block."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _without_launcher() -> Iterator[None]:
    """Train alone within this context, even if torchrun or srun started the process."""
    ranks = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    with patch.dict(os.environ), patch.object(rank_zero_only, "rank", 0):
        for name in list(os.environ):
            if name.startswith(("SLURM_", "TORCHELASTIC_")) or name in ranks:
                del os.environ[name]
        yield


def check_saved_run(saved: Mapping[str, dict[str, Any]], cell: Cell, folder: Path) -> None:
    """Raise a ValueError if a cell is saved with a different run.

    Args:
        saved: Content of the saved cells, by name.
        cell: Cell of the study.
        folder: Folder of the cells, for the error message.
    """
    # Early cells of bounded_rotary and linear_positions were saved without a run.
    if "run" in saved.get(cell.name, {}):
        fields = cell.run.differing_fields(Run.from_dict(saved[cell.name]["run"]))
        if fields:
            expected = f"the folder of this study; {cell.name} differs in {', '.join(fields)}"
            raise wrong_value("out", str(folder), expected)


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
