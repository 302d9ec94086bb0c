"""Write the tables and pictures of a study from its saved cells."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from teka.audit.page.charts import encode_png
from teka.experiments.study.report.dot_plot import draw_dot_plot
from teka.experiments.study.report.heat_map import draw_heat_map
from teka.experiments.study.report.learning_plot import draw_learning_curves
from teka.experiments.study.report.matrix import StudyMatrix
from teka.experiments.study.report.results import read_study_results
from teka.experiments.study.report.shift_plot import draw_shift_plot
from teka.experiments.study.report.summary import summary_content, summary_csv
from teka.experiments.study.report.table import markdown_tables, plain_tables
from teka.files import write_bytes


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
        folder: The study's folder, with its cells in `cells`.
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
