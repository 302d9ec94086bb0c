"""Comparison of several models for the page: the best of each mode and all paired differences."""

from collections.abc import Sequence
from typing import Any

from teka.audit.page.charts import curve_figure
from teka.audit.page.metric_formatting import MISSING, is_share, missing_intervals, write_difference
from teka.audit.report import AuditReport
from teka.audit.statistics.comparison import COMPARED_NUMBERS, Comparison, Difference
from teka.audit.statistics.estimate import has_interval
from teka.audit.statistics.metrics import NUMBERS
from teka.audit.statistics.ranking import Lead, Pair, find_leads, pairs_by_mode
from teka.reporting.formatting import listed, write_p_value

MOST_NAMED = 2  # number of models whose names are in the headline
# The first of these metrics that is defined decides which model is best.
DECISIVE = ("worst_shift_accuracy", "consistency", "overlap", "mean_error")


def valid_pairs(pairs: Sequence[Pair], reports: Sequence[AuditReport]) -> list[Pair]:
    """Return the pairs whose two models both have valid results. Only these are compared."""
    return [
        pair for pair in pairs if not (reports[pair.first].invalid or reports[pair.second].invalid)
    ]


def excluded(reports: Sequence[AuditReport]) -> list[str]:
    """Write a sentence for each model that is not compared because its results are invalid."""
    return [
        f"{report.name} is not compared, because its results are invalid: "
        f"{', '.join(report.invalid)}."
        for report in reports
        if report.invalid
    ]


def best_model(
    pairs: Sequence[Pair], reports: Sequence[AuditReport]
) -> tuple[str, list[tuple[str, str]]]:
    """Return the best model in a mode, and the evidence for each metric, in sentences.

    Models with invalid results are left out. A model that lacks a metric is left out for it.

    Args:
        pairs: Comparisons of all pairs of models in one mode.
        reports: Reports of all models.

    Returns:
        The headline, and pairs of a metric's name (or "") and a sentence.
    """
    names = [report.name for report in reports]
    mode = pairs[0].comparison.movement.mode
    competing = [index for index, report in enumerate(reports) if not report.invalid]
    notes = [("", sentence) for sentence in excluded(reports)]
    if len(competing) < 2:
        left = f"only {names[competing[0]]} has" if competing else "no model has"
        return f"Mode {mode}: no comparison, because {left} valid results.", notes
    leads = find_leads(valid_pairs(pairs, reports))
    decisive = [lead for number in DECISIVE for lead in leads if lead.number == number]
    if not leads:
        return f"Mode {mode}: no best model, because no metric is defined for every pair.", notes
    # The metric that most models define decides, and of several the first of `DECISIVE`.
    lead = max(decisive or leads, key=lambda lead: len(lead.over))
    number = NUMBERS[lead.number]
    lacking = [names[index] for index in competing if index != lead.best and index not in lead.over]
    if lacking:
        reason = "because their outputs do not define this metric"
        notes.append(("", f"Not compared, {reason}: {listed(lacking)}."))
    metric = number.meaning if number.is_share else number.label
    tied = [names[index] for index in (lead.best, *lead.tied)]
    if lead.tied:
        headline = f"no significant difference between {listed(tied)} in the {metric}"
    else:
        others = [names[index] for index in lead.over]
        beaten = listed(others) if len(others) <= MOST_NAMED else f"all {len(others)} others"
        headline = f"{tied[0]} is significantly better than {beaten} in the {metric}"
    headline = f"Mode {mode}: {headline}."
    return headline, [*((lead.number, _evidence(lead, names)) for lead in leads), *notes]


def _evidence(lead: Lead, names: Sequence[str]) -> str:
    number = NUMBERS[lead.number]
    best = names[lead.best]
    way = "higher" if number.is_share else "lower"
    label = f"{number.label[:1].upper()}{number.label[1:]}"
    parts = []
    if lead.tied:
        tied = f"no significant difference between {listed([best, *(names[i] for i in lead.tied)])}"
        last = lead.tied[-1]
        parts.append(f"{tied} ({best} minus {names[last]}: {_lead_words(lead, last)})")
    if lead.beaten:
        nearest, *more = lead.beaten
        others = "the other model" if len(more) == 1 else f"{len(more)} other models"
        further = f"; the difference to {others} is larger" if more else ""
        parts.append(
            f"{best} is {way} than {names[nearest]} by {_lead_words(lead, nearest)}{further}"
        )
    return f"{label}: {'; '.join(parts)}."


