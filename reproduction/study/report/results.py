"""The saved results of a study: its cells, gathered over seeds, laid out in rows and columns, and compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple

from reproduction.study.cells import CELLS, CellResult, FailedCell, decode_cell, list_cells
from reproduction.study.step_seconds import StepSeconds, read_step_seconds
from teka.audit.statistics.estimate import Estimate, mean_over_seeds
from teka.checks import check_name
from teka.errors import wrong_value

PANEL, ROW, COLUMN = "data", "kernel", "position"
BySeed = Literal[
    "accuracy", "minimum_accuracy", "worst_shift_accuracy", "unshifted_accuracy", "epochs", "seconds", "process_seconds"
]  # fmt: skip
Quantity = BySeed | Literal["forward_flops", "training_flops"]


class GroupPoint(NamedTuple):
    """A point of the learning curve over seeds: step, mean CPU seconds up to it, mean and extreme accuracies."""

    step: int
    process_seconds: float
    accuracy: Estimate
    lowest: float
    highest: float


@dataclass(frozen=True)
class StudyGroup:
    """The cells at one combination of levels: those finished, the seeds that diverged, and the number of all seeds."""

    labels: Mapping[str, str]
    results: tuple[CellResult, ...]
    failed: tuple[int, ...]
    seeds: int

    @property
    def missing(self) -> int:
        """Seeds of the study without a cell here."""
        return self.seeds - len(self.results) - len(self.failed)

    def estimate(self, quantity: Quantity) -> Estimate | None:
        """Mean and interval over seeds of one measured quantity; None where nothing was measured."""
        values = [
            float(value)
            for result in self.results
            if (value := getattr(result, quantity)) is not None
        ]
        return mean_over_seeds(values) if values else None

    def largest(self, quantity: Literal["equivariance_error", "noise_floor"]) -> float | None:
        """The largest value over seeds; None where nothing was measured."""
        return max(
            (value for result in self.results if (value := getattr(result, quantity)) is not None),
            default=None,
        )

    @cached_property
    def curve(self) -> list[GroupPoint]:
        """The learning curve over seeds, at every step that some seed was measured at and all reach."""
        points = []
        for step in sorted({step for result in self.results for step in result.along("step")}):
            accuracies, seconds = (
                [
                    value
                    for result in self.results
                    if (value := result.at(quantity, step)) is not None
                ]
                for quantity in ("accuracy", "process_seconds")
            )
            if len(accuracies) == len(self.results):
                ends = min(accuracies), max(accuracies)
                points.append(
                    GroupPoint(
                        step, sum(seconds) / len(seconds), mean_over_seeds(accuracies), *ends
                    )
                )
        return points


class StudyResults:
    """The cells of a study that are there, at least one, all with the same factors: `results` and those `failed`.

    `planned` is how many it will have, by default the product of all levels and seeds, and `missing` how many of them
    are not there. Where a step of every model was timed in turn, the cells' CPU seconds follow the timing.
    """

    def __init__(
        self,
        cells: Sequence[CellResult | FailedCell],
        planned: int | None = None,
        timing: StepSeconds | None = None,
    ) -> None:
        self.cells, self.timing = cells, timing
        self.results = [cell for cell in cells if isinstance(cell, CellResult)]
        self.failed = [cell for cell in cells if isinstance(cell, FailedCell)]
        self.factors, self.seeds = tuple(cells[0].labels), sorted({cell.seed for cell in cells})
        product = prod(len(self.levels(factor)) for factor in self.factors) * len(self.seeds)
        self.planned = product if planned is None else planned
        self.missing = max(0, self.planned - len(cells))

    def levels(self, factor: str) -> list[str]:
        """The levels of a factor that some cell has."""
        return list(dict.fromkeys(cell.labels[factor] for cell in self.cells))

    @cached_property
    def groups(self) -> tuple[StudyGroup, ...]:
        """The cells gathered over seeds."""
        gathered: dict[tuple[str, ...], list[CellResult | FailedCell]] = {}
        for cell in sorted(self.cells, key=lambda cell: cell.seed):
            gathered.setdefault(tuple(cell.labels[factor] for factor in self.factors), []).append(
                cell
            )
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

    def reference_of(self, group: StudyGroup, reference: Mapping[str, str]) -> StudyGroup | None:
        """The group with the same levels as this one but for those of the reference; None where no cell is there."""
        for factor in reference:
            check_name("reference factor", factor, self.factors)
        return self.group({**group.labels, **reference}) if reference else None


def read_study_results(folder: str | Path, *, planned: int | None = None) -> StudyResults:
    """Read every cell of a study's folder, loose or packed, and what a training step takes, `step_seconds.json`.

    `planned` is how many cells the study has when it is done; by default the product of all levels and seeds found. A
    file that is not what it should be, cells with different factors, and one that is there twice are errors.
    """
    cells: dict[tuple[object, ...], CellResult | FailedCell] = {}
    factors: list[str] = []
    for _, content, where in list_cells(Path(folder) / CELLS):
        cell = decode_cell(content, where)
        factors = factors or list(cell.labels)
        if set(cell.labels) != set(factors):
            raise wrong_value(
                f"{where}: labels", dict(cell.labels), f"the factors of the other cells, {factors}"
            )
        place = (*(cell.labels[factor] for factor in factors), cell.seed)
        if place in cells:
            expected = f"each cell once; another has seed {cell.seed} too"
            raise wrong_value(f"{where}: labels", dict(cell.labels), expected)
        cells[place] = cell
    if not cells:
        raise wrong_value(
            "folder", str(folder), f"a study's folder, with one cell or more in {CELLS}"
        )
    timing = read_step_seconds(Path(folder))
    timed = timing.time(cells.values()) if timing else None
    return StudyResults(timed or tuple(cells.values()), planned, timing if timed else None)


class StudyMatrix:
    """A study laid out: one panel for each data set, and in it rows and columns, both from the best to the worst.

    The factor "data" makes the panels, "position", or else the last one other than "kernel", the columns if there are
    two others, and what remains the rows together. Without data sets the only panel is "", without columns the column.
    """

    def __init__(self, study: StudyResults) -> None:
        self.study = study
        others = [factor for factor in study.factors if factor != PANEL]
        columns = [factor for factor in others if factor != ROW]
        self.column_factor = (
            None if len(others) < 2 else COLUMN if COLUMN in others else columns[-1]
        )
        self.row_factors = tuple(factor for factor in others if factor != self.column_factor)
        self.row_title = ", ".join(self.row_factors) or "model"
        self._groups = {self.place_of(group): group for group in study.groups}
        self._means = {
            place: found.value
            for place, group in self._groups.items()
            if (found := group.estimate("accuracy"))
        }
        self.panels = list(dict.fromkeys(panel for panel, _, _ in self._groups))
        self.rows, self.columns = self._ranked(1), self._ranked(2)

    def place_of(self, group: StudyGroup) -> tuple[str, str, str]:
        """Panel, row and column of a group."""
        row = ", ".join(group.labels[factor] for factor in self.row_factors) or "all"
        return (
            group.labels.get(PANEL, ""),
            row,
            group.labels[self.column_factor] if self.column_factor else "",
        )

    def name_of(self, group: StudyGroup) -> str:
        """Row and column of a group: "squared relu × rotation"."""
        return " × ".join(part for part in self.place_of(group)[1:] if part)

    def reference_row(self, reference: Mapping[str, str]) -> str | None:
        """The row that a reference's levels of some factors pick, None where they do not pick a single row."""
        if not self.row_factors or not set(self.row_factors) <= set(reference):
            return None
        return ", ".join(reference[factor] for factor in self.row_factors)

    def at(self, panel: str, row: str, column: str) -> StudyGroup | None:
        """The group at a place, None where no cell is there."""
        return self._groups.get((panel, row, column))

    def ranked_groups(self, panel: str) -> list[StudyGroup]:
        """The groups of a panel, from the highest accuracy to the lowest, those without one last."""
        places = [place for place in self._groups if place[0] == panel]
        return [
            self._groups[place]
            for place in sorted(places, key=lambda place: -self._means.get(place, -1.0))
        ]

    def _ranked(self, axis: int) -> list[str]:
        """Levels by their mean lead over the others at the same place, so that missing cells favour none."""
        fields: dict[tuple[str, ...], list[float]] = {}
        for place, mean in self._means.items():
            fields.setdefault(place[:axis] + place[axis + 1 :], []).append(mean)
        leads: dict[str, list[float]] = {}
        for place, mean in self._means.items():
            leads.setdefault(place[axis], []).append(
                mean - fmean(fields[place[:axis] + place[axis + 1 :]])
            )
        levels = dict.fromkeys(place[axis] for place in self._groups)
        return sorted(levels, key=lambda level: -fmean(leads[level]) if level in leads else 1.0)


