"""A study's groups as plain numbers, for CSV and JSON."""

import csv
import io
from collections.abc import Mapping

from teka.experiments.study.report.comparison import compare_with, reference_group
from teka.experiments.study.report.estimate import Estimate
from teka.experiments.study.report.group import Quantity, StudyGroup
from teka.experiments.study.report.matrix import StudyMatrix
from teka.experiments.study.report.results import StudyResults

QUANTITIES: tuple[Quantity, ...] = (
    "accuracy",
    "minimum_accuracy",
    "worst_shift_accuracy",
    "unshifted_accuracy",
    "process_seconds",
)


def summary_rows(study: StudyResults, reference: Mapping[str, str]) -> list[dict[str, str | float | int | None]]:
    """One row for each group, the best of each data set first; shares are from 0 to 1, and what is not known is None.

    Args:
        study: The results.
        reference: The reference's level of some factors.

    Raises:
        ValueError: The reference names a factor that the study does not have.
    """
    return [_row(study, group, reference) for group in _ranked_groups(study)]


def _ranked_groups(study: StudyResults) -> list[StudyGroup]:
    matrix = StudyMatrix(study)
    return [group for panel in matrix.panels for group in matrix.ranked_groups(panel)]


def _row(study: StudyResults, group: StudyGroup, reference: Mapping[str, str]) -> dict[str, str | float | int | None]:
    other = reference_group(study, group, reference)
    comparison = compare_with(group, other) if other else None
    first = group.results[0] if group.results else None
    forward, training = group.estimate("forward_flops"), group.estimate("training_flops")
    row: dict[str, str | float | int | None] = {
        **group.labels,
        "finished": len(group.results),
        "diverged": len(group.failed),
        "missing": group.missing,
        "parameters": first and first.parameters,
        "backend": first and first.backend,
        "steps": first and first.steps,
        "forward_flops": forward and forward.mean,
        "training_flops": training and training.mean,
    }
    for quantity in QUANTITIES:
        row |= _named(quantity, group.estimate(quantity))
    row |= _named("difference_at_equal_steps", comparison and comparison.equal_steps)
    row |= _named("difference_at_equal_time", comparison and comparison.equal_time)
    row["ended_before_equal_time"] = comparison and comparison.early
    row |= {error: group.largest(error) for error in ("equivariance_error", "noise_floor")}
    return row


def _named(name: str, found: Estimate | None) -> dict[str, float | None]:
    return {name: found and found.mean, f"{name}_half_width": found and found.half_width}


def summary_csv(study: StudyResults, reference: Mapping[str, str]) -> str:
    """The rows as CSV; what is not known is empty."""
    rows = summary_rows(study, reference)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def summary_content(study: StudyResults, reference: Mapping[str, str]) -> dict[str, object]:
    """The counts, the rows, and for each group its learning curve over seeds and its values by seed, ready for JSON."""
    groups = []
    for group in _ranked_groups(study):
        row = _row(study, group, reference)
        curve = [{"step": p.step, "process_seconds": p.process_seconds, **p.accuracy._asdict()} for p in group.curve]
        seeds = [{"seed": r.seed, **{quantity: getattr(r, quantity) for quantity in QUANTITIES}} for r in group.results]
        groups.append({**row, "seeds": seeds, "learning_curve": curve})
    return {
        "reference": dict(reference),
        "factors": list(study.factors),
        "cells": {
            "planned": study.planned,
            "finished": len(study.results),
            "diverged": len(study.failed),
            "missing": study.missing,
        },
        "diverged": [{"labels": cell.labels, "seed": cell.seed, "message": cell.failed} for cell in study.failed],
        "groups": groups,
    }
