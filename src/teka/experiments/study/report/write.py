"""Write the tables and pictures of a study from its saved cells, and its groups as plain numbers, as CSV and JSON."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from teka.audit.page.charts import encode_png
from teka.audit.statistics.estimate import Estimate
from teka.errors import require
from teka.experiments.study.report.curves import draw_learning_curves
from teka.experiments.study.report.pictures import draw_dot_plot, draw_heat_map, draw_shift_plot
from teka.experiments.study.report.results import (
    Quantity,
    StudyGroup,
    StudyMatrix,
    StudyResults,
    compare_with,
    read_study_results,
    reference_group,
)
from teka.experiments.study.report.tables import markdown_tables, plain_tables
from teka.files import write_bytes

QUANTITIES: tuple[Quantity, ...] = (
    "accuracy",
    "minimum_accuracy",
    "worst_shift_accuracy",
    "unshifted_accuracy",
    "process_seconds",
)


def summary_rows(study: StudyResults, reference: Mapping[str, str]) -> list[dict[str, str | float | int | None]]:
    """One row for each group, the best of each data set first; shares are from 0 to 1, what is not known is None."""
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
        "forward_flops": forward and forward.value,
        "training_flops": training and training.value,
    }
    for quantity in QUANTITIES:
        row |= _named(quantity, group.estimate(quantity))
    row |= _named("difference_at_equal_steps", comparison and comparison.equal_steps)
    row |= _named("difference_at_equal_time", comparison and comparison.equal_time)
    row["ended_before_equal_time"] = comparison and comparison.early
    row |= {error: group.largest(error) for error in ("equivariance_error", "noise_floor")}
    return row


def _named(name: str, found: Estimate | None) -> dict[str, float | None]:
    return {name: found and found.value, f"{name}_half_width": found and found.half_width}


def summary_csv(study: StudyResults, reference: Mapping[str, str]) -> str:
    """The rows as CSV; what is not known is empty."""
    return as_csv(summary_rows(study, reference))


def as_csv(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows as CSV, whole numbers as such; what is None is empty."""
    require("pandas", "reports need", "teka[report]")
    import pandas as pd

    return pd.DataFrame(rows, dtype=object).to_csv(index=False, lineterminator="\n")


def summary_content(study: StudyResults, reference: Mapping[str, str]) -> dict[str, object]:
    """The counts, the rows, and for each group its learning curve over seeds and its values by seed, ready for JSON."""
    groups = []
    for group in _ranked_groups(study):
        row = _row(study, group, reference)
        curve = [
            {
                "step": point.step,
                "process_seconds": point.process_seconds,
                "mean": point.accuracy.value,
                "half_width": point.accuracy.half_width,
                "seeds": len(group.results),
            }
            for point in group.curve
        ]
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


class StudyFiles(NamedTuple):
    """The files written: the tables as Markdown, CSV and JSON, and the pictures; and the tables for a terminal."""

    markdown: Path
    csv: Path
    json: Path
    pictures: tuple[Path, ...]
    terminal: str

    @property
    def files(self) -> tuple[Path, ...]:
        """All files."""
        return (self.markdown, self.csv, self.json, *self.pictures)


def write_study(folder: str | Path, *, reference: Mapping[str, str], planned: int | None = None) -> StudyFiles:
    """Write the tables and pictures of a study's folder from the cells that are there.

    Every file is written whole or not at all; nothing is written if the cells cannot be read. Without a finished cell
    there are no pictures.

    Args:
        folder: The study's folder, with its cells in `cells` or packed.
        reference: The level of some factors that the others are compared with; empty for no comparison.
        planned: How many cells the study has when it is done; by default the product of all levels and seeds found.

    Returns:
        Paths of the files written, and the tables as text of at most 120 columns.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: No cell, a cell that is not what it should be, or a reference factor that the study does not have.
        OSError: The folder cannot be written.
    """
    folder = Path(folder)
    study = read_study_results(folder, planned=planned)
    summary = json.dumps(summary_content(study, reference), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    texts = {
        "summary.md": markdown_tables(study, reference),
        "summary.csv": summary_csv(study, reference),
        "summary.json": summary,
    }
    pictures = _pictures(StudyMatrix(study), reference) if study.results else {}
    for name, content in {**{name: text.encode() for name, text in texts.items()}, **pictures}.items():
        write_bytes(folder / name, content)
    markdown, table, numbers = (folder / name for name in texts)
    return StudyFiles(
        markdown, table, numbers, tuple(folder / name for name in pictures), plain_tables(study, reference)
    )


def _pictures(matrix: StudyMatrix, reference: Mapping[str, str]) -> dict[str, bytes]:
    figures = {"accuracy.png": draw_dot_plot(matrix, reference), "shifts.png": draw_shift_plot(matrix)}
    if matrix.column_factor:
        figures["heat_map.png"] = draw_heat_map(matrix)
    for column in matrix.columns:
        if any(group.curve for group in matrix.study.groups if matrix.column_of(group) == column):
            suffix = re.sub(r"[^\w.]+", "-", column.lower()).strip("-")
            name = "_".join(["learning_curves", *([suffix] if suffix else [])])
            figures[f"{name}.png"] = draw_learning_curves(matrix, column, reference)
    return {name: encode_png(figure) for name, figure in figures.items()}
