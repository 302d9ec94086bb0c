"""Accuracies under shifts of models and their seeds, gathered, as a table and in words; saved as `report.json`."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import NamedTuple

from teka.audit import Estimate
from teka.audit.statistics.estimate import mean_over_seeds
from teka.reporting.formatting import averaged, percent, write_step
from teka.reporting.tables import Table

AXES = ("dx", "dy")
"""The shifts' axes: dx counts pixels to the right, dy pixels downwards, as `Grid` shifts."""
BUILT_IN = "built in"
"""Position and kernel of a model that is not made of such parts."""
WILSON = "wilson"
CONFIDENCE = 0.95
WIDTH = 100  # columns of a terminal that the table fits into, if its shifts do
FALL = 5.0  # percentage points below the unshifted accuracy from which a model is said to fall
BEST_TOLD, WORST_TOLD = 3, 2  # of more models than these the others are in the table alone


@dataclass(frozen=True)
class ModelResult:
    """One model trained with one seed, with accuracies and their 95 % Wilson intervals by axis and shift in pixels."""

    name: str
    position: str
    kernel: str
    backend: str
    parameters: int
    seed: int
    epochs: int | float
    seconds: float
    accuracy_by_shift: dict[str, dict[int, float]]
    interval_by_shift: dict[str, dict[int, tuple[float, float]]]
    worst_shift_accuracy: float
    minimum_accuracy: float
    test_images: int
    sampling: str | None = (
        None  # the stem that makes a token of several pixels; None for a token a pixel
    )


class Lowest(NamedTuple):
    """The lowest accuracy of a model and the shift where it lies."""

    accuracy: float
    axis: str
    shift: int


@dataclass(frozen=True)
class SeedGroup:
    """The results of one model, one for each seed."""

    results: tuple[ModelResult, ...]

    def __post_init__(self) -> None:
        has = f"the model {self.first.name!r} has"
        for key in ("position", "kernel", "backend", "parameters"):
            values = sorted({str(getattr(result, key)) for result in self.results})
            if len(values) > 1:
                raise ValueError(f"{has} {key} {' and '.join(values)}, expected one for each name")
        seeds = [result.seed for result in self.results]
        if len(set(seeds)) < len(seeds):
            raise ValueError(f"{has} seeds {seeds}, expected each seed once for each name")

    @property
    def first(self) -> ModelResult:
        """The first result, which has what all of them share."""
        return self.results[0]

    def mean(self, number: str) -> float:
        """A number of the results, the mean over seeds."""
        return fmean(getattr(result, number) for result in self.results)

    def accuracy(self, axis: str) -> dict[int, Estimate]:
        """Accuracy at each shift along an axis, the mean over seeds; of one seed the interval is that of its images."""
        first = self.first.accuracy_by_shift[axis]
        if len(self.results) == 1:
            intervals = self.first.interval_by_shift[axis]
            return {
                shift: Estimate(first[shift], *intervals[shift], CONFIDENCE, WILSON)
                for shift in sorted(first)
            }
        return {
            shift: mean_over_seeds(
                [one.accuracy_by_shift[axis][shift] for one in self.results], CONFIDENCE
            )
            for shift in sorted(first)
        }

    @cached_property
    def lowest(self) -> Lowest:
        """Lowest accuracy over both axes, of the means over seeds, and the shift nearest to none where it lies."""
        found = [
            Lowest(one.value, axis, shift)
            for axis in AXES
            for shift, one in self.accuracy(axis).items()
        ]
        return min(found, key=lambda at: (at.accuracy, abs(at.shift)))

    @property
    def unshifted(self) -> float:
        """Accuracy at no shift, the mean over seeds."""
        return next(curve[0].value for axis in AXES if (curve := self.accuracy(axis)))


