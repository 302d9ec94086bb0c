"""Seconds of a training step of every model of a study, timed in turn, in place of those of each cell's training."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from teka.experiments.study.report.cell import CellResult
from teka.files import read_json
from teka.training.report.record import Record

STEP_SECONDS = "step_seconds.json"
"""File of a study's folder."""


@dataclass(frozen=True)
class StepSeconds:
    """What a training step of every model takes.

    Args:
        seconds: CPU seconds of a step by the level of every factor.
        rounds: Rounds of which they are the median.
        hardware: What they were measured on.
        date: When.
    """

    seconds: Mapping[frozenset[tuple[str, str]], float]
    rounds: int
    hardware: str
    date: str

    def has(self, cells: Iterable[CellResult]) -> bool:
        """Whether the models of all these cells were timed."""
        return all(frozenset(cell.labels.items()) in self.seconds for cell in cells)

    def time(self, cell: CellResult) -> CellResult:
        """The cell with its steps times the seconds of one in place of what its own training took."""
        seconds, curve = self.seconds[frozenset(cell.labels.items())], cell.learning_curve
        timed = dataclasses.replace(curve, process_seconds=tuple(seconds * step for step in curve.steps))
        return dataclasses.replace(cell, process_seconds=seconds * cell.steps, learning_curve=timed)


def read_step_seconds(folder: Path) -> StepSeconds | None:
    """Read a study's `step_seconds.json`; None where there is none.

    Args:
        folder: The study's folder.

    Raises:
        ValueError: The file is not JSON, a key is missing, or a value is not what the key takes; it names both.
    """
    path = folder / STEP_SECONDS
    if not path.exists():
        return None
    record = Record(read_json(path), path)
    seconds = {}
    for model in record.records("models"):
        labels = model.record("labels")
        seconds[frozenset((factor, labels.text(factor)) for factor in labels.values)] = model.number("seconds")
    return StepSeconds(seconds, record.whole("rounds"), record.text("hardware"), record.text("date"))
