"""Run the cells of a study side by side, on one machine or many, and resume where it was."""

import contextlib
import functools
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib

from reproduction.study.cells import CELLS, TUNING, claimed, find_cell
from reproduction.study.run_cell import run_cell, share_of_cores, torch_threads
from reproduction.study.study import Cell, Measure, Study
from teka.errors import unknown_name, wrong_value
from teka.files import make_directory, resolve_path
from teka.models.model_config import options_class
from teka.training import Run
from teka.training.execution import without_launcher

PARALLEL = ("loky", "dask", "ray")
PACKAGES = {"dask": "distributed", "ray": "ray[default]"}
ANSWER = 10  # seconds until a cluster is taken not to answer
PAUSE = 5.0  # seconds between two looks at cells that others train
Train = Callable[[Cell, Path], tuple[Cell, bool]]
TRAINING = threading.Lock()  # one cell at a time in a process: torch has one random state


@dataclass(frozen=True)
class Progress:
    """How far a study is."""

    stage: str  # "tuning" or "cells"
    done: int
    total: int  # of the cells of the stage that were asked for
    cell: Cell | None  # that has just been finished; None at the beginning


def run_study(
    study: Study,
    out: str | Path,
    *,
    data_dir: str | None = None,
    processes: int = 1,
    parallel: str = PARALLEL[0],
    only: Mapping[str, Sequence[str]] | None = None,
    command: str = "",
    progress: Callable[[Progress], None] = lambda _: None,
) -> Path:
    """Train every cell of a study that has no result yet, after the cells that tune a field; gives the folder.

    The folder holds `tuning/` and `cells/`, with a JSON file for each finished cell, or what `pack_study` made of them.
    Killed at any moment, the same call resumes it: finished cells stay, and one that was being trained continues from
    its last whole epoch. Any number of such calls, on all machines that share the folder, train one study together.

    Args:
        study: The study.
        out: Its folder.
        data_dir: Folder with the data sets' files, as `teka download` lays them out.
        processes: Number of cells trained side by side on a machine, each on its share of the cores.
        parallel: What runs them: "loky", processes of this machine; or "dask" or "ray", the workers of a cluster, of
            which `dask:ADDRESS` and `ray:ADDRESS` say where it is.
        only: Levels of some factors, or "seed" with some seeds; the other cells are left for later.
        command: The command to keep with the numbers.
        progress: Called at the beginning of a stage and after every cell.

    Raises:
        ImportError: The engine is not installed.
        ValueError: A folder with other cells of the same name, an unknown factor, level or engine, an engine that
            cannot be reached, no cell left by `only`.
        ChildProcessError: A process was killed; its cell is not finished, all others stay.
    """
    share_of_cores(processes)
    places = study.places(only or {})
    folder = resolve_path(
        "out", make_directory("out", out)
    )  # a cluster's workers may work elsewhere
    data_dir = None if data_dir is None else str(resolve_path("data_dir", data_dir))
    train = functools.partial(
        _train, measure=study.measure, data_dir=data_dir, command=command, processes=processes
    )
    groups = study.tuning_cells(places)
    tuning = [cell for cells in groups.values() for cell in cells]
    with engine(parallel, processes):
        _run_cells(tuning, train, folder / TUNING, progress)
        chosen = {levels: _best(cells, folder / TUNING) for levels, cells in groups.items()}
        _run_cells(study.cells(places, chosen), train, folder / CELLS, progress)
    return folder


def _run_cells(
    cells: Sequence[Cell], train: Train, folder: Path, progress: Callable[[Progress], None]
) -> None:
    """Train the cells that have no file in the folder yet, and wait for those that others train."""
    stage = folder.name
    waiting = [cell for cell in cells if not is_done(folder, cell)]
    progress(Progress(stage, len(cells) - len(waiting), len(cells), None))
    while waiting:
        before = len(waiting)
        for cell in _finished(train, waiting, folder):
            waiting.remove(cell)
            progress(Progress(stage, len(cells) - len(waiting), len(cells), cell))
        waiting = [cell for cell in waiting if not is_done(folder, cell)]
        if len(waiting) == before:  # all of them are others'
            time.sleep(PAUSE)


def _finished(train: Train, cells: Sequence[Cell], folder: Path) -> Iterable[Cell]:
    """The cells that are done now, as they become so."""
    run: Any = joblib.Parallel(return_as="generator_unordered", pre_dispatch="all")
    try:
        for cell, done in run(joblib.delayed(train)(cell, folder) for cell in cells):
            if done:
                yield cell
    except BrokenExecutor as error:
        raise ChildProcessError(
            "a process of the study was killed, perhaps for want of memory; the same command resumes it, "
            "with fewer --processes if it was memory"
        ) from error


