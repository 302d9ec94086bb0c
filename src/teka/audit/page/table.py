"""The numbers of an audit in rows: one for each model and mode, each number with its interval."""

from collections.abc import Sequence
from dataclasses import dataclass

from teka.audit.page.number import NUMBER_NAMES, SHARES, write_interval, write_number
from teka.audit.report import AuditReport

PAGE_NUMBERS = tuple(NUMBER_NAMES)
TERMINAL_NUMBERS = (
    "accuracy",
    "minimum_accuracy",
    "worst_shift_accuracy",
    "consistency",
    "flip_rate",
    "maximum_error",
)
"""The numbers of `teka.audit.statistics.metrics.NUMBERS` that a terminal has room for."""


@dataclass(frozen=True)
class AuditRow:
    """One model in one mode.

    Args:
        model: Place of its report in the list.
        mode: How the images were moved.
        images: Number of images.
        shifts: Number of shifts that are in the numbers.
        cells: For each column the number and its interval as written, or None where it is not defined.
    """

    model: int
    mode: str
    images: str
    shifts: str
    cells: tuple[tuple[str, str] | None, ...]


def audit_columns(reports: Sequence[AuditReport], numbers: Sequence[str]) -> list[str]:
    """Those of the numbers that any mode of any report has, in their order.

    Args:
        reports: The reports.
        numbers: Names of numbers.
    """
    found = {name for report in reports for metrics in report.metrics for name in metrics.numbers}
    return [name for name in numbers if name in found]


def audit_rows(reports: Sequence[AuditReport], columns: Sequence[str]) -> list[AuditRow]:
    """The rows, model after model.

    Args:
        reports: The reports.
        columns: Names of the numbers.
    """
    rows = []
    for model, report in enumerate(reports):
        for metrics in report.metrics:
            cells = tuple(
                (write_number(name, metrics.numbers[name].value), write_interval(name, metrics.numbers[name]))
                if name in metrics.numbers
                else None
                for name in columns
            )
            shifts = f"{len(metrics.shifts):,}"
            if metrics.skipped_shifts:
                shifts += f" of {len(metrics.shifts) + len(metrics.skipped_shifts):,}"
            rows.append(AuditRow(model, metrics.movement.mode, f"{metrics.num_images:,}", shifts, cells))
    return rows


def column_head(name: str) -> str:
    """What a number is called at the head of its column, with its unit.

    Args:
        name: The number.
    """
    return f"{NUMBER_NAMES[name]}{' (%)' if name in SHARES else ''}"
