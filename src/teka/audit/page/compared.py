"""How several models compare: which wins, as far as that can be told, and every paired difference."""

from collections.abc import Sequence
from typing import Any

from teka.audit.page.charts import curve_figure
from teka.audit.page.metric_formatting import MISSING, is_share, missing_intervals, write_difference
from teka.audit.report import AuditReport
from teka.audit.statistics.comparison import COMPARED_NUMBERS, Comparison, Difference
from teka.audit.statistics.estimate import has_interval
from teka.audit.statistics.metrics import NUMBERS
from teka.audit.statistics.ranking import Lead, Pair, find_leads
from teka.reporting.formatting import listed, write_p_value

# The first that is defined names the winner.
DECISIVE = ("worst_shift_accuracy", "consistency", "overlap", "mean_error")


def valid_pairs(pairs: Sequence[Pair], reports: Sequence[AuditReport]) -> list[Pair]:
    """Return the pairs whose two models both have valid results. Only these are compared."""
    return [
        pair for pair in pairs if not (reports[pair.first].invalid or reports[pair.second].invalid)
    ]


def excluded(reports: Sequence[AuditReport]) -> list[str]:
    """Write a sentence for each model that is not compared because its results are invalid."""
    return [
        f"{report.name} is not compared, because its results are invalid: {', '.join(report.invalid)}."
        for report in reports
        if report.invalid
    ]


def winner(
    pairs: Sequence[Pair], reports: Sequence[AuditReport]
) -> tuple[str, list[tuple[str, str]]]:
    """Return which of the models wins in the mode of the pairs, and the evidence: each number with a sentence.

    Models with invalid results do not compete. A model that lacks a number does not compete by that number.
    """
    names, mode = [report.name for report in reports], pairs[0].comparison.movement.mode
    competing = [at for at, report in enumerate(reports) if not report.invalid]
    out = [("", sentence) for sentence in excluded(reports)]
    if len(competing) < 2:
        left = f"only {names[competing[0]]} has" if competing else "no model has"
        return f"In mode {mode} nobody wins: {left} valid results.", out
    leads = find_leads(valid_pairs(pairs, reports))
    decisive = [lead for number in DECISIVE for lead in leads if lead.number == number]
    if not leads:
        return (
            f"In mode {mode} no number is defined for two models, so that none can be compared.",
            out,
        )
    # The number that most models have decides; of several, the first of `DECISIVE`.
    found = max(decisive or leads, key=lambda lead: len(lead.over))
    number = NUMBERS[found.number]
    if lacking := [names[at] for at in competing if at != found.best and at not in found.over]:
        out.append(
            ("", f"Not ranked, because their outputs do not define that number: {listed(lacking)}.")
        )
    by = f"In mode {mode}, by {'the ' + number.meaning if number.is_share else number.label},"
    tied = [names[at] for at in (found.best, *found.tied)]
    headline = (
        f"{by} nobody wins: {listed(tied)} are not told apart."
        if found.tied
        else f"{by} {tied[0]} wins."
    )
    return headline, [*((lead.number, _evidence(lead, names)) for lead in leads), *out]


def _evidence(lead: Lead, names: Sequence[str]) -> str:
    number, best = NUMBERS[lead.number], names[lead.best]
    way, label = (
        "above" if number.is_share else "below",
        f"{number.label[:1].upper()}{number.label[1:]}",
    )
    parts = []
    if lead.tied:
        apart = f"{listed([best, *(names[at] for at in lead.tied)])} are not told apart"
        last = lead.tied[-1]
        parts.append(f"{apart} ({best} less {names[last]}: {_lead_words(lead, last)})")
    if lead.beaten:
        nearest, *more = lead.beaten
        further = (
            f"; {len(more)} more {'lie' if len(more) > 1 else 'lies'} further behind"
            if more
            else ""
        )
        parts.append(f"{best} lies {way} {names[nearest]} by {_lead_words(lead, nearest)}{further}")
    return f"{label}: {'; '.join(parts)}."


def _lead_words(lead: Lead, over: int) -> str:
    one = lead.over[over]
    sizes = [
        write_difference(lead.number, value).removeprefix("+")
        for value in (one.value, one.lower, one.upper)
    ]
    unit = " points" if is_share(lead.number) else ""
    ends = f"{sizes[1]} to {sizes[2]}" if has_interval(one.method) else "no interval"
    return f"{sizes[0]}{unit} ({ends}, {write_p_value(one.p_value)})"


def write_ends(number: str, one: Difference) -> str:
    """The ends of a difference's interval, "–" if it has none."""
    ends = (write_difference(number, end) for end in (one.lower, one.upper))
    return " to ".join(ends) if has_interval(one.method) else MISSING


def differing(comparison: Comparison) -> str:
    """At how many of all shifts the accuracies of two models differ, "80 of 81"; "" where there is no accuracy."""
    curve = comparison.curves.get("accuracy")
    if curve is None:
        return ""
    count = sum(p_value <= 1 - comparison.confidence for p_value in curve.adjusted_p_values)
    return f"{count} of {len(comparison.shifts)}"


def reference_of(pairs: Sequence[Pair]) -> int:
    """Return the place of the model from which the others are subtracted: the first that is in a pair."""
    return min((pair.first for pair in pairs), default=0)


def comparison_sections(
    pairs: Sequence[Pair], reports: Sequence[AuditReport]
) -> list[dict[str, Any]]:
    """A section for each mode: winner, evidence, a row of differences for each valid pair, and their curves."""
    names, sections = [report.name for report in reports], []
    for mode in dict.fromkeys(pair.comparison.movement.mode for pair in pairs):
        of_mode = [pair for pair in pairs if pair.comparison.movement.mode == mode]
        headline, evidence = winner(of_mode, reports)
        valid = valid_pairs(of_mode, reports)
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
        with_base = [pair for pair in valid if pair.first == base]
        lines = {
            pair.second: (pair.comparison.shifts, found.curve if found is not None else None)
            for pair in with_base
            for found in [pair.comparison.curves.get("accuracy")]
        }
        label = f"correct, less {names[base]} (points)"
        figure = curve_figure(names, lines, label, is_percent=True, difference=True)
        methods = [one.method for pair in valid for one in pair.comparison.numbers.values()]
        section = {
            "mode": mode,
            "headline": headline,
            "evidence": evidence,
            "columns": [NUMBERS[name] for name in numbers],
            "base": names[base],
            "rows": [row for row in rows if row[0] == base],
            "more_rows": [row for row in rows if row[0] != base],
            "curves": [figure] if figure else [],
            "confidence": f"{100 * of_mode[0].comparison.confidence:g} %",
            "missing": missing_intervals(methods),
        }
        sections.append(section)
    return sections


def _cells(pair: Pair, numbers: Sequence[str]) -> list[tuple[str, str, str] | None]:
    """Difference, interval and p-value of each number, None where it is not defined."""
    found = [(name, pair.comparison.numbers.get(name)) for name in numbers]
    return [
        one
        and (write_difference(name, one.value), write_ends(name, one), write_p_value(one.p_value))
        for name, one in found
    ]
