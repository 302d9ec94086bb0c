"""Comparison of several models for the page: the best of each mode and all paired differences."""

from collections.abc import Sequence
from typing import Any

from teka.audit.page.charts import curve_figure
from teka.audit.page.metric_formatting import (
    explain_missing_intervals,
    is_share,
    metric_title,
    write_difference,
)
from teka.audit.report import AuditReport
from teka.audit.statistics.comparison import (
    Comparison,
    Difference,
    Lead,
    Pair,
    find_leads,
    pairs_by_mode,
)
from teka.audit.statistics.intervals import has_interval
from teka.audit.statistics.metrics import NUMBERS
from teka.reporting.formatting import listed, write_p_value

MOST_NAMED = 2  # number of models whose names are in the headline
# The first of these metrics that is defined decides which model is best.
DECISIVE = ("worst_shift_accuracy", "consistency", "overlap", "mean_error")


def valid_pairs(pairs: Sequence[Pair], reports: Sequence[AuditReport]) -> list[Pair]:
    """Return the pairs whose two models both have valid results. Only these are compared."""
    return [
        pair for pair in pairs if not (reports[pair.first].invalid or reports[pair.second].invalid)
    ]


def explain_excluded(reports: Sequence[AuditReport]) -> list[str]:
    """Return a sentence for each model that is not compared because its results are invalid."""
    return [
        f"{report.name} is not compared, because its results are invalid: "
        f"{', '.join(report.invalid)}."
        for report in reports
        if report.invalid
    ]


def best_model(pairs: Sequence[Pair], reports: Sequence[AuditReport]) -> tuple[str, list[str]]:
    """Return a sentence on the best model in a mode, and sentences with the evidence.

    Models with invalid results are left out. A model that lacks a metric is left out for it.

    Args:
        pairs: Comparisons of all pairs of models in one mode.
        reports: Reports of all models.
    """
    names = [report.name for report in reports]
    mode = pairs[0].comparison.movement.mode
    competing = [index for index, report in enumerate(reports) if not report.invalid]
    notes = explain_excluded(reports)
    if len(competing) < 2:
        left = f"only {names[competing[0]]} has" if competing else "no model has"
        return f"Mode {mode}: no comparison, because {left} valid results.", notes
    leads = find_leads(valid_pairs(pairs, reports))
    if not leads:
        return f"Mode {mode}: no best model, because no metric is defined for every pair.", notes
    decisive = [lead for number in DECISIVE for lead in leads if lead.number == number]
    # The metric that most models define decides, and of several the first of `DECISIVE`.
    lead = max(decisive or leads, key=lambda lead: len(lead.over))
    others = [names[index] for index in lead.over]
    metric = metric_title(lead.number)
    if lead.tied:
        headline = f"{_describe_tie(lead, names)} in {metric}"
    else:
        beaten = listed(others) if len(others) <= MOST_NAMED else f"all {len(others)} others"
        headline = f"{names[lead.best]} is significantly better than {beaten} in {metric}"
    lacking = [names[index] for index in competing if index not in (lead.best, *lead.over)]
    if lacking:
        reason = "because their outputs do not define this metric"
        notes.append(f"Not compared, {reason}: {listed(lacking)}.")
    return f"Mode {mode}: {headline}.", [*(_evidence(lead, names) for lead in leads), *notes]


def _describe_tie(lead: Lead, names: Sequence[str]) -> str:
    tied = [names[index] for index in (lead.best, *lead.tied)]
    return f"no significant difference between {listed(tied)}"


def _evidence(lead: Lead, names: Sequence[str]) -> str:
    """Write by how much the best model of a metric is ahead of the others."""
    title = metric_title(lead.number)
    parts = []
    if lead.tied:
        most = "at most " if len(lead.tied) > 1 else ""
        size = _write_lead(lead.number, lead.over[lead.tied[-1]])
        parts.append(f"{_describe_tie(lead, names)}: {most}{size}")
    if lead.beaten:
        nearest, *more = lead.beaten
        way = "higher" if is_share(lead.number) else "lower"
        size = _write_lead(lead.number, lead.over[nearest])
        parts.append(f"{way} for {names[lead.best]} than for {names[nearest]} by {size}")
        if more:
            others = "the other model" if len(more) == 1 else f"each of {len(more)} other models"
            parts.append(f"the difference to {others} is larger")
    return f"{title[:1].upper()}{title[1:]}: {'; '.join(parts)}."


def _write_lead(number: str, difference: Difference) -> str:
    """Write the advantage of the best model over another one, with interval and p-value."""
    value, lower, upper = (
        write_difference(number, value).removeprefix("+")
        for value in (difference.value, difference.lower, difference.upper)
    )
    unit = " points" if is_share(number) else ""
    interval = f"{lower} to {upper}" if has_interval(difference.method) else "no interval"
    return f"{value}{unit} ({interval}, {write_p_value(difference.p_value)})"


def describe_differing_shifts(comparison: Comparison) -> str:
    """Write at how many shifts the accuracies of two models differ significantly: "80 of 81".

    The result is "" if there is no accuracy.
    """
    curve = comparison.curves.get("accuracy")
    if curve is None:
        return ""
    bands = zip(curve.band_lower, curve.band_upper, strict=True)
    count = sum(not lower <= 0 <= upper for lower, upper in bands)
    return f"{count} of {len(comparison.shifts)}"


def reference_model(pairs: Sequence[Pair]) -> int:
    """Return the index of the model from which the page subtracts the others: the first one."""
    return min((pair.first for pair in pairs), default=0)


def explain_missing_difference_intervals(pairs: Sequence[Pair]) -> str:
    """Explain why intervals of differences are missing, or return an empty text."""
    return explain_missing_intervals(
        difference.method for pair in pairs for difference in pair.comparison.numbers.values()
    )


def comparison_sections(
    pairs: Sequence[Pair], reports: Sequence[AuditReport]
) -> list[dict[str, Any]]:
    """Return the sections of the page, one for each mode.

    A section has the headline, the evidence, the pairs of models with valid results, and curves of
    the differences from the reference model.
    """
    names = [report.name for report in reports]
    sections = []
    for mode, mode_pairs in pairs_by_mode(pairs).items():
        headline, evidence = best_model(mode_pairs, reports)
        valid = valid_pairs(mode_pairs, reports)
        reference = reference_model(valid)
        others = {pair.second: pair.comparison for pair in valid if pair.first == reference}
        label = f"accuracy of {names[reference]} minus that of the other model (points)"
        figure = curve_figure(names, others, "accuracy", label, difference=True)
        section = {
            "mode": mode,
            "headline": headline,
            "evidence": evidence,
            "columns": [
                name for name in NUMBERS if any(name in pair.comparison.numbers for pair in valid)
            ],
            "reference": reference,
            "pairs": valid,
            "curves": [figure] if figure else [],
            "confidence": f"{100 * mode_pairs[0].comparison.confidence:g} %",
            "missing": explain_missing_difference_intervals(valid),
        }
        sections.append(section)
    return sections
