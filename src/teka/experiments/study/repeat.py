"""Train one cell again and compare."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from teka.errors import unknown_name
from teka.experiments.study.cell import Cell
from teka.experiments.study.run_cell import CELLS, run_cell
from teka.experiments.study.study import Study
from teka.experiments.study.threads import torch_threads
from teka.files import read_json
from teka.training import Run

# The numbers that only the run decides; times are the machine's.
COMPARED = ("accuracy", "minimum_accuracy", "worst_shift_accuracy", "steps", "parameters", "forward_flops")


@dataclass(frozen=True)
class Repetition:
    """What a cell's file says, and what training it again gave.

    Args:
        name: The cell.
        stored: Numbers of the file.
        repeated: The same numbers now.
    """

    name: str
    stored: Mapping[str, object]
    repeated: Mapping[str, object]

    @property
    def is_same(self) -> bool:
        """Whether every number is the same."""
        return self.stored == self.repeated


def repeat_cell(study: Study, folder: str | Path, name: str, *, data_dir: str | None = None) -> Repetition:
    """Train a finished cell again, from nothing and elsewhere, and compare what only the run decides.

    It takes as many threads as it took then; another processor or another version of torch may still round otherwise.

    Args:
        study: The study.
        folder: Its folder, which stays as it is.
        name: The cell: the name of its file without `.json`.
        data_dir: Folder with the data sets' files.

    Raises:
        ValueError: No such cell, or a file that is not one.
    """
    cells = Path(folder) / CELLS
    path = cells / f"{name}.json"
    if not path.is_file():
        raise unknown_name("repeat", name, sorted(other.stem for other in cells.glob("*.json")))
    stored = read_json(path)
    labels, fields, threads = stored.get("labels"), stored.get("run"), stored.get("threads")
    if not (isinstance(labels, dict) and isinstance(fields, dict) and isinstance(threads, int)):
        raise ValueError(f"{path} lacks labels, run or threads, expected the file of a cell")
    # Sums parted among other numbers of threads round otherwise.
    with torch_threads(threads), tempfile.TemporaryDirectory(prefix="teka-") as elsewhere:
        place = Path(elsewhere) / CELLS
        run_cell(Cell(labels, Run.from_dict(fields)), study.measure, place, data_dir=data_dir, command="")
        repeated = read_json(place / path.name)
    return Repetition(name, *({key: content.get(key) for key in COMPARED} for content in (stored, repeated)))
