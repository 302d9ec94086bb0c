"""Comparison of several models: the best model in words, and sections of the audit page."""

from collections.abc import Sequence
from typing import Any

from teka.audit.page.metric_formatting import (
    explain_missing_intervals,
    format_difference,
    format_difference_interval,
    is_percentage,
    metric_title,
)
from teka.audit.report import AuditReport
from teka.audit.statistics.comparison import (
    BestModel,
    Comparison,
    Difference,
    ModelPair,
    find_best_models,
)
from teka.audit.statistics.intervals import has_interval
from teka.audit.statistics.metrics import NUMBERS
from teka.reporting.formatting import format_p_value, join_words

MOST_NAMED = 2  # number of models whose names are in the headline
# The first of these metrics that the models define decides which model is best.
DECISIVE = ("worst_shift_accuracy", "consistency", "overlap", "mean_error")


def select_valid_pairs(
    pairs: Sequence[ModelPair], reports: Sequence[AuditReport]
) -> list[ModelPair]:
    """Select the pairs in which the results of both models are valid."""
    return [
        pair for pair in pairs if not (reports[pair.first].invalid or reports[pair.second].invalid)
    ]


def describe_best_model(
    pairs: Sequence[ModelPair], reports: Sequence[AuditReport]
) -> tuple[str, list[str]]:
    """Describe which model is the best in one mode of shifting.

    Models with invalid results are not compared. If the output of a model does not define a metric,
    such as the accuracy, the model is left out of the ranking by this metric.

    Args:
        pairs: Comparisons of all pairs of models in one mode.
        reports: Reports of all models.

    Returns:
        A headline that names the best model, and sentences with the evidence.
    """
    names = [report.name for report in reports]
    mode = pairs[0].comparison.movement.mode
    competing = [index for index, report in enumerate(reports) if not report.invalid]
    notes = [
        f"{report.name} is not compared, because its results are invalid: "
        f"{', '.join(report.invalid)}."
        for report in reports
        if report.invalid
    ]
    if len(competing) < 2:
        left = f"only {names[competing[0]]} has" if competing else "no model has"
        return f"Mode {mode}: no comparison, because {left} valid results.", notes
    rankings = find_best_models(select_valid_pairs(pairs, reports))
    if not rankings:
        return f"Mode {mode}: no best model, because no metric is defined for every pair.", notes
    decisive = [best for metric in DECISIVE for best in rankings if best.metric == metric]
    # The metric that most models define decides, and of several the first of `DECISIVE`.
    best = max(decisive or rankings, key=lambda best: len(best.advantages))
    others = [names[index] for index in best.advantages]
    if best.tied_models:
        headline = _describe_tie(best, names)
    else:
        beaten = join_words(others) if len(others) <= MOST_NAMED else f"all {len(others)} others"
        headline = f"{names[best.model]} is significantly better than {beaten}"
    lacking = [names[index] for index in competing if index not in (best.model, *best.advantages)]
    if lacking:
        notes.append(
            f"Not compared, because their outputs do not define this metric: {join_words(lacking)}."
        )
    evidence = [_describe_advantages(ranking, names) for ranking in rankings]
    return f"Mode {mode}: {headline} in {metric_title(best.metric)}.", [*evidence, *notes]


def _describe_tie(best: BestModel, names: Sequence[str]) -> str:
    tied = [names[index] for index in (best.model, *best.tied_models)]
    return f"no significant difference between {join_words(tied)}"


def _describe_advantages(best: BestModel, names: Sequence[str]) -> str:
    """Describe in one sentence by how much the best model leads in one metric."""
    title = metric_title(best.metric)
    parts = []
    if best.tied_models:
        most = "at most " if len(best.tied_models) > 1 else ""
        size = _format_advantage(best.metric, best.advantages[best.tied_models[-1]])
        parts.append(f"{_describe_tie(best, names)}: {most}{size}")
    if best.worse_models:
        nearest, *more = best.worse_models
        way = "higher" if is_percentage(best.metric) else "lower"
        size = _format_advantage(best.metric, best.advantages[nearest])
        parts.append(f"{way} for {names[best.model]} than for {names[nearest]} by {size}")
        if more:
            others = "the other model" if len(more) == 1 else f"each of {len(more)} other models"
            parts.append(f"the difference to {others} is larger")
    return f"{title[:1].upper()}{title[1:]}: {'; '.join(parts)}."


