"""Reports and comparisons as text for a terminal."""

import textwrap
from collections.abc import Sequence

from teka.audit.caveats import SEVERITIES
from teka.audit.page.compared import best_model, differing, reference_of, valid_pairs, write_ends
from teka.audit.page.layers import explain_layers
from teka.audit.page.metric_formatting import MISSING, is_share, missing_intervals, write_difference
from teka.audit.page.pages import audit_columns, audit_rows, interval_note, sorted_caveats
from teka.audit.report import AuditReport
from teka.audit.statistics.comparison import COMPARED_NUMBERS, Comparison
from teka.audit.statistics.metrics import NUMBERS
from teka.audit.statistics.ranking import Pair, pairs_by_mode
from teka.errors import one_line, wrong_value
from teka.reporting.formatting import write_p_value
from teka.reporting.tables import LONGEST_TEXT, Table

WIDTH = 100  # columns of a terminal that the text fits into
INVALID = "Rows marked invalid are for diagnosis only"
TEXT_NUMBERS = (
    "accuracy",
    "minimum_accuracy",
    "worst_shift_accuracy",
    "consistency",
    "overlap",
    "minimum_overlap",
    "retrieval",
    "cosine_distance",
    "maximum_error",
)
"""Metrics for which a terminal has room."""
COLUMN_NOTES = {
    "minimum_accuracy": "Worst shift: accuracy at the shift where it is lowest.",
    "worst_shift_accuracy": "Every shift: share of images that are correct at every shift.",
}


def audit_text(reports: Sequence[AuditReport]) -> str:
    """Return a table of metrics, then the verdict, caveats, layers and failures of each model."""
    if not reports:
        raise wrong_value("reports", list(reports), "one or more reports")
    texts = [results_text(reports)]
    for report in reports:
        title = _wrap(report.name) if len(reports) > 1 else []
        texts.append("\n".join([*title, *_findings(report)]))
    return "\n\n".join(texts)


def details_text(main_results: AuditReport, report: AuditReport) -> str:
    """Return the findings of the complete report that the main results do not contain yet."""
    shown = set(_findings(main_results))
    return "\n".join(finding for finding in _findings(report) if finding not in shown)


def _findings(report: AuditReport) -> list[str]:
    """Return verdict, caveats, layers and failures of a model, each as wrapped text."""
    findings = [_wrap(sentence) for sentence in report.verdict]
    for caveat in sorted_caveats(report.caveats):
        words = f"{SEVERITIES[caveat.severity]} ({caveat.name}): {caveat.message}"
        findings.append(_wrap(words, "  ! "))
    for role, name, words in explain_layers(report.layers):
        findings.append(_wrap(f"{name} {role} ({words})", "  > "))
    for failure in report.failures:
        findings.append(_wrap(f"{failure.part} failed: {failure.message}", "  x "))
    return ["\n".join(lines) for lines in findings]


def results_text(reports: Sequence[AuditReport]) -> str:
    """Return a table of the main metrics for each model and mode, and notes on it, as text."""
    table, notes = results_table(reports)
    return "\n".join([table.plain(WIDTH, narrowest=14), *_wrap(notes)])


def results_table(reports: Sequence[AuditReport]) -> tuple[Table, str]:
    """Return a table of the main metrics for each model and mode, and notes on it."""
    columns = audit_columns(reports, TEXT_NUMBERS)
    audited = audit_rows(reports, columns)
    several = len(reports) > 1
    rows = []
    for row in audited:
        name = f"{reports[row.model].name}\n{row.mode}" if several else row.mode
        cells = [MISSING if cell is None else "\n".join(cell) for cell in row.cells]
        rows.append((name, row.images, *cells))
    labels = [NUMBERS[name].label for name in columns]
    heads = ("model\nmode" if several else "mode", "images", *labels)
    notes = [
        f"{INVALID}: {', '.join(report.invalid)} ({report.name})."
        for report in reports
        if report.invalid
    ]
    if rows:
        counts = dict.fromkeys(row.shifts for row in audited)
        if len(counts) > 1:
            counts = dict.fromkeys(f"{row.mode} {row.shifts}" for row in audited)
        notes += [interval_note(reports, columns), f"Shifts: {', '.join(counts)}."]
    used = dict.fromkeys(str(report.data["used"]) for report in reports if "used" in report.data)
    notes += [f"Images: {'; '.join(used)}."] if used else []
    if any(is_share(name) for name in columns):
        notes.append("Shares in %.")
    notes += [note for name, note in COLUMN_NOTES.items() if name in columns]
    return Table("", heads, tuple(rows)), " ".join(notes)


def _wrap(words: str, first: str = "") -> list[str]:
    words = one_line(words, LONGEST_TEXT)
    return textwrap.wrap(
        words,
        WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_on_hyphens=False,
    )


def comparison_text(pairs: Sequence[Pair], reports: Sequence[AuditReport]) -> str:
    """Return the best model of each mode, and the first valid model minus each other one."""
    texts = []
    for mode_pairs in pairs_by_mode(pairs).values():
        headline, evidence = best_model(mode_pairs, reports)
        lines = _wrap(headline)
        for _, sentence in evidence:
            lines += _wrap(sentence, "  ")
        texts.append("\n".join(lines))
        valid = valid_pairs(mode_pairs, reports)
        for pair in valid:
            if pair.first == reference_of(valid):
                names = reports[pair.first].name, reports[pair.second].name
                texts.append(_differences(pair.comparison, *names))
        numbers = [number for pair in valid for number in pair.comparison.numbers.values()]
        texts.append(missing_intervals(number.method for number in numbers))
    return "\n\n".join(filter(None, texts))


def _differences(comparison: Comparison, first: str, second: str) -> str:
    rows = []
    for name in COMPARED_NUMBERS:
        if (number := comparison.numbers.get(name)) is not None:
            value = f"{write_difference(name, number.value)}{' points' if is_share(name) else ''}"
            ends, p_value = write_ends(name, number), write_p_value(number.p_value)
            rows.append((NUMBERS[name].label, value, ends, p_value))
    title = (
        f"{first} minus {second}, mode {comparison.movement.mode}, {len(comparison.shifts)} "
        f"shifts, the same {comparison.num_images:,} images"
    )
    heads = ("metric", "difference", f"{100 * comparison.confidence:g} % interval", "")
    lines = [Table(title, heads, tuple(rows)).plain(WIDTH)]
    if count := differing(comparison):
        lines.append(f"The accuracy differs significantly at {count} shifts (band over shifts).")
    return "\n".join(lines)
