"""Claims on cells: which of several processes, on all machines that share a folder, trains one."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from teka.study.cell import Cell
from teka.study.run_cell import training_folder


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
