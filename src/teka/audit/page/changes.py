"""What a page and a verdict say of changes other than shifts: a table, and a chart where amounts are quantities."""

from collections.abc import Sequence
from typing import Any

from teka.audit.changes import CHANGES
from teka.audit.page.curves import CurveLine, curve_chart, curve_points, line_numbers, quantity_of
from teka.audit.page.metric_formatting import MISSING, write_number
from teka.audit.report import AuditReport, ChangeResult
from teka.audit.statistics.metrics import CURVES, Metrics
from teka.reporting.style import line_style
from teka.reporting.svg import swatch

SHOWN = ("accuracy", "agreement", "overlap", "retrieval", "error")
BACK = "changed and changed back"


def change_sections(reports: Sequence[AuditReport]) -> list[dict[str, Any]]:
    """A section for each change that any report has: words, a chart of the first number, a table for each model."""
    sections = []
    for name, change in CHANGES.items():
        found = {
            model: one
            for model, report in enumerate(reports)
            for one in report.changes
            if one.metrics.movement.mode == name
        }
        if found:
            tables = [(model, *_table(one)) for model, one in found.items()]
            words = f"{change.words} {_interpolation(found.values())}".strip()
            figures = [] if change.names else _figures(reports, found, name)
            sections.append({"name": name, "words": words, "figures": figures, "tables": tables})
    return sections


def _interpolation(found: Any) -> str:
    if all(one.there_and_back is None for one in found):
        return ""
    return f"“{BACK[:1].upper()}{BACK[1:]}” is what interpolation alone does: the same images, and back again."


def _table(result: ChangeResult) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """The heads and, for each amount, its name and the numbers."""
    metrics, back = result.metrics, result.there_and_back
    shown = [(CURVES[name].label, metrics, name) for name in SHOWN if name in metrics.curves]
    if back is not None:
        first = next(
            name for name in ("agreement", "overlap", "retrieval", "error") if name in back.curves
        )
        shown.append((f"{BACK}: {CURVES[first].label}", back, first))
    write = CHANGES[metrics.movement.mode].write
    rows = [
        (write(amount), [write_at(of, curve, (amount,)) for _, of, curve in shown])
        for (amount,) in sorted(metrics.shifts)
    ]
    return [head for head, *_ in shown], rows


def write_at(metrics: Metrics, curve: str, amount: tuple[int | float, ...]) -> str:
    """A curve at an amount, "–" where that was not measured."""
    values = dict(zip(metrics.shifts, metrics.curves[curve].values, strict=True))
    return write_number(curve, values[amount]) if amount in values else MISSING


def _figures(
    reports: Sequence[AuditReport], found: dict[int, ChangeResult], name: str
) -> list[dict[str, Any]]:
    number = next(
        one
        for one in (*SHOWN[1:4], *SHOWN)
        if any(one in each.metrics.curves for each in found.values())
    )
    lines = {
        model: CurveLine(
            reports[model].name, line_style(model), curve_points(of.shifts, of.curves[number])
        )
        for model, of in ((model, one.metrics) for model, one in found.items())
        if number in of.curves
    }
    drawn = list(lines.values())
    if len(found) == 1:
        (back,) = [one.there_and_back for one in found.values()]
        if back is not None and number in back.curves:
            drawn.append(
                CurveLine(BACK, line_style(1), curve_points(back.shifts, back.curves[number]))
            )
    chart = curve_chart(quantity_of(number), name, drawn, drawn)
    numbers = line_numbers(quantity_of(number), {name: drawn})
    named = [(line.name, swatch(line.style)) for line in drawn]
    return [{"name": CURVES[number].label, "chart": chart, "lines": named, "numbers": numbers}]
