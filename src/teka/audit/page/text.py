"""Results of audits as text for a terminal, and as Markdown for a pull request."""

import textwrap
from collections.abc import Sequence

from teka.audit.caveats import SEVERITIES
from teka.audit.page.compared import comparison_sections, describe_differing_shifts
from teka.audit.page.metric_formatting import (
    MISSING,
    format_difference_cells,
    is_percentage,
    metric_title,
)
from teka.audit.page.pages import (
    describe_used_images,
    explain_intervals,
    list_measured_metrics,
    model_names_by_caveat,
    results_rows,
)
from teka.audit.report import AuditReport
from teka.audit.statistics.comparison import ModelPair
from teka.audit.statistics.metrics import NUMBERS
from teka.audit.verdict import explain_layers
from teka.errors import to_one_line
from teka.reporting.formatting import format_count
from teka.reporting.tables import LONGEST_TEXT, Table, markdown_text

WIDTH = 100  # width of the text in characters
# Metrics in the table, which must fit into a terminal.
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


def audit_text(reports: Sequence[AuditReport]) -> str:
    """Format reports for a terminal: a table of metrics, then the findings and the caveats."""
    texts = [results_text(reports)]
    for report in reports:
        title = [_wrap(report.name)] if len(reports) > 1 else []
        texts.append("\n".join([*title, *_format_findings(report)]))
    texts.append("\n".join(format_caveats(reports)))
    return "\n\n".join(filter(None, texts))


def remaining_findings_text(main_results: AuditReport, report: AuditReport) -> str:
    """Return the findings and caveats of an audit that were not printed with its main results.

    The command line prints the main results before the audit searches for their causes.

    Args:
        main_results: Report that was printed before.
        report: Complete report of the same audit.
    """
    shown = [*_format_findings(main_results), *format_caveats([main_results])]
    findings = [*_format_findings(report), *format_caveats([report])]
    return "\n".join(finding for finding in findings if finding not in shown)


def _format_findings(report: AuditReport) -> list[str]:
    """Format the verdict of an audit, the layers that explain it, and the parts that failed.

    Each entry of the list is a sentence or a layer, wrapped to the width of the terminal.
    """
    findings = [_wrap(sentence) for sentence in report.verdict]
    for role, name, words in explain_layers(report.layers):
        findings.append(_wrap(f"{name} {role} ({words})", "  > "))
    for failure in report.failures:
        findings.append(_wrap(f"{failure.part} not measured: {failure.message}", "  x "))
    return findings


def results_text(reports: Sequence[AuditReport]) -> str:
    """Format the table of the main metrics and its notes for a terminal."""
    table, notes = results_table(reports)
    return f"{table.to_text(WIDTH, narrowest=14)}\n{_wrap(notes)}".rstrip()


def format_caveats(reports: Sequence[AuditReport]) -> list[str]:
    """Format each caveat for a terminal, with the names of the models that it concerns."""
    texts = []
    for caveat, names in model_names_by_caveat(reports).items():
        models = f"; {names}" if len(reports) > 1 else ""
        words = f"{SEVERITIES[caveat.severity]} ({caveat.name}{models}): {caveat.message}"
        texts.append(_wrap(words, "  ! "))
    return texts


def results_table(reports: Sequence[AuditReport]) -> tuple[Table, str]:
    """Create a table of the main metrics, with one row for each model and mode, and its notes."""
    columns = list_measured_metrics(reports, TEXT_NUMBERS)
    audited = results_rows(reports)
    several = len(reports) > 1
    rows = []
    for row in audited:
        name = f"{reports[row.model].name}\n{row.mode}" if several else row.mode
        cells = ("\n".join(row.cells.get(column, (MISSING,))) for column in columns)
        rows.append((name, row.images, *cells))
    labels = [NUMBERS[name].label for name in columns]
    heads = ("model\nmode" if several else "mode", "images", *labels)
    notes = [explain_intervals(reports, columns)]
    notes += ["Shares are in %."] if any(map(is_percentage, columns)) else []
    counts = dict.fromkeys(row.shifts for row in audited)
    if len(counts) > 1:
        counts = dict.fromkeys(f"{row.mode} {row.shifts}" for row in audited)
    notes.append(f"Shifts: {', '.join(counts)}.")
    if used := describe_used_images(reports):
        notes.append(f"Images: {'; '.join(used)}.")
    for label, name in zip(labels, columns, strict=True):
        notes.append(f"{label[0].upper()}{label[1:]}: {NUMBERS[name].meaning}.")
    return Table(heads, tuple(rows)), " ".join(notes)


def _wrap(words: str, first: str = "") -> str:
    return textwrap.fill(
        to_one_line(words, LONGEST_TEXT),
        WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_on_hyphens=False,
    )


def comparison_text(pairs: Sequence[ModelPair], reports: Sequence[AuditReport]) -> str:
    """Format the comparison of several models for a terminal.

    For each mode of shifting, the text names the best model, and has a table of differences between
    the first valid model and each other model.
    """
    texts = []
    for section in comparison_sections(pairs, reports):
        lines = [_wrap(section["headline"])]
        lines += [_wrap(sentence, "  ") for sentence in section["evidence"]]
        if len(section["pairs"]) > 1:
            note = "The p-values are adjusted for the number of pairs of models (Holm's method)."
            lines.append(_wrap(note, "  "))
        texts.append("\n".join(lines))
        texts += [
            _difference_table_text(pair, reports)
            for pair in section["pairs"]
            if pair.first == section["reference"]
        ]
        texts.append(section["missing"])
    return "\n\n".join(filter(None, texts))


def _difference_table_text(pair: ModelPair, reports: Sequence[AuditReport]) -> str:
    """Format a table of the differences between two models in all metrics for a terminal."""
    comparison = pair.comparison
    rows = []
    for name, cells in format_difference_cells(comparison).items():
        unit = " (points)" if is_percentage(name) else ""
        rows.append((f"{metric_title(name)}{unit}", *cells))
    title = (
        f"{reports[pair.first].name} minus {reports[pair.second].name}, mode "
        f"{comparison.movement.mode}, {format_count(len(comparison.shifts), 'shift')}, the same "
        f"{format_count(comparison.num_images, 'image')}"
    )
    heads = ("metric", "difference", f"{100 * comparison.confidence:g} % interval", "p-value")
    lines = [_wrap(title), Table(heads, tuple(rows)).to_text(WIDTH)]
    if count := describe_differing_shifts(comparison):
        lines.append(f"The accuracies differ significantly at {count} shifts.")
    return "\n".join(lines)


def format_summary_as_markdown(
    reports: Sequence[AuditReport], pairs: Sequence[ModelPair] = ()
) -> str:
    """Summarize audits in Markdown: the best model, verdicts, main metrics and caveats.

    Args:
        reports: Reports of the audits.
        pairs: Comparisons between the models, if there are several.
    """
    parts = []
    for section in comparison_sections(pairs, reports):
        parts += [
            f"**{markdown_text(section['headline'])}**",
            "\n".join(f"- {markdown_text(words)}" for words in section["evidence"]),
        ]
    for report in reports:
        parts.append(f"**{markdown_text(report.name)}.** {markdown_text(report.verdict[0])}")
    table, notes = results_table(reports)
    parts += [table.to_markdown(), markdown_text(notes)]
    lines = (
        f"- {markdown_text(names)}: {SEVERITIES[caveat.severity]}, **{caveat.name}**. "
        f"{markdown_text(caveat.message)}"
        for caveat, names in model_names_by_caveat(reports).items()
    )
    parts.append("\n".join(lines))
    return "\n\n".join(part for part in parts if part) + "\n"