@dataclass(frozen=True)
class ShiftReport:
    """The contents of a `report.json`: what every model and seed gave, and by which command and versions."""

    dataset: str
    command: str
    teka: str
    torch: str
    hardware: str
    date: str
    mode: str
    selection: str
    models: tuple[ModelResult, ...]

    @cached_property
    def groups(self) -> tuple[SeedGroup, ...]:
        """The models, each with its results over seeds, in order of appearance."""
        by_name: dict[str, list[ModelResult]] = {}
        for model in self.models:
            by_name.setdefault(model.name, []).append(model)
        return tuple(SeedGroup(tuple(results)) for results in by_name.values())

    @property
    def axes(self) -> list[str]:
        """The axes along which the models were measured."""
        return [axis for axis in AXES if self.models[0].accuracy_by_shift[axis]]

    @property
    def shifts(self) -> list[int]:
        """Every shift along either axis at which some model was measured, from the lowest to the highest."""
        return sorted(
            {
                shift
                for model in self.models
                for axis in AXES
                for shift in model.accuracy_by_shift[axis]
            }
        )

    @property
    def averaged(self) -> str:
        """What its numbers are averages over, in words."""
        return averaged([len(group.results) for group in self.groups])


class TableRow(NamedTuple):
    """One model in the table: for each axis the percentage at each shift, and where in them the lowest one stands."""

    name: str
    axes: tuple[tuple[str, tuple[str, ...]], ...]
    lowest: tuple[str, int]
    worst: str
    parameters: str
    seconds: str


def table_rows(report: ShiftReport) -> list[TableRow]:
    """The table's rows, every number as it is printed, the means over seeds."""
    rows = []
    for group in report.groups:
        axes = []
        for axis in report.axes:
            curve = group.accuracy(axis)
            axes.append(
                (
                    axis,
                    tuple(percent(curve[at].value) if at in curve else "–" for at in report.shifts),
                )
            )
        lowest = group.lowest.axis, report.shifts.index(group.lowest.shift)
        worst, seconds = percent(group.mean("worst_shift_accuracy")), f"{group.mean('seconds'):.0f}"
        rows.append(
            TableRow(
                group.first.name, tuple(axes), lowest, worst, f"{group.first.parameters:,}", seconds
            )
        )
    return rows


def table_note(report: ShiftReport) -> str:
    """What the numbers mean."""
    return (
        f"Accuracy in % at each shift in pixels, {report.averaged}: dx to the right, dy downwards. "
        "Worst shift: share of the test images correct at every shift. Seconds: training."
    )


def plain_table(report: ShiftReport) -> str:
    """The table as aligned text of at most 100 columns, a line for each axis of each model, and what it means."""
    heads = ("model", "", *map(write_step, report.shifts), "worst", "parameters", "seconds")
    rows = []
    for row in table_rows(report):
        axes, cells = zip(*row.axes, strict=True)
        # Four characters at most, so that nine shifts fit.
        along = ("\n".join(values).replace("100.0", "100") for values in zip(*cells, strict=True))
        worst = row.worst.replace("100.0", "100")
        rows.append((row.name, "\n".join(axes), *along, worst, row.parameters, row.seconds))
    text = Table("", heads, tuple(rows)).plain(WIDTH, narrowest=14)
    return f"{text}\n\n{textwrap.fill(table_note(report), WIDTH)}"


def finding(report: ShiftReport) -> str:
    """In a sentence how the accuracy of each model bears the shifts; of more than five, of the best and the worst."""
    groups: Sequence[SeedGroup] = report.groups
    told = ""
    if len(groups) > BEST_TOLD + WORST_TOLD:
        ranked = sorted(groups, key=lambda group: -group.lowest.accuracy)
        groups, told = (
            (*ranked[:BEST_TOLD], *ranked[-WORST_TOLD:]),
            f", the best and the worst of {len(groups)} models",
        )
    reach = max(map(abs, report.shifts))
    by = f"up to {reach} {'pixel' if reach == 1 else 'pixels'}"
    models = "; ".join(f"{group.first.name} {_behaviour(group)}" for group in groups)
    return f"With images of {report.dataset} moved by {by} ({report.averaged}{told}): {models}."


def _behaviour(group: SeedGroup) -> str:
    lowest, high, low = group.lowest, percent(group.unshifted), percent(group.lowest.accuracy)
    if float(high) - float(low) >= FALL:  # as printed, so that a reader who subtracts agrees
        return f"falls from {high} % to {low} % (at {lowest.axis} = {write_step(lowest.shift)})"
    return f"keeps at least {low} % at every shift"
