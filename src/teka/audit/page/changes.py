"""The sections of an audit page about changes other than shifts."""

from collections.abc import Sequence
from typing import Any

from teka.audit.changes import CHANGES
from teka.audit.page.charts import CurveLine, curve_chart, curve_points
from teka.audit.page.metric_formatting import MISSING, is_share, write_number
from teka.audit.report import AuditReport, ChangeResult
from teka.audit.statistics.metrics import CURVES, Metrics

SHOWN = ("accuracy", "agreement", "overlap", "retrieval", "error")
BACK = "changed and changed back"


def change_sections(reports: Sequence[AuditReport]) -> list[dict[str, Any]]:
    """Return the content of a section for each change of any report."""
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
    return f"“{BACK.capitalize()}” is the effect of interpolation alone."


def _table(result: ChangeResult) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return the heads of a table, and the name and the values of each amount."""
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
    """Write a metric at an amount, or "–" if it was not measured."""
    values = dict(zip(metrics.shifts, metrics.curves[curve].values, strict=True))
    return write_number(curve, values[amount]) if amount in values else MISSING


def _figures(
    reports: Sequence[AuditReport], results: dict[int, ChangeResult], name: str
) -> list[dict[str, Any]]:
    metric = next(
        metric
        for metric in (*SHOWN[1:4], *SHOWN)
        if any(metric in result.metrics.curves for result in results.values())
    )
    lines = [
        CurveLine(
            reports[model].name,
            model,
            curve_points(result.metrics.shifts, result.metrics.curves[metric]),
        )
        for model, result in results.items()
        if metric in result.metrics.curves
    ]
    if len(results) == 1:
        (back,) = [result.there_and_back for result in results.values()]
        if back is not None and metric in back.curves:
            lines.append(CurveLine(BACK, 1, curve_points(back.shifts, back.curves[metric])))
    label = CURVES[metric].label
    chart = curve_chart(lines, name, label, is_percent=is_share(metric))
    return [{"name": label, "charts": [chart]}]
