"""Tables of a study."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from reproduction.study.cells import read_cells
from reproduction.study.study import Study
from teka.files import write_bytes

DIFFERENCES = ["at_equal_steps", "at_equal_time"]
HEADINGS = {
    "accuracy": "accuracy (%)",
    "at_equal_steps": "difference at equal steps",
    "at_equal_time": "at equal time",
    "parameters": "parameters",
    "mflops": "MFLOPs per image",
    "process_seconds": "CPU seconds",
    "unshifted_accuracy": "not shifted (%)",
    "minimum_accuracy": "worst shift (%)",
    "worst_shift_accuracy": "correct at every shift (%)",
    "equivariance_error": "equivariance error",
    "noise_floor": "noise floor",
}
CONDITIONS = {
    "hardware": "Hardware",
    "teka": "Version of teka",
    "torch": "Version of PyTorch",
    "date": "Dates of training",
}
NOTES = """The tables give accuracies as means over seeds ± half of the 95 % interval (Student's t).

Each difference is the accuracy of a model minus the accuracy of the reference model with the same
seed, in percentage points. The column "at equal time" compares both models on held-out images when
each has used the CPU time of the whole reference training. A slower model has then not finished
its learning rate schedule. A faster model has finished, so that its final accuracy is used.

The columns about shifts give the accuracy on the same test images without a shift, the accuracy
at the worst shift, and the share of images that are classified correctly at every shift. If
there is a table of unchanged predictions, it gives the lowest value of all seeds."""


def significant(number: float | int) -> str:
    """Write a number with at least three significant digits and no exponent: "1.23", "1,234"."""
    if number == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(number))))
    return f"{number:,.{decimals}f}"


def half_width(values: Any) -> Any:
    """Return half of the 95 % interval of the mean (Student's t) of a series or of groups.

    The half width of a single value is NaN.
    """
    return values.sem() * stats.t.ppf(0.975, values.count() - 1)


def format_mean(shares: Iterable[Any], *, signed: bool = False) -> str:
    """Format the mean of shares in percent with half of its 95 % interval. Ignore missing values.

    >>> format_mean([0.95, 0.96, 0.97]), format_mean([0.01], signed=True), format_mean([])
    ('96.0 ± 2.5', '+1.0', '–')
    """
    values = pd.Series(shares, dtype=float).dropna()
    if values.empty:
        return "–"
    half = half_width(values)
    decimals = 2 if 0 < half < 0.002 else 1
    mean = round(100 * fmean(values), decimals) + 0.0  # turns −0 into 0
    text = f"{mean:{'+' if signed else ''}.{decimals}f}".replace("-", "−")
    return text if np.isnan(half) else f"{text} ± {100 * half:.{decimals}f}"


def add_differences(cells: pd.DataFrame, reference: Mapping[str, str]) -> pd.DataFrame:
    """Add the differences in accuracy between each cell and its reference with the same seed.

    The column `at_equal_steps` compares test accuracies, or the learning curves at the last common
    step if one of the runs is longer. The column `at_equal_time` compares the learning curves at
    the CPU time of the reference.

    Args:
        cells: Table of `read_cells`.
        reference: Levels of some factors that the reference has instead of those of the cell.
    """
    rows = dict(zip(cells.index, cells.to_dict("records"), strict=True))
    differences = []
    for index, cell in rows.items():
        levels = dict(zip(cells.index.names, index, strict=True)) | dict(reference)
        other = rows.get(tuple(levels.values()), cell)
        differences.append((None, None) if other is cell else _compare(cell, other))
    return cells.join(pd.DataFrame(differences, cells.index, DIFFERENCES, dtype=float))


def _compare(cell: Mapping[str, Any], reference: Mapping[str, Any]) -> tuple[float, float]:
    at_steps = cell["accuracy"] - reference["accuracy"]
    if not (cell["learning_curve"] and reference["learning_curve"]):
        return at_steps, np.nan
    ours, theirs = (pd.DataFrame(row["learning_curve"]) for row in (cell, reference))
    end = theirs.iloc[-1]
    step = min(ours.step.max(), end.step)
    at_common_step = _interpolate(ours, "step", step) - _interpolate(theirs, "step", step)
    if cell["steps"] != reference["steps"] and not np.isnan(at_common_step):
        at_steps = at_common_step
    return at_steps, _interpolate(ours, "process_seconds", end.process_seconds) - end.accuracy


def _interpolate(curve: pd.DataFrame, along: str, position: Any) -> float:
    return float(np.interp(position, curve[along], curve.accuracy, left=np.nan))


def over_seeds(cells: pd.DataFrame) -> Any:
    """Group the rows of a table by all levels of its index except "seed"."""
    return cells.groupby(level=[name for name in cells.index.names if name != "seed"], sort=False)


def format_table(cells: pd.DataFrame, headings: Mapping[str, str]) -> pd.DataFrame:
    """Return means over seeds as text: shares with intervals, and the largest errors.

    Columns without any value are left out.

    Args:
        cells: Table with one row per cell.
        headings: Headings of the columns, by name.
    """
    groups = over_seeds(cells)
    table = pd.DataFrame({"seeds": groups.accuracy.count()})
    for name, heading in headings.items():
        if "accuracy" in name or name in DIFFERENCES:
            table[heading] = groups[name].agg(format_mean, signed=name in DIFFERENCES)
        elif name in ("equivariance_error", "noise_floor"):
            table[heading] = groups[name].max().map("{:.1e}".format, na_action="ignore")
        else:
            table[heading] = groups[name].mean().map(significant, na_action="ignore")
    return table.loc[:, ~(table.isna() | (table == "–")).all()]


def stability_table(cells: pd.DataFrame) -> pd.DataFrame:
    """Return how many predictions, and all predictions of how many images, shifts do not change.

    The values are those of the seed with the lowest shares.
    """
    rows = [
        {**dict(zip(cells.index.names, index, strict=True)), "mode": mode, **values}
        for index, stability in cells.stability.items()
        for mode, values in (stability or {}).items()
    ]
    names = [name for name in cells.index.names if name != "seed"]
    groups: Any = pd.DataFrame(rows).groupby([*names, "mode"], sort=False)
    shares = (100 * groups[["consistency", "unchanged"]].min()).map("{:.2f}".format)
    shares.columns = ["unchanged predictions (%)", "images without any change (%)"]
    return groups[["images", "shifts"]].max().join(shares)


def write_study(
    study: Study,
    folder: str | Path,
    *,
    name: str = "summary",
    tables: Mapping[str, pd.DataFrame] | None = None,
) -> str:
    """Write the tables of the finished cells as Markdown, and return them.

    Args:
        study: The study.
        folder: Folder of its results.
        name: Name of the file.
        tables: Other tables that come first.
    """
    cells = add_differences(read_cells(study, folder), study.reference)
    tables = dict(tables or {})
    if not tables and len(study.factors.keys() - {"data"}) > 1:
        accuracy = over_seeds(cells).accuracy.agg(format_mean)
        tables["Accuracy (%)"] = accuracy.unstack(-1, sort=False)
    tables["Comparison"] = format_table(cells, HEADINGS)
    if cells.stability.any():
        tables["Unchanged predictions"] = stability_table(cells)
    return write_page(Path(folder) / f"{name}.md", study, cells, tables, NOTES)


def write_page(
    path: Path, study: Study, cells: pd.DataFrame, tables: Mapping[str, pd.DataFrame], notes: str
) -> str:
    """Write the tables of a study with its conditions, and return the page.

    Args:
        path: File to write.
        study: The study.
        cells: Its finished cells.
        tables: Tables by heading.
        notes: Text after the tables.
    """
    parts = [f"# {study.name}", study.description.strip()]
    for heading, table in tables.items():
        parts += [f"## {heading}", to_markdown(table)]
    text = "\n\n".join([*parts, notes, describe_conditions(study, cells)])
    write_bytes(path, f"{text}\n".encode())
    return f"{text}\n\nwritten: {path}"


def describe_conditions(study: Study, cells: pd.DataFrame) -> str:
    """Describe the number of finished cells, and the hardware and versions of their training."""
    conditions = [
        f"{heading}: {'; '.join(sorted(cells[name].astype(str).unique()))}."
        for name, heading in CONDITIONS.items()
        if name in cells
    ]
    num_finished, num_failed = cells.accuracy.count(), cells.failed.count()
    num_models = len(study.cells())
    progress = (
        f"{num_finished} of {num_models} models finished training, and {num_failed} diverged."
    )
    return " ".join([progress, *conditions])


def to_markdown(table: pd.DataFrame) -> str:
    """Format a table as Markdown, with the index in the first columns."""
    table = table.reset_index()
    lines = [table.columns, ["---"] * table.shape[1], *table.astype(object).fillna("–").to_numpy()]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
