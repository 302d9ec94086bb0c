"""The table of accuracies: as plain text for the terminal and as Markdown."""

import textwrap
from dataclasses import dataclass

from teka.report.notation import averaged, percent, signed
from teka.report.results import AXES, Report

WIDTH = 100
"""Columns of a terminal that the plain table fits into, if its shifts do."""


@dataclass(frozen=True)
class TableRow:
    """One model in the table.

    Args:
        name: The model.
        axes: For each axis with shifts, the axis and the percentage at each shift; "–" where it was not measured.
        lowest: For each axis, the place in its list of the model's lowest accuracy; −1 where it is not on that axis.
        worst: Percentage of test images right at every shift.
        parameters: Number of parameters.
        seconds: Training time of one run.
    """

    name: str
    axes: tuple[tuple[str, tuple[str, ...]], ...]
    lowest: tuple[int, ...]
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
                lowest=tuple(shifts.index(lowest.shift) if axis == lowest.axis else -1 for axis in axes),
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
    ends = ["worst", "parameters", "seconds"]
    ends_width = [max(len(head), *(len(cell) for cell in column)) for head, column in zip(ends, _ends(rows), strict=True)]
    cell = 5
    fixed = len("  dx") + sum(width + 2 for width in ends_width)
    name_width = min(max(5, *(len(row.name) for row in rows)), max(16, WIDTH - fixed - (cell + 1) * len(shifts)))
    per_block = max(1, (WIDTH - name_width - fixed) // (cell + 1))
    blocks = []
    for start in range(0, len(shifts), per_block):
        last = start + per_block >= len(shifts)
        chosen = slice(start, start + per_block)
        lines = [_line("model", "", shifts[chosen], ends if last else [], name_width, cell, ends_width)]
        lines.append("-" * len(lines[0]))
        for row in rows:
            names = textwrap.wrap(row.name, name_width) or [""]
            for index in range(max(len(names), len(row.axes))):
                axis, cells = row.axes[index] if index < len(row.axes) else ("", ())
                tail = [row.worst, row.parameters, row.seconds] if last and index == 0 else []
                name = names[index] if index < len(names) else ""
                lines.append(_line(name, axis, list(cells[chosen]), tail, name_width, cell, ends_width))
        blocks.append("\n".join(line.rstrip() for line in lines))
    return "\n\n".join([*blocks, textwrap.fill(table_note(report), WIDTH)])


def _ends(rows: list[TableRow]) -> list[list[str]]:
    return [[row.worst for row in rows], [row.parameters for row in rows], [row.seconds for row in rows]]


def _line(
    name: str, axis: str, cells: list[str], ends: list[str], name_width: int, cell: int, ends_width: list[int]
) -> str:
    numbers = "".join(f" {value:>{cell}}" for value in cells)
    tail = "".join(f"  {value:>{width}}" for value, width in zip(ends, ends_width, strict=False))
    return f"{name:<{name_width}}  {axis:<2}{numbers}{tail}"


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