def _format_advantage(metric: str, advantage: Difference) -> str:
    # An advantage is positive, so it needs no sign.
    return _format_difference_with_interval(metric, advantage).replace("+", "")


def _format_difference_with_interval(metric: str, difference: Difference) -> str:
    """Format a difference, such as "+3.0 points (+1.0 to +5.0, p = 0.001)"."""
    value = format_difference(metric, difference.value)
    unit = " points" if is_percentage(metric) else ""
    interval = "no interval"
    if has_interval(difference.method):
        interval = format_difference_interval(metric, difference)
    return f"{value}{unit} ({interval}, {format_p_value(difference.p_value)})"


def describe_accuracy_change(pairs: Sequence[ModelPair]) -> str:
    """Describe how a fix changes the accuracy of a model on unshifted images.

    If the accuracy changes differently in several modes of shifting, there is a sentence for each.

    Args:
        pairs: Comparisons of the model before the fix with the model after the fix, for each mode.
    """
    modes_of = {}
    for pair in pairs:
        before = pair.comparison.numbers.get("accuracy")
        if before is None:
            continue
        change = before.negate()
        if change.p_value > 1 - change.confidence:
            sentence = "Its accuracy on unshifted images does not change significantly"
        else:
            verb = "loses" if change.value < 0 else "gains"
            sentence = f"It {verb} accuracy on unshifted images"
        sentence = f"{sentence}: {_format_difference_with_interval('accuracy', change)}"
        modes_of.setdefault(sentence, []).append(pair.comparison.movement.mode)
    if not modes_of:
        return "The effect on the accuracy is unknown, because the images have no labels."
    if len(modes_of) == 1:
        return f"{next(iter(modes_of))}."
    return " ".join(f"{text} in mode {join_words(modes)}." for text, modes in modes_of.items())


def describe_differing_shifts(comparison: Comparison) -> str:
    """Say at how many shifts the accuracies of two models differ significantly.

    The result is a text such as "80 of 81", or "" if the models have no accuracy.
    """
    curve = comparison.curves.get("accuracy")
    if curve is None:
        return ""
    bands = zip(curve.band_lower, curve.band_upper, strict=True)
    count = sum(not lower <= 0 <= upper for lower, upper in bands)
    return f"{count} of {len(comparison.shifts)}"


def comparison_sections(
    pairs: Sequence[ModelPair], reports: Sequence[AuditReport]
) -> list[dict[str, Any]]:
    """Return one section per mode of shifting, with the best model and all differences.

    The charts of a section show the differences between each model and the "reference", which is
    the first model with valid results.
    """
    pairs_by_mode = {}
    for pair in pairs:
        pairs_by_mode.setdefault(pair.comparison.movement.mode, []).append(pair)
    sections = []
    for mode, mode_pairs in pairs_by_mode.items():
        headline, evidence = describe_best_model(mode_pairs, reports)
        valid = select_valid_pairs(mode_pairs, reports)
        reference = min((pair.first for pair in valid), default=0)
        numbers = [pair.comparison.numbers for pair in valid]
        sections.append(
            {
                "mode": mode,
                "headline": headline,
                "evidence": evidence,
                "columns": [name for name in NUMBERS if any(name in each for each in numbers)],
                "reference": reference,
                "pairs": valid,
                "differences": {
                    pair.second: pair.comparison for pair in valid if pair.first == reference
                },
                "confidence": f"{100 * mode_pairs[0].comparison.confidence:g} %",
                "missing": explain_missing_intervals(
                    difference.method for each in numbers for difference in each.values()
                ),
            }
        )
    return sections
