"""Accuracies under shifts as a table, and what was found in plain sentences."""

import dataclasses
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from teka.audit.page.notation import percent, write_step
from teka.audit.page.tables import Table
from teka.training.shift_report import AXES, BUILT_IN, SeedGroup, ShiftReport

WIDTH = 100  # columns of a terminal that the table fits into, if its shifts do
FALL = 5.0  # percentage points below the unshifted accuracy from which a model is said to fall


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
        curves = {axis: group.accuracy(axis) for axis in report.axes}
        cells = {
            axis: tuple(percent(curve[shift].value) if shift in curve else "–" for shift in report.shifts)
            for axis, curve in curves.items()
        }
        rows.append(
            TableRow(
                name=group.name,
                axes=tuple(cells.items()),
                lowest=(group.lowest.axis, report.shifts.index(group.lowest.shift)),
                worst=percent(group.mean("worst_shift_accuracy")),
                parameters=f"{group.first.parameters:,}",
                seconds=f"{group.mean('seconds'):.0f}",
            )
        )
    return rows


def table_note(report: ShiftReport) -> str:
    """What the numbers mean, in one line or two."""
    return (
        f"Accuracy in % at each shift in pixels, {report.averaged}: dx to the right, dy downwards. "
        "Worst shift: share of the test images correct at every shift. Seconds: training."
    )


def shift_table(report: ShiftReport) -> Table:
    """The table, one row for each model, with a line for each axis."""
    heads = ("model", "", *map(write_step, report.shifts), "worst", "parameters", "seconds")
    rows = []
    for row in table_rows(report):
        axes, cells = zip(*row.axes, strict=True)
        along = ("\n".join(values) for values in zip(*cells, strict=True))
        rows.append((row.name, "\n".join(axes), *along, row.worst, row.parameters, row.seconds))
    return Table("", heads, tuple(rows))


def plain_table(report: ShiftReport) -> str:
    """The table as aligned plain text, at most 100 columns wide, and what it means."""
    table = shift_table(report)
    # Four characters at most, so that nine shifts fit.
    rows = tuple((*row[:2], *(cell.replace("100.0", "100") for cell in row[2:])) for row in table.rows)
    text = dataclasses.replace(table, rows=rows).plain(WIDTH, narrowest=14)
    return f"{text}\n\n{textwrap.fill(table_note(report), WIDTH)}"


def markdown_table(report: ShiftReport) -> str:
    """The table as Markdown, its note below."""
    return f"{shift_table(report).markdown()}\n\n{table_note(report)}"


def _points(share: float) -> float:
    """Percentage points as they are printed, so that printed differences agree with printed numbers."""
    return float(percent(share))


def _best(groups: Sequence[SeedGroup]) -> SeedGroup:
    return max(groups, key=lambda group: group.lowest.accuracy)


def _description(group: SeedGroup, candidates: Sequence[SeedGroup]) -> str:
    several, position = len(candidates) > 1, group.first.position
    if position == BUILT_IN:
        return f"{group.name} (best of {len(candidates)})" if several else group.name
    words = "without positions" if position == "none" else f"with {position} positions"
    if group.is_relative:
        words += " at linear cost" if group.is_linear else f" and {group.first.kernel.replace('_', ' ')} attention"
    return f"{words} (best of {len(candidates)}: {group.name})" if several else words


def _behaviour(group: SeedGroup) -> str:
    lowest, start = group.lowest, group.unshifted
    low = _points(lowest.accuracy)
    if start is None:
        high = max(one.value for axis in AXES for one in group.accuracy(axis).values())
        return f"stays between {low:.1f} % and {percent(high)} %"
    if _points(start) - low >= FALL:
        return f"falls from {percent(start)} % to {low:.1f} % (at {lowest.axis} = {write_step(lowest.shift)})"
    return f"keeps at least {low:.1f} % at every shift"


def _beside_softmax(group: SeedGroup, groups: Sequence[SeedGroup]) -> str:
    """How the lowest accuracy compares with that of the same position under softmax, if that was measured."""
    same = [other for other in groups if other.first.position == group.first.position]
    references = [other for other in same if other.first.kernel == "softmax"]
    if not group.is_relative or group.first.kernel == "softmax" or not references:
        return ""
    reference = _points(_best(references).lowest.accuracy)
    difference = _points(group.lowest.accuracy) - reference
    if abs(difference) < 0.05:
        return ", as much as softmax attention at its lowest"
    side = "above" if difference > 0 else "below"
    return f", {abs(difference):.1f} points {side} softmax attention at its lowest ({reference:.1f} %)"


def finding(report: ShiftReport) -> str:
    """One or two sentences: how far each kind of model falls when images move, and the linear one beside softmax.

    The kinds are absolute positions (or, without such a model, none) and relative positions, at linear cost if there is
    such a model. Of several models of one kind it speaks of the one with the highest lowest accuracy, and says so.
    Differences are those of the printed numbers.
    """
    groups = report.groups
    absolute, without = ([one for one in groups if one.first.position == kind] for kind in ("absolute", "none"))
    relative = [group for group in groups if group.is_relative]
    at_linear_cost = [group for group in relative if group.is_linear]
    kinds = [absolute or without, at_linear_cost or relative or (without if absolute else [])]
    told = [(_best(kind), kind) for kind in kinds if kind] or [(_best(groups), groups)]
    clauses = []
    for group, kind in told:
        description = _description(group, kind)
        subject = f"{description} it" if clauses else f"the model {description}"
        clauses.append(f"{subject} {_behaviour(group)}{_beside_softmax(group, groups)}")
    reach = max(map(abs, report.shifts))
    unit = "pixel" if reach == 1 else "pixels"
    text = f"With images of {report.dataset} moved by up to {reach} {unit} ({report.averaged}), {'; '.join(clauses)}."
    if len(told) == 2:
        (first, first_kind), (second, _) = told
        lead = _points(first.lowest.accuracy) - _points(second.lowest.accuracy)
        if lead >= 0.05:
            text += (
                f" Here the model {_description(first, first_kind)} holds up better: "
                f"its lowest accuracy is {lead:.1f} points higher."
            )
    return text