class Comparison(NamedTuple):
    """Accuracy less that of the reference, over the seeds that both have, after as many steps and as much CPU time."""

    equal_steps: Estimate
    equal_time: Estimate | None  # where every run is too slow to have a point on its curve by then
    early: int  # how many runs ended before that time, so that their last accuracy stands for it


def _at_equal_time(result: CellResult, reference: CellResult) -> tuple[float | None, bool]:
    """Accuracy on the curve at the CPU time at which the reference ends, and whether it is the last, of a run over."""
    end, last = reference.learning_curve[-1].process_seconds, result.learning_curve[-1]
    if last.process_seconds < end:
        return last.accuracy, True
    return result.at("accuracy", end, along="process_seconds"), False


def compare_with(group: StudyGroup, reference: StudyGroup | None) -> Comparison | None:
    """The group against the reference; None where no seed has finished in both."""
    by_seed = {result.seed: result for result in (reference.results if reference else ())}
    pairs = [(result, by_seed[result.seed]) for result in group.results if result.seed in by_seed]
    if not pairs:
        return None
    timed = [
        (*_at_equal_time(result, other), other.learning_curve[-1].accuracy)
        for result, other in pairs
    ]
    differences = [accuracy - last for accuracy, _, last in timed if accuracy is not None]
    return Comparison(
        equal_steps=mean_over_seeds(
            [_difference_at_equal_steps(result, other) for result, other in pairs]
        ),
        equal_time=mean_over_seeds(differences) if differences else None,
        early=sum(is_early for _, is_early, _ in timed),
    )


def _difference_at_equal_steps(result: CellResult, reference: CellResult) -> float:
    step = min(one.learning_curve[-1].step for one in (result, reference))
    ours, theirs = (one.at("accuracy", step) for one in (result, reference))
    # Test images where both ran as long; the learning curves where one ran longer.
    if result.steps == reference.steps or ours is None or theirs is None:
        return result.accuracy - reference.accuracy
    return ours - theirs
