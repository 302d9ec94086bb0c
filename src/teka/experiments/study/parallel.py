"""What trains cells side by side: processes of one machine or of many, each cell claimed by one of them."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import joblib
from filelock import FileLock, Timeout

from teka.errors import unknown_name, wrong_value
from teka.experiments.study.cell import Cell
from teka.experiments.study.run_cell import training_folder

PARALLEL = ("loky", "dask", "ray")
PACKAGES = {"dask": "distributed", "ray": "ray[default]"}


@contextlib.contextmanager
def claimed(folder: Path, cell: Cell) -> Iterator[bool]:
    """Claim a cell for as long as the block runs; gives whether it could be had.

    A claim is a lock of the file system, so that it ends with the process that has it, however that goes.

    Args:
        folder: Folder of the study's cells.
        cell: The cell.
    """
    place = training_folder(folder, cell)
    place.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(place.with_name(f"{place.name}.claim"))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


@contextlib.contextmanager
def engine(parallel: str, processes: int) -> Iterator[None]:
    """Let joblib run its calls by an engine for as long as the block runs.

    Args:
        parallel: One of `PARALLEL`, with ":" and an address if it is that of a cluster.
        processes: Processes of this machine, where it is one.

    Raises:
        ImportError: The engine is not installed.
        ValueError: An unknown engine, or a cluster that does not answer.
    """
    name, _, address = parallel.partition(":")
    if name not in PARALLEL:
        raise unknown_name("parallel", parallel, PARALLEL)
    with contextlib.ExitStack() as stack:
        if name == "loky":
            options = {"n_jobs": processes, "initializer": _begin, "initargs": (os.getpid(),)}
        else:
            try:
                options = _reach(name, address, processes, stack)
            except ImportError as error:
                raise ImportError(f"--parallel {name} needs {error.name}; pip install {PACKAGES[name]}") from error
            except (OSError, ValueError, RuntimeError) as error:
                raise wrong_value("parallel", parallel, f"a cluster that answers ({error})") from error
        stack.enter_context(joblib.parallel_config(name, **options))
        yield


def _reach(name: str, address: str, processes: int, stack: contextlib.ExitStack) -> dict[str, object]:
    """Connect to a cluster, or start one of processes on this machine; options for joblib."""
    if name == "dask":
        from dask import config
        from distributed import Client

        here = not address and config.get("scheduler-address", None) is None
        started = {"n_workers": processes, "threads_per_worker": 1, "dashboard_address": None} if here else {}
        stack.enter_context(Client(address or None, timeout=10, **started))
    else:
        import ray  # pyright: ignore[reportMissingImports]
        from ray.util.joblib import register_ray  # pyright: ignore[reportMissingImports]

        ray.init(address or None, **({} if address else {"num_cpus": processes}))
        stack.callback(ray.shutdown)
        register_ray()
    return {"n_jobs": -1}


def _begin(parent: int) -> None:
    """Set up a process of this machine: interruptions are left to the parent, whose end is this one's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()


def _die_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)
