"""The table of accuracies: as plain text for the terminal and as Markdown."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from teka.audit.page.notation import averaged, percent, signed
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


def plain_table(report: Report) -> str:
    """The table as aligned plain text, one line for each model and axis, at most 100 columns wide.

    Long names are wrapped; more shifts than fit are continued in a further block below.
    """
    shifts, rows = [signed(shift) for shift in table_shifts(report)], table_rows(report)
    ends = [("worst", "parameters", "seconds"), *((row.worst, row.parameters, row.seconds) for row in rows)]
    ends_widths = [max(len(end[column]) for end in ends) for column in range(3)]
    fixed = len("  dx") + sum(width + 2 for width in ends_widths)
    longest = max(len("model"), *(len(row.name) for row in rows))
    name_width = min(longest, max(16, WIDTH - fixed - 5 * len(shifts)))
    per_block = (WIDTH - name_width - fixed) // 5

    blocks = []
    for start in range(0, len(shifts), per_block):
        chosen = slice(start, start + per_block)
        is_last = start + per_block >= len(shifts)
        grid: list[tuple[str, str, Sequence[str], Sequence[str]]] = [
            ("model", "", shifts[chosen], ends[0] if is_last else ())
        ]
        for row, end in zip(rows, ends[1:], strict=True):
            names = zip_longest(textwrap.wrap(row.name, name_width), row.axes)
            for index, (name, along) in enumerate(names):
                axis, cells = along or ("", ())
                grid.append((name or "", axis, cells[chosen], end if is_last and index == 0 else ()))
        lines = [
            f"{name:<{name_width}}  {axis:<2}"
            + "".join(f" {_compact(cell):>4}" for cell in cells)
            + "".join(f"  {cell:>{width}}" for cell, width in zip(end, ends_widths, strict=False))
            for name, axis, cells, end in grid
        ]
        blocks.append("\n".join([lines[0], "-" * len(lines[0]), *(line.rstrip() for line in lines[1:])]))
    return "\n\n".join([*blocks, textwrap.fill(table_note(report), WIDTH)])


def _compact(cell: str) -> str:
    """Four characters at most, so that nine shifts fit."""
    return "100" if cell == "100.0" else cell


def markdown_table(report: Report) -> str:
    """The table as Markdown, one row for each model and axis, its note below."""
    shifts, rows = [signed(shift) for shift in table_shifts(report)], table_rows(report)
    heads = ["model", "shift", *shifts, "worst shift", "parameters", "seconds"]
    lines = [heads, ["---", "---", *["--:"] * (len(heads) - 2)]]
    for row in rows:
        for index, (axis, cells) in enumerate(row.axes):
            name = row.name.replace("\\", "\\\\").replace("|", "\\|")
            tail = [row.worst, row.parameters, row.seconds] if index == 0 else [""] * 3
            lines.append([name if index == 0 else "", axis, *cells, *tail])
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{body}\n\n{table_note(report)}"
