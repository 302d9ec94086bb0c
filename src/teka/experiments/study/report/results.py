"""The saved results of a study: its cells, their factors, and how many are there."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path

from teka.errors import wrong_value
from teka.experiments.study.cells import CELLS, CellResult, FailedCell, decode_cell, list_cells
from teka.experiments.study.report.group import StudyGroup
from teka.experiments.study.step_seconds import StepSeconds, read_step_seconds


@dataclass(frozen=True)
class StudyResults:
    """The cells of a study that are there; made by `read_study_results`.

    Args:
        cells: Finished and failed cells, at least one, all with the same factors.
        planned: How many cells the study has when it is done.
        timing: What a step of every model takes, measured together, where it was; the cells' CPU seconds follow it.
    """

    cells: tuple[CellResult | FailedCell, ...]
    planned: int
    timing: StepSeconds | None = None

    @property
    def factors(self) -> tuple[str, ...]:
        """Names of the factors."""
        return tuple(self.cells[0].labels)

    def levels(self, factor: str) -> list[str]:
        """The levels of a factor that some cell has."""
        return list(dict.fromkeys(cell.labels[factor] for cell in self.cells))

    @property
    def seeds(self) -> list[int]:
        """Every seed that some cell has."""
        return sorted({cell.seed for cell in self.cells})

    @property
    def results(self) -> list[CellResult]:
        """The finished cells."""
        return [cell for cell in self.cells if isinstance(cell, CellResult)]

    @property
    def failed(self) -> list[FailedCell]:
        """The cells that diverged."""
        return [cell for cell in self.cells if isinstance(cell, FailedCell)]

    @property
    def missing(self) -> int:
        """Cells that are planned and not there."""
        return max(0, self.planned - len(self.cells))

    @cached_property
    def groups(self) -> tuple[StudyGroup, ...]:
        """The cells gathered over seeds."""
        gathered: dict[tuple[str, ...], list[CellResult | FailedCell]] = {}
        for cell in sorted(self.cells, key=lambda cell: cell.seed):
            gathered.setdefault(tuple(cell.labels[factor] for factor in self.factors), []).append(cell)
        return tuple(
            StudyGroup(
                labels=dict(zip(self.factors, levels, strict=True)),
                results=tuple(cell for cell in cells if isinstance(cell, CellResult)),
                failed=tuple(cell.seed for cell in cells if isinstance(cell, FailedCell)),
                seeds=len(self.seeds),
            )
            for levels, cells in gathered.items()
        )

    def group(self, labels: Mapping[str, str]) -> StudyGroup | None:
        """The group at these levels, None where no cell is there."""
        return next((group for group in self.groups if group.labels == labels), None)


def read_study_results(folder: str | Path, *, planned: int | None = None) -> StudyResults:
    """Read every cell of a study's folder, loose or packed, and what a training step takes, `step_seconds.json`.

    Where the latter has every model, a cell's CPU seconds are its steps times those of one step.

    Args:
        folder: The study's folder.
        planned: How many cells the study has when it is done; by default the product of all levels and seeds found.

    Raises:
        ValueError: No cell, a file that is not what it should be, cells with different factors, or one that is there
            twice; it names the file.
    """
    cells: dict[tuple[object, ...], CellResult | FailedCell] = {}
    factors: list[str] = []
    for _, content, where in list_cells(Path(folder) / CELLS):
        cell = decode_cell(content, where)
        factors = factors or list(cell.labels)
        if set(cell.labels) != set(factors):
            raise wrong_value(f"{where}: labels", dict(cell.labels), f"the factors of the other cells, {factors}")
        place = (*(cell.labels[factor] for factor in factors), cell.seed)
        if place in cells:
            raise wrong_value(
                f"{where}: labels", dict(cell.labels), f"each cell once; another has seed {cell.seed} too"
            )
        cells[place] = cell
    if not cells:
        raise wrong_value("folder", str(folder), f"a study's folder, with one cell or more in {CELLS}")
    found = StudyResults(tuple(cells.values()), planned=0)
    product = prod(len(found.levels(factor)) for factor in factors) * len(found.seeds)
    timing = read_step_seconds(Path(folder))
    timed = timing.time(found.results) if timing else None
    planned = product if planned is None else planned
    if timed is None:
        return StudyResults(found.cells, planned)
    results = iter(timed)
    kept = tuple(next(results) if isinstance(cell, CellResult) else cell for cell in found.cells)
    return StudyResults(kept, planned, timing)
