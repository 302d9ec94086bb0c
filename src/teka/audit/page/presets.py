"""What the page shows of the procedures of the literature."""

from collections.abc import Sequence
from dataclasses import dataclass

from teka.audit.page.curve_figure import CurveFigure, curve_figure
from teka.audit.page.notation import write_share
from teka.audit.report import AuditReport


@dataclass(frozen=True)
class PresetSection:
    """One procedure.

    Args:
        name: Its name.
        procedure: What was done.
        source: Where it comes from.
        rows: Place of the model's report in the list, name of the number, the number, and its interval.
        counts: Numbers of images, passes and the like, as written.
        curves: Accuracy along each axis, for every group of images that was moved along a set of shifts.
    """

    name: str
    procedure: str
    source: str
    rows: tuple[tuple[int, str, str, str], ...]
    counts: str
    curves: tuple[CurveFigure, ...]


def preset_sections(reports: Sequence[AuditReport]) -> list[PresetSection]:
    """A section for each procedure that any report has.

    Args:
        reports: The reports.
    """
    names = dict.fromkeys(preset.name for report in reports for preset in report.presets)
    return [_section(reports, name) for name in names]


def _section(reports: Sequence[AuditReport], name: str) -> PresetSection:
    found = [(at, preset) for at, report in enumerate(reports) for preset in report.presets if preset.name == name]
    rows = tuple(
        (at, number, write_share(one.value), f"{write_share(one.lower)}–{write_share(one.upper)}")
        for at, preset in found
        for number, one in preset.numbers.items()
    )
    counts = dict.fromkeys(f"{what}: {count:,}" for _, preset in found for what, count in preset.counts.items())
    groups = dict.fromkeys(group for _, preset in found for group in preset.metrics)
    figures = [
        curve_figure(
            [report.name for report in reports],
            {at: preset.metrics[group] for at, preset in found if group in preset.metrics},
            "accuracy",
            f"{group}: answered right (%)",
        )
        for group in groups
    ]
    first = found[0][1]
    return PresetSection(
        name, first.procedure, first.source, rows, "; ".join(counts), tuple(figure for figure in figures if figure)
    )
