"""What audits found, as text for a terminal."""

import textwrap
from collections.abc import Sequence

from teka.audit.page.layers import blamed_layers
from teka.audit.page.number import NUMBER_NAMES, SHARES
from teka.audit.page.table import TERMINAL_NUMBERS, AuditRow, audit_columns, audit_rows
from teka.audit.page.traps import SEVERITY_NAMES, sorted_traps
from teka.audit.report import AuditReport
from teka.errors import wrong_value

WIDTH = 100
"""Columns of a terminal that the text fits into, if names of models and modes are not very long."""


def audit_text(reports: Sequence[AuditReport]) -> str:
    """The numbers as an aligned table, then for each model its verdict, traps, layers to blame and what failed.

    Every number has its interval below it. Shares are in percent.

    Args:
        reports: The reports, one for each model.

    Raises:
        ValueError: No report.
    """
    if not reports:
        raise wrong_value("reports", list(reports), "one or more reports")
    return "\n\n".join([_table(reports), *(_findings(report, len(reports) > 1) for report in reports)])


def _table(reports: Sequence[AuditReport]) -> str:
    columns = audit_columns(reports, TERMINAL_NUMBERS)
    rows = audit_rows(reports, columns)
    grid = [["mode", "images", *(NUMBER_NAMES[name] for name in columns)]]
    for row in rows:
        grid.append([row.mode, row.images, *(cell[0] if cell else "–" for cell in row.cells)])
        grid.append(["", "", *(cell[1] if cell else "" for cell in row.cells)])
    widths = [max(len(line[column]) for line in grid) for column in range(len(grid[0]))]
    lines = [
        "  ".join(
            f"{cell:>{width}}" if column else f"{cell:<{width}}"
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in grid
    ]
    if len(reports) > 1:
        # Two lines to a row, below the heads; the last first, so that places stay what they are.
        for at in reversed(range(len(rows))):
            if at == 0 or rows[at].model != rows[at - 1].model:
                lines.insert(1 + 2 * at, reports[rows[at].model].name)
    confidences = sorted({metrics.confidence for report in reports for metrics in report.metrics})
    intervals = " and ".join(f"{100 * confidence:g} %" for confidence in confidences)
    notes = [f"Below each number its {intervals} interval. {_shift_counts(rows)}"] if rows else []
    if any(name in SHARES for name in columns):
        notes.append(
            "Shares in %. Worst shift: accuracy at the one shift where it is lowest. Every shift: right at all of them."
        )
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:], *_wrap(" ".join(notes))])


def _shift_counts(rows: Sequence[AuditRow]) -> str:
    counts = dict.fromkeys(row.shifts for row in rows)
    if len(counts) == 1:
        return f"Shifts: {next(iter(counts))}."
    return "Shifts: " + ", ".join(dict.fromkeys(f"{row.mode} {row.shifts}" for row in rows)) + "."


def _findings(report: AuditReport, with_name: bool) -> str:
    lines = [report.name] if with_name else []
    for sentence in report.verdict:
        lines += _wrap(sentence)
    for trap in sorted_traps(report.caveats):
        lines += _wrap(f"{SEVERITY_NAMES[trap.severity]}, {trap.name}: {trap.message}", "  ! ")
    for layer in blamed_layers(report.layers):
        lines += _wrap(f"{layer.role}: {layer.name} ({layer.words})", "  > ")
    for failure in report.failures:
        lines += _wrap(f"not done, {failure.part}: {failure.message}", "  x ")
    return "\n".join(lines)


def _wrap(words: str, first: str = "") -> list[str]:
    return textwrap.wrap(words, WIDTH, initial_indent=first, subsequent_indent=" " * len(first), break_on_hyphens=False)