def _lead_words(lead: Lead, over: int) -> str:
    difference = lead.over[over]
    sizes = [
        write_difference(lead.number, value).removeprefix("+")
        for value in (difference.value, difference.lower, difference.upper)
    ]
    unit = " points" if is_share(lead.number) else ""
    ends = f"{sizes[1]} to {sizes[2]}" if has_interval(difference.method) else "no interval"
    return f"{sizes[0]}{unit} ({ends}, {write_p_value(difference.p_value)})"


def write_ends(number: str, difference: Difference) -> str:
    """Write the ends of a difference's interval, or "–" if it has none."""
    ends = (write_difference(number, end) for end in (difference.lower, difference.upper))
    return " to ".join(ends) if has_interval(difference.method) else MISSING


def differing(comparison: Comparison) -> str:
    """Write at how many shifts the accuracies of two models differ significantly: "80 of 81".

    The result is "" if there is no accuracy.
    """
    curve = comparison.curves.get("accuracy")
    if curve is None:
        return ""
    bands = zip(curve.band_lower, curve.band_upper, strict=True)
    count = sum(not lower <= 0 <= upper for lower, upper in bands)
    return f"{count} of {len(comparison.shifts)}"


def reference_of(pairs: Sequence[Pair]) -> int:
    """Return the index of the model from which others are subtracted, the first one in a pair."""
    return min((pair.first for pair in pairs), default=0)


def comparison_sections(
    pairs: Sequence[Pair], reports: Sequence[AuditReport]
) -> list[dict[str, Any]]:
    """Return the sections of the page, one for each mode.

    A section has the headline, the evidence, a row of differences for each pair of models with
    valid results, and curves of the differences.
    """
    names = [report.name for report in reports]
    sections = []
    for mode, mode_pairs in pairs_by_mode(pairs).items():
        headline, evidence = best_model(mode_pairs, reports)
        valid = valid_pairs(mode_pairs, reports)
        numbers = [
            name
            for name in COMPARED_NUMBERS
            if any(name in pair.comparison.numbers for pair in valid)
        ]
        base = reference_of(valid)
        rows = [
            (pair.first, pair.second, _cells(pair, numbers), differing(pair.comparison))
            for pair in valid
        ]
        lines = {
            pair.second: (pair.comparison.shifts, pair.comparison.curves.get("accuracy"))
            for pair in valid
            if pair.first == base
        }
        label = f"accuracy minus that of {names[base]} (points)"
        figure = curve_figure(names, lines, label, is_percent=True, difference=True)
        methods = [
            difference.method for pair in valid for difference in pair.comparison.numbers.values()
        ]
        section = {
            "mode": mode,
            "headline": headline,
            "evidence": evidence,
            "columns": [NUMBERS[name] for name in numbers],
            "base": names[base],
            "rows": [row for row in rows if row[0] == base],
            "more_rows": [row for row in rows if row[0] != base],
            "curves": [figure] if figure else [],
            "confidence": f"{100 * mode_pairs[0].comparison.confidence:g} %",
            "missing": missing_intervals(methods),
        }
        sections.append(section)
    return sections


def _cells(pair: Pair, numbers: Sequence[str]) -> list[tuple[str, str, str] | None]:
    """Return difference, interval and p-value of each metric, or None if it is not defined."""
    cells: list[tuple[str, str, str] | None] = []
    for name in numbers:
        difference = pair.comparison.numbers.get(name)
        if difference is None:
            cells.append(None)
        else:
            value = write_difference(name, difference.value)
            p_value = write_p_value(difference.p_value)
            cells.append((value, write_ends(name, difference), p_value))
    return cells
