"""Write the table and the figure of a reproduction from its saved results."""

import textwrap
from pathlib import Path
from typing import NamedTuple

from teka import __version__
from teka.audit.page.charts import encode_png
from teka.audit.page.notation import listed
from teka.audit.page.tables import WIDTH, Table
from teka.audit.page.template import data_uri, render_page
from teka.experiments.reproduce.figure1 import CLASS, draw_figure1, figure1_note, has_shifts, shift_table
from teka.experiments.reproduce.table1 import accuracy_table, effort_table, table1_csv
from teka.experiments.study.report.results import StudyResults, read_study_results
from teka.files import write_bytes

TITLE = "Reproducing Horn et al. (2021)"
FIGURES = (
    ("figure1.png", "Figure 1: class 1, with the paper's curves", CLASS),
    ("figure1_all_classes.png", "The same for all classes", None),
)
ALTERNATIVE = "Accuracy against shift for each data set, one line for each Performer. The table above has the numbers."


class ReproductionFiles(NamedTuple):
    """The files written: the tables as Markdown, CSV and HTML, and the pictures; and the tables for a terminal."""

    markdown: Path
    csv: Path
    page: Path
    pictures: tuple[Path, ...]
    terminal: str

    @property
    def files(self) -> tuple[Path, ...]:
        """All files."""
        return (self.markdown, self.csv, self.page, *self.pictures)


def write_reproduction(folder: str | Path, *, description: str = "", planned: int | None = None) -> ReproductionFiles:
    """Write `table1.md`, `table1.csv`, `reproduction.html`, `figure1.png` and `figure1_all_classes.png`.

    Every file is written whole or not at all; nothing is written if the results cannot be read. Where no Performer was
    measured under shifts yet there is no figure.

    Args:
        folder: The folder, with the results in `cells`, by the factors "data" and "model".
        description: What the scale is.
        planned: How many models are to be trained in all.

    Raises:
        ImportError: matplotlib or jinja2 is not installed.
        ValueError: No result, or one that is not what it should be.
        OSError: The folder cannot be written.
    """
    folder = Path(folder)
    study = read_study_results(folder, planned=planned)
    shifted = has_shifts(study)
    tables = [table for table in (accuracy_table(study), shift_table(study), effort_table(study)) if table.rows]
    pictures = {name: encode_png(draw_figure1(study, of_class=of_class)) for name, _, of_class in FIGURES if shifted}
    notes = reproduction_notes(study)
    page = render_page(
        "teka.experiments.reproduce",
        "reproduction.html.j2",
        {
            "title": TITLE,
            "version": __version__,
            "description": description,
            "tables": tables,
            "figures": [
                (heading, data_uri(pictures[name]), ALTERNATIVE) for name, heading, _ in FIGURES if name in pictures
            ],
            "figure_note": figure1_note(study) if shifted else "",
            "notes": notes,
            "commands": _commands(study),
        },
    )
    written = {
        "table1.md": _markdown(tables, notes, description).encode(),
        "table1.csv": table1_csv(study).encode(),
        "reproduction.html": page.encode(),
        **pictures,
    }
    for name, content in written.items():
        write_bytes(folder / name, content)
    terminal = "\n\n".join([*(table.plain() for table in tables), *(textwrap.fill(note, WIDTH) for note in notes)])
    first, second, third, *rest = (folder / name for name in written)
    return ReproductionFiles(first, second, third, tuple(rest), terminal)


def reproduction_notes(study: StudyResults) -> list[str]:
    """What the numbers mean, what is not there yet, and what they were measured on.

    Args:
        study: The results.
    """
    notes = [
        "Paper: Table 1 of Horn et al. (2021), one run each; its Fashion-MNIST number of strategy 2 is that for "
        "clipping distance 4. Ours: mean ± standard deviation over seeds, on all test images, of the weights "
        "with the best validation accuracy. MFLOPs: matrix products of one image's forward pass, two for each "
        "multiply-add. Seconds: of the training steps of one run.",
        "CIFAR-10 has three channels and MNIST and Fashion-MNIST one, whence two numbers of parameters and FLOPs.",
    ]
    there = f"{len(study.results):,} of {study.planned:,} models trained"
    further = [f"{len(study.failed):,} diverged"] if study.failed else []
    further += [f"{study.missing:,} not there yet"] if study.missing else []
    notes.append(", ".join([there, *further]) + ".")
    results = study.results
    if results:
        days = sorted({result.date for result in results})
        when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
        machines = listed(sorted({result.hardware for result in results}))
        versions = listed(sorted({f"torch {result.torch}" for result in results}))
        notes.append(f"Measured {when} on {machines} with {versions}.")
    return notes


def _commands(study: StudyResults) -> list[str]:
    return sorted({result.command for result in study.results})


def _markdown(tables: list[Table], notes: list[str], description: str) -> str:
    parts = [f"# {TITLE}", description, *(table.markdown() for table in tables), *notes]
    return "\n\n".join(part for part in parts if part) + "\n"
