"""The table of accuracies: as plain text for the terminal and as Markdown."""

import dataclasses
import textwrap
from dataclasses import dataclass

from teka.audit.page.notation import averaged, percent, write_step
from teka.audit.page.tables import Table
from teka.training.report.model_result import AXES
from teka.training.report.results import Report

WIDTH = 100
"""Columns of a terminal that the plain table fits into, if its shifts do."""


@dataclass(frozen=True)
class TableRow:
    """One model in the table.

    Args:
        name: The model.
        axes: For each axis with shifts, the axis and the percentage at each shift; "–" where it was not measured.
        lowest: Axis and place in its list of the model's lowest accuracy.
        worst: Percentage of test images right at every shift.
        parameters: Number of parameters.
        seconds: Training time of one run.
    """

    name: str
    axes: tuple[tuple[str, tuple[str, ...]], ...]
    lowest: tuple[str, int]
    worst: str
    parameters: str
    seconds: str


def table_shifts(report: Report) -> list[int]:
    """The shifts that head the columns: those of both axes, from the lowest to the highest."""
    return sorted({shift for axis in AXES for shift in report.shifts(axis)})


def table_rows(report: Report) -> list[TableRow]:
    """The table's rows, every number as it is printed, the means over seeds."""
    shifts = table_shifts(report)
    axes = [axis for axis in AXES if report.shifts(axis)]
    rows = []
    for group in report.groups:
        curves = {axis: group.accuracy(axis) for axis in axes}
        cells = {axis: tuple(percent(curves[axis][s]) if s in curves[axis] else "–" for s in shifts) for axis in axes}
        lowest = group.lowest
        rows.append(
            TableRow(
                name=group.name,
                axes=tuple(cells.items()),
                lowest=(lowest.axis, shifts.index(lowest.shift)),
                worst=percent(group.worst_shift_accuracy),
                parameters=f"{group.parameters:,}",
                seconds=f"{group.seconds:.0f}",
            )
        )
    return rows


def table_note(report: Report) -> str:
    """What the numbers mean, in one line or two."""
    seeds = averaged([len(group.results) for group in report.groups])
    return (
        f"Accuracy in % at each shift in pixels, {seeds}: dx to the right, dy downwards. "
        "Worst shift: share of the test images right at every shift. Seconds: training."
    )


def shift_table(report: Report) -> Table:
    """The table, one row for each model, with a line for each axis."""
    heads = ("model", "", *map(write_step, table_shifts(report)), "worst", "parameters", "seconds")
    rows = []
    for row in table_rows(report):
        axes, cells = zip(*row.axes, strict=True)
        along = ("\n".join(values) for values in zip(*cells, strict=True))
        rows.append((row.name, "\n".join(axes), *along, row.worst, row.parameters, row.seconds))
    return Table("", heads, tuple(rows))


def plain_table(report: Report) -> str:
    """The table as aligned plain text, at most 100 columns wide, and what it means."""
    table = shift_table(report)
    # Four characters at most, so that nine shifts fit.
    rows = tuple(
        tuple(cell.replace("100.0", "100") if at > 1 else cell for at, cell in enumerate(row)) for row in table.rows
    )
    text = dataclasses.replace(table, rows=rows).plain(WIDTH, narrowest=14)
    return f"{text}\n\n{textwrap.fill(table_note(report), WIDTH)}"


def markdown_table(report: Report) -> str:
    """The table as Markdown, its note below."""
    return f"{shift_table(report).markdown()}\n\n{table_note(report)}"
