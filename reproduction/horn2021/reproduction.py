"""The experiments of Horn et al. (2021), studies that come with the library: trained, written as table and figure."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from reproduction.horn2021 import horn2021
from reproduction.horn2021.papers import figure1
from reproduction.study import Study, read_study, run_study
from reproduction.study.report.results import StudyResults, read_study_results
from reproduction.study.report.tables import how_far, measured
from reproduction.study.run_study import Progress
from teka import __version__
from teka.checks import check_name
from teka.errors import unknown_name
from teka.reporting.charts import encode_png
from teka.reporting.html import data_uri, render_page
from teka.reporting.tables import Written, markdown_text, write_files

TARGETS = ("table1", "figure1")
SCALES = ("small", "full", "full-cpu", "one-stem")
TITLE = "Reproducing Horn et al. (2021)"
FIGURES = {
    "at_a_glance.png": ("At a glance: all classes, five models at most", horn2021.draw_glance),
    "figure1.png": (
        "Figure 1: class 1, with the paper's curves",
        partial(horn2021.draw_figure1, of_class=horn2021.CLASS),
    ),
    "figure1_all_classes.png": (
        "The same for all classes",
        partial(horn2021.draw_figure1, of_class=None),
    ),
}
ALTERNATIVE = "Accuracy against shift for each data set, one line for each model. The table above has the numbers."


def read_reproduction(scale: str) -> Study:
    """The grid of models, data sets and seeds of a scale.

    "small" is the paper's table at a size for a processor, "full" at its own, for a GPU; "full-cpu" our own models at
    full resolution, and "one-stem" the paper's positions behind their stem, both for a processor.
    """
    check_name("scale", scale, SCALES)
    with as_file(files("reproduction.horn2021") / f"{scale}.yaml") as path:
        return read_study(path)


def target_levels(study: Study, target: str) -> dict[str, list[str]]:
    """The levels that a target needs: "figure1" the Performers on two data sets; of a factor that is not there, all."""
    check_name("target", target, TARGETS)
    if target == "table1":
        return {}
    shown = {curve.data for curve in figure1()}
    data = [level for level in study.factors["data"] if level in shown]
    models = [
        level
        for level, run in study.factors["model"].items()
        if run.get("model", "performer") == "performer"
    ]
    return {"data": data, "model": models}


def reproduce(
    target: str,
    out: str | Path,
    *,
    scale: str = "small",
    data_dir: str | None = None,
    processes: int = 1,
    parallel: str = "loky",
    only: Mapping[str, Sequence[str]] | None = None,
    command: str = "",
    progress: Callable[[Progress], None] = lambda _: None,
) -> Path:
    """Train and measure what a table or figure still lacks, by `reproduction.study.run_study` and with its errors.

    Both targets share their models: what one has trained the other finds. The options are those of `run_study`.

    Args:
        target: "table1" or "figure1".
        out: Folder of the results; it gets a JSON file for each finished model in `cells/`, and is given back.
        scale: "small", "full", "full-cpu" or "one-stem".
        data_dir: Folder with the data sets' files.
        processes: Number of models trained side by side.
        parallel: What runs them.
        only: Levels of "data" or "model", or some seeds by "seed"; the others are left for later.
        command: The command to keep with the numbers.
        progress: Called at the beginning and after every model.
    """
    study = read_reproduction(scale)
    chosen: dict[str, Sequence[str]] = {**target_levels(study, target)}
    for factor, levels in (only or {}).items():
        needed = chosen.get(factor, levels)
        unneeded = [level for level in levels if level not in needed]
        if unneeded and unneeded[0] in study.factors.get(factor, {}):
            raise unknown_name(f"only {factor} of {target}", unneeded[0], needed)
        chosen[factor] = levels
    options: dict[str, Any] = {
        "data_dir": data_dir,
        "processes": processes,
        "parallel": parallel,
        "only": chosen,
    }
    return run_study(study, out, **options, command=command, progress=progress)


def write_reproduction(
    folder: str | Path, *, description: str = "", planned: int | None = None
) -> Written:
    """Write `table1.md`, `table1.csv`, `reproduction.html` and the pictures of `FIGURES`.

    Every file is written whole or not at all, none if the results cannot be read, and no figure where no Performer was
    measured under shifts yet.

    Args:
        folder: The folder, with the results in `cells`, by the factors "data" and "model".
        description: What the scale is.
        planned: How many models are to be trained in all.

    Raises:
        ImportError: matplotlib or jinja2 is not installed.
        ValueError: No result, or one that is not what it should be.
    """
    folder = Path(folder)
    study = read_study_results(folder, planned=planned)
    tables = [table for make in horn2021.TABLES if (table := make(study)).rows]
    shown = FIGURES if horn2021.has_shifts(study) else {}
    pictures = {name: encode_png(draw(study)) for name, (_, draw) in shown.items()}
    notes = reproduction_notes(study)
    said = {
        "title": TITLE,
        "version": __version__,
        "description": description,
        "tables": tables,
        "figures": [
            (heading, data_uri(pictures[name]), ALTERNATIVE) for name, (heading, _) in shown.items()
        ],
        "figure_note": horn2021.figure1_note(study) if shown else "",
        "notes": notes,
        "commands": sorted({result.command for result in study.results}),
    }
    parts = [
        f"# {TITLE}",
        description,
        *(table.markdown() for table in tables),
        *map(markdown_text, notes),
    ]
    contents: dict[str, str | bytes] = {
        "table1.md": "\n\n".join(part for part in parts if part) + "\n",
        "table1.csv": horn2021.table1_csv(study),
        "reproduction.html": render_page("reproduction", "report.html.j2", said),
        **pictures,
    }
    return write_files(folder, contents, tables, notes)


def reproduction_notes(study: StudyResults) -> list[str]:
    """What the numbers mean, what is not there yet, and what they were measured on."""
    notes = [
        "Paper: Table 1 of Horn et al. (2021), one run each; its Fashion-MNIST number of strategy 2 is that for "
        "clipping distance 4. Ours: mean over seeds ± half of the 95 % interval (Student's), on all test images. "
        "MFLOPs: matrix products of one image's forward pass, two for each multiply-add. Seconds: of a core, of the "
        "training steps of one run.",
        "CIFAR-10 has three channels and MNIST and Fashion-MNIST one, whence two numbers of parameters and FLOPs.",
    ]
    notes.append(how_far(study, "models trained"))
    return [*notes, measured(study, "torch")] if study.results else notes