def _train(
    cell: Cell,
    folder: Path,
    *,
    measure: Measure,
    data_dir: str | None,
    command: str,
    processes: int,
) -> tuple[Cell, bool]:
    """Train a cell, if nobody else does, and say whether it has its file now."""
    lightning = logging.getLogger("lightning.pytorch")
    level = lightning.level
    # Of many trainings side by side, one line each would hide the progress.
    lightning.setLevel(logging.ERROR)
    try:
        with (
            TRAINING,
            without_launcher(),
            torch_threads(share_of_cores(processes)),
            claimed(folder, cell.name) as mine,
        ):
            if mine and not is_done(folder, cell):
                run_cell(cell, measure, folder, data_dir=data_dir, command=command)
            return cell, mine
    except ValueError as error:
        raise ValueError(f"cell {cell.name}: {error}") from error
    finally:
        lightning.setLevel(level)


def is_done(folder: Path, cell: Cell) -> bool:
    """Whether a cell is there, loose or packed; it must be of this run."""
    content = find_cell(folder, cell.name)
    if content is None:
        return False
    found = content.get("run")
    # Fields that came after the file was written have their defaults, which change nothing.
    run = Run.from_dict(found) if isinstance(found, dict) else None
    wanted, came = _decided(cell.run), {} if run is None else _decided(run)
    if came != wanted:
        fields = ", ".join(key for key in wanted if came.get(key) != wanted[key])
        raise wrong_value(
            "out",
            str(folder.parent),
            f"a folder of this study; {cell.name}.json differs in {fields}",
        )
    return True


def _decided(run: Run) -> dict[str, object]:
    """The fields of a run, with what its model has by itself where they leave that open."""
    fields = run.to_dict()
    own = options_class(run.model).__dataclass_fields__
    return {
        name: own[name].default if value is None and name in own else value
        for name, value in fields.items()
    }


def _best(cells: Sequence[Cell], folder: Path) -> object:
    """The tuned value with the lowest loss on held-out images in the mean of the places; the first of equals."""
    field = list(cells[0].labels)[-1]
    losses: dict[object, float] = {}
    for cell in cells:
        curve = (find_cell(folder, cell.name) or {}).get("learning_curve")
        value = cell.run.to_dict()[field]
        loss = curve[-1]["loss"] if isinstance(curve, list) else float("inf")
        losses[value] = losses.get(value, 0.0) + loss
    return min(losses, key=losses.__getitem__)


@contextlib.contextmanager
def engine(parallel: str, processes: int) -> Iterator[None]:
    """Let joblib run its calls by one of `PARALLEL`, with ":" and an address if it is a cluster's, within the block."""
    name, _, address = parallel.partition(":")
    if name not in PARALLEL:
        raise unknown_name("parallel", parallel, PARALLEL)
    options: dict[str, Any] = {"n_jobs": -1}
    with contextlib.ExitStack() as stack:
        if name == "loky":
            options = {"n_jobs": processes, "initializer": _begin, "initargs": (os.getpid(),)}
        else:
            try:
                _reach(name, address, processes, stack)
            except ImportError as error:
                raise ImportError(
                    f"--parallel {name} needs {error.name}; pip install {PACKAGES[name]}"
                ) from error
            except (OSError, ValueError, RuntimeError) as error:
                raise wrong_value(
                    "parallel", parallel, f"a cluster that answers ({error})"
                ) from error
        stack.enter_context(joblib.parallel_config(name, **options))
        yield


def _reach(name: str, address: str, processes: int, stack: contextlib.ExitStack) -> None:
    """Connect to a cluster, or start one of processes on this machine."""
    if name == "dask":
        from dask import config
        from distributed import Client

        here = not address and config.get("scheduler-address", None) is None
        started = (
            {"n_workers": processes, "threads_per_worker": 1, "dashboard_address": None}
            if here
            else {}
        )
        stack.enter_context(Client(address or None, timeout=ANSWER, **started))
    else:
        import ray  # pyright: ignore[reportMissingImports]
        from ray.util.joblib import register_ray  # pyright: ignore[reportMissingImports]

        ray.init(address or None, **({} if address else {"num_cpus": processes}))
        stack.callback(ray.shutdown)
        register_ray()


def _begin(parent: int) -> None:
    """Set up a process of this machine: interruptions are left to the parent, whose end is this one's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def die_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=die_with_parent, daemon=True).start()
