"""Write the tables and pictures of a study from its saved cells, and its groups as plain numbers, as CSV and JSON."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from reproduction.study.report.curves import draw_learning_curves
from reproduction.study.report.pictures import draw_dot_plot, draw_heat_map, draw_shift_plot
from reproduction.study.report.results import (
    BySeed,
    StudyGroup,
    StudyMatrix,
    StudyResults,
    compare_with,
    read_study_results,
)
from reproduction.study.report.tables import (
    accuracy_tables,
    comparison_tables,
    shift_tables,
    study_notes,
)
from reproduction.study.study import slug
from teka.audit.statistics.estimate import Estimate
from teka.errors import require
from teka.reporting.charts import encode_png
from teka.reporting.formatting import listed
from teka.reporting.tables import Written, csv_words, markdown_text, write_files

QUANTITIES: tuple[BySeed, ...] = get_args(BySeed)
PROVENANCE = ("hardware", "torch", "date")
Row = dict[str, str | float | int | None]


def group_row(study: StudyResults, group: StudyGroup, reference: Mapping[str, str]) -> Row:
    """A group in numbers; shares are from 0 to 1, what is not known is None."""
    first = group.results[0] if group.results else None
    forward, training = group.estimate("forward_flops"), group.estimate("training_flops")
    row: Row = {
        **group.labels,
        "finished": len(group.results),
        "diverged": len(group.failed),
        "missing": group.missing,
        "parameters": first and first.parameters,
        "backend": first and first.backend,
        "steps": first and first.steps,
        "test_images": first and first.test_images,
        "forward_flops": forward and forward.value,
        "training_flops": training and training.value,
    }
    for quantity in QUANTITIES:
        row |= _named(quantity, group.estimate(quantity))
    row |= {error: group.largest(error) for error in ("equivariance_error", "noise_floor")}
    if reference:
        comparison = compare_with(group, study.reference_of(group, reference))
        row |= _named("difference_at_equal_steps", comparison and comparison.equal_steps)
        row |= _named("difference_at_equal_time", comparison and comparison.equal_time)
        row["ended_before_equal_time"] = comparison and comparison.early
    measured_with = {
        name: sorted({getattr(one, name) for one in group.results}) for name in PROVENANCE
    }
    return row | {
        name: listed(values) if values else None for name, values in measured_with.items()
    }


def _named(name: str, found: Estimate | None) -> dict[str, float | None]:
    return {name: found and found.value, f"{name}_half_width": found and found.half_width}


def as_csv(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows as CSV, whole numbers as such; what is None is empty."""
    require("pandas", "reports need", "teka[report]")
    import pandas as pd

    cells = [
        {
            csv_words(name): csv_words(cell) if isinstance(cell, str) else cell
            for name, cell in row.items()
        }
        for row in rows
    ]
    return pd.DataFrame(cells, dtype=object).to_csv(index=False, lineterminator="\n")


def _summary(
    study: StudyResults,
    rows: Sequence[tuple[StudyGroup, Mapping[str, object]]],
    reference: Mapping[str, str],
) -> dict[str, object]:
    """The counts, the rows, and for each group its learning curve over seeds and its values by seed, ready for JSON."""
    groups = []
    for group, row in rows:
        curve = []
        for point in group.curve:
            accuracy = {"mean": point.accuracy.value, "half_width": point.accuracy.half_width}
            place = {"step": point.step, "process_seconds": point.process_seconds}
            curve.append({**place, **accuracy, "seeds": len(group.results)})
        seeds = [
            {"seed": r.seed, **{quantity: getattr(r, quantity) for quantity in QUANTITIES}}
            for r in group.results
        ]
        groups.append({**row, "seeds": seeds, "learning_curve": curve})
    counts = {
        "finished": len(study.results),
        "diverged": len(study.failed),
        "missing": study.missing,
    }
    return {
        "reference": dict(reference),
        "factors": list(study.factors),
        "cells": {"planned": study.planned, **counts},
        "diverged": [
            {"labels": cell.labels, "seed": cell.seed, "message": cell.failed}
            for cell in study.failed
        ],
        "groups": groups,
    }


def write_study(
    folder: str | Path, *, reference: Mapping[str, str], planned: int | None = None
) -> Written:
    """Write `summary.md`, `summary.csv`, `summary.json` and the pictures of the cells that are there, each file whole.

    Nothing is written if the cells cannot be read, and no picture without a finished one.

    Args:
        folder: The study's folder, with its cells in `cells` or packed.
        reference: The level of some factors that the others are compared with; empty for no comparison.
        planned: How many cells the study has when it is done; by default the product of all levels and seeds found.
    """
    folder = Path(folder)
    study = read_study_results(folder, planned=planned)
    matrix = StudyMatrix(study)
    ranked = [group for panel in matrix.panels for group in matrix.ranked_groups(panel)]
    rows = [(group, group_row(study, group, reference)) for group in ranked]
    tables = [*accuracy_tables(study), *comparison_tables(study, reference), *shift_tables(study)]
    notes = study_notes(study, reference)
    summary = json.dumps(
        _summary(study, rows, reference), indent=2, ensure_ascii=False, allow_nan=False
    )
    contents: dict[str, str | bytes] = {
        "summary.md": "\n\n".join(
            [*(table.markdown() for table in tables), *map(markdown_text, notes)]
        )
        + "\n",
        "summary.csv": as_csv([row for _, row in rows]),
        "summary.json": f"{summary}\n",
        **(_pictures(matrix, reference) if study.results else {}),
    }
    return write_files(folder, contents, tables, notes)


def _pictures(matrix: StudyMatrix, reference: Mapping[str, str]) -> dict[str, bytes]:
    figures = {
        "accuracy.png": draw_dot_plot(matrix, reference),
        "shifts.png": draw_shift_plot(matrix),
    }
    if matrix.column_factor:
        figures["heat_map.png"] = draw_heat_map(matrix)
    for column in matrix.columns:
        if any(group.curve for group in matrix.study.groups if matrix.place_of(group)[2] == column):
            suffix = slug(column)
            name = f"learning_curves_{suffix}" if suffix else "learning_curves"
            figures[f"{name}.png"] = draw_learning_curves(matrix, column, reference)
    return {name: encode_png(figure) for name, figure in figures.items()}
