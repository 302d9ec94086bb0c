"""Markdown page that summarizes the results of a study in tables."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from reproduction.study.results import read_results_table
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
    "hardware": "hardware",
    "teka": "teka version",
    "torch": "PyTorch version",
    "date": "training dates",
}
NOTES = """Accuracies are means over seeds ± half of the 95 % interval (Student's t).

The column "difference at equal steps" gives the accuracy difference between a model and the
reference model with the same seed, in percentage points.

The column "at equal time" gives the accuracy difference on held-out images after equal CPU times:
both models are compared at the time when the training of the reference model ends. At this time, a
slower model is only partly trained. For a faster model, the final accuracy is used.

The columns "not shifted", "worst shift" and "correct at every shift" are measured on the same test
images. They give the accuracy without a shift, the lowest accuracy at any shift, and the percentage
of images that are classified correctly at every shift.

The table of unchanged predictions, if there is one, gives the lowest percentage of all seeds."""


def format_number(number: float | int) -> str:
    """Format a number with at least three significant digits, such as "1.23" or "1,234"."""
    if number == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(number))))
    return f"{number:,.{decimals}f}"


def compute_margin_of_error(values: Any) -> Any:
    """Return the margin of error of a mean: half of its 95 % confidence interval (Student's t).

    The margin of a single value is NaN.

    Args:
        values: A series, a table or a grouped series. The result has one margin for the series, for
            each column or for each group.
    """
    return values.sem() * stats.t.ppf(0.975, values.count() - 1)


def format_mean_percentage(shares: Iterable[Any], *, signed: bool = False) -> str:
    """Format the mean of fractions as a percentage with its margin of error, such as "96.0 ± 2.5".

    Missing values are ignored.

    >>> format_mean_percentage([0.95, 0.96, 0.97]), format_mean_percentage([])
    ('96.0 ± 2.5', '–')
    >>> format_mean_percentage([0.01], signed=True)
    '+1.0'
    """
    values = pd.Series(shares, dtype=float).dropna()
    if values.empty:
        return "–"
    margin = compute_margin_of_error(values)
    decimals = 2 if 0 < margin < 0.002 else 1
    mean = round(100 * fmean(values), decimals) + 0.0  # turns −0 into 0
    text = f"{mean:{'+' if signed else ''}.{decimals}f}".replace("-", "−")
    return text if np.isnan(margin) else f"{text} ± {100 * margin:.{decimals}f}"


def add_accuracy_differences(results: pd.DataFrame, reference: Mapping[str, str]) -> pd.DataFrame:
    """Add two columns with the accuracy difference between each model and its reference model.

    The reference model has the levels in `reference`. Its seed and the levels of all other factors
    are the same as those of the model.

    - `at_equal_steps` is the difference in test accuracy. If the two models were trained for
      different numbers of steps, it is the difference in accuracy on held-out images after the same
      number of steps.
    - `at_equal_time` is the difference in accuracy on held-out images after the CPU time that the
      reference model took to train.

    Args:
        results: Table of `read_results_table`, with one row for each model.
        reference: Level of the reference model for some factors, such as `{"kernel": "softmax"}`.
    """
    rows = dict(zip(results.index, results.to_dict("records"), strict=True))
    differences = []
    for index, row in rows.items():
        levels = dict(zip(results.index.names, index, strict=True)) | dict(reference)
        other = rows.get(tuple(levels.values()), row)
        differences.append(
            (None, None) if other is row else _subtract_reference_accuracy(row, other)
        )
    return results.join(pd.DataFrame(differences, results.index, DIFFERENCES, dtype=float))


def _subtract_reference_accuracy(
    row: Mapping[str, Any], reference: Mapping[str, Any]
) -> tuple[float, float]:
    at_steps = row["accuracy"] - reference["accuracy"]
    if not (row["learning_curve"] and reference["learning_curve"]):
        return at_steps, np.nan
    ours, theirs = (pd.DataFrame(result["learning_curve"]) for result in (row, reference))
    end = theirs.iloc[-1]
    step = min(ours.step.max(), end.step)
    at_common_step = _interpolate(ours, "step", step) - _interpolate(theirs, "step", step)
    if row["steps"] != reference["steps"] and not np.isnan(at_common_step):
        at_steps = at_common_step
    return at_steps, _interpolate(ours, "process_seconds", end.process_seconds) - end.accuracy


def _interpolate(curve: pd.DataFrame, along: str, position: Any) -> float:
    return float(np.interp(position, curve[along], curve.accuracy, left=np.nan))


def group_by_model(results: pd.DataFrame) -> Any:
    """Group the rows of a results table by model, so that each group contains all its seeds."""
    return results.groupby(
        level=[name for name in results.index.names if name != "seed"], sort=False
    )


def summarize_seeds(results: pd.DataFrame, headings: Mapping[str, str]) -> pd.DataFrame:
    """Summarize all seeds of a model in one table row.

    - Accuracies are means over seeds with the margin of error.
    - Equivariance errors and noise floors are maxima over seeds.
    - Other numbers are means over seeds.

    Columns without any value are dropped.

    Args:
        results: Table of `read_results_table`, with one row for each model.
        headings: Column names of `results` to summarize, and their headings in the new table.
    """
    groups = group_by_model(results)
    table = pd.DataFrame({"seeds": groups.accuracy.count()})
    for name, heading in headings.items():
        if "accuracy" in name or name in DIFFERENCES:
            table[heading] = groups[name].agg(format_mean_percentage, signed=name in DIFFERENCES)
        elif name in ("equivariance_error", "noise_floor"):
            table[heading] = groups[name].max().map("{:.1e}".format, na_action="ignore")
        else:
            table[heading] = groups[name].mean().map(format_number, na_action="ignore")
    return table.loc[:, ~(table.isna() | (table == "–")).all()]


def make_stability_table(results: pd.DataFrame) -> pd.DataFrame:
    """Return a table with the percentage of predictions that shifts do not change.

    There is one row for each model and shift mode. A second column gives the percentage of images
    whose prediction is the same under every shift. Both percentages are minima over seeds.
    """
    modes = results.stability.dropna().apply(pd.Series)
    table = modes.stack().dropna().rename_axis([*results.index.names, "mode"]).apply(pd.Series)
    groups = group_by_model(table)
    shares = (100 * groups[["consistency", "unchanged"]].min()).map("{:.2f}".format)
    shares.columns = ["unchanged predictions (%)", "images without any change (%)"]
    return groups[["images", "shifts"]].max().astype(int).join(shares)


def write_study_page(
    study: Study,
    folder: str | Path,
    *,
    name: str = "summary",
    tables: Mapping[str, pd.DataFrame] | None = None,
) -> str:
    """Write a Markdown page that compares the trained models of a study, and return its text.

    Args:
        study: The study.
        folder: Folder with the study's results.
        name: File name of the page without the suffix ".md".
        tables: Tables by heading, which replace the accuracy table at the top of the page.
    """
    results = add_accuracy_differences(read_results_table(study, folder), study.reference)
    tables = dict(tables or {})
    if not tables and len(study.factors.keys() - {"data"}) > 1:
        accuracy = group_by_model(results).accuracy.agg(format_mean_percentage)
        tables["Accuracy (%)"] = accuracy.unstack(-1, sort=False)
    tables["Comparison"] = summarize_seeds(results, HEADINGS)
    if results.stability.any():
        tables["Unchanged predictions"] = make_stability_table(results)
    return write_results_page(Path(folder) / f"{name}.md", study, results, tables, NOTES)


def write_results_page(
    path: Path, study: Study, results: pd.DataFrame, tables: Mapping[str, pd.DataFrame], notes: str
) -> str:
    """Write a Markdown page with result tables and the training conditions, and return its text.

    Args:
        path: Markdown file to write.
        study: The study.
        results: Table of `read_results_table`, with one row for each model.
        tables: Tables by heading.
        notes: Text that explains the tables.
    """
    parts = [f"# {study.name}", study.description.strip()]
    for heading, table in tables.items():
        parts += [f"## {heading}", format_markdown_table(table)]
    parts += ["## How to read the tables", notes]
    parts += ["## Training", format_markdown_table(make_training_table(study, results))]
    text = "\n\n".join(parts)
    write_bytes(path, f"{text}\n".encode())
    return f"{text}\n\nwritten: {path}"


def make_training_table(study: Study, results: pd.DataFrame) -> pd.DataFrame:
    """Return a table of the training conditions, such as hardware, software versions and dates."""
    conditions = {
        "trained models": f"{results.accuracy.count()} of {len(study.models())}",
        "diverged models": results.failed.count(),
    }
    for name, heading in CONDITIONS.items():
        if name in results:
            conditions[heading] = "; ".join(sorted(results[name].astype(str).unique()))
    return pd.Series(conditions, name="value").rename_axis("condition").to_frame()


def format_markdown_table(table: pd.DataFrame) -> str:
    """Format a table as Markdown, with its index as the first columns."""
    table = table.reset_index()
    lines = [table.columns, ["---"] * table.shape[1], *table.astype(object).fillna("–").to_numpy()]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
