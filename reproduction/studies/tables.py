"""Script that updates the tables of studies/README.md and studies/interval_coverage.md.

    python -m reproduction.studies.tables

The tables are computed from the saved results of the studies. The pages mark the place of each
table with a line `<!-- table: TITLE -->`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd

from reproduction.studies import bounded_rotary, interval_coverage, linear_positions
from reproduction.study import read_study
from reproduction.study.results import read_results_table
from reproduction.study.summary_page import (
    add_accuracy_differences,
    format_markdown_table,
    summarize_seeds,
)
from teka.files import read_json, write_bytes

STUDIES = Path(__file__).parent
ROOT = STUDIES.parents[1]
DATA = {
    "digits": "digits",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
}
COVERAGE_POPULATIONS = ["usual", "heavy tails"]
COVERAGE_IMAGES = 100
# Upper bound of the attention outputs with each denominator of rotary attention.
BOUNDS = {
    "softmax": "1",
    "features (before)": "none",
    "features, ε = 0.1": "none",
    "mixed, λ = 0.1": "10",
    "mixed, λ = 0.3": "3.3",
    "lengths": "1",
    "non-negative": "1",
}
ACCURACY = {"accuracy": "accuracy"}
DIFFERENCE = {"at_equal_steps": "difference"}
ACCURACY_AND_DIFFERENCE = ACCURACY | DIFFERENCE


@cache
def load_results_with_accuracy_differences(name: str) -> Any:
    """Read a study's results, with each model's accuracy difference from its reference model."""
    study = read_study(STUDIES / f"{name}.yaml")
    results = read_results_table(study, STUDIES / name)
    if study.script:
        # Models that only tuned the learning rate have no test accuracy.
        results = results.dropna(subset="accuracy").droplevel("rate")
    return add_accuracy_differences(results, study.reference)


def summarize_by_data_set(results: pd.DataFrame, headings: Mapping[str, str]) -> pd.DataFrame:
    """Return a table of means over seeds, in which each data set has its own columns.

    Args:
        results: Table of `load_results_with_accuracy_differences`.
        headings: Column names to summarize, and their headings.
    """
    table = summarize_seeds(results, headings).drop(columns="seeds").unstack("data", sort=False)
    table.columns = [f"{DATA.get(data, data)}: {heading}" for heading, data in table]
    return table


def make_study_table(
    name: str, headings: Mapping[str, str] = ACCURACY_AND_DIFFERENCE
) -> pd.DataFrame:
    """Return a table of a study's results: means over seeds, with columns for each data set."""
    return summarize_by_data_set(load_results_with_accuracy_differences(name), headings)


def make_kernel_table() -> pd.DataFrame:
    """Return a table of the accuracy difference between each content kernel and softmax.

    All models use rotary positions. They are compared after the same number of training steps and
    after the same training time.
    """
    results = load_results_with_accuracy_differences("kernels").xs("rotary", level="position")
    table = summarize_by_data_set(results, {"at_equal_steps": "steps", "at_equal_time": "time"})
    return table.drop(index="softmax")


def make_denominator_accuracy_table(
    seeds: Iterable[int], headings: Mapping[str, str] = ACCURACY_AND_DIFFERENCE
) -> pd.DataFrame:
    """Return a table of the accuracy with each denominator, as means over the given seeds."""
    results = load_results_with_accuracy_differences("bounded_rotary")
    table = summarize_by_data_set(results[results.index.isin(seeds, level="seed")], headings)
    return table.assign(bound=pd.Series(BOUNDS))


def make_denominator_table() -> pd.DataFrame:
    """Return a table that compares denominators of linear attention with rotary positions.

    The columns are the accuracy on each data set, the theoretical bound of the attention outputs,
    the largest output in training and the largest gradient norm in training.
    """
    results = load_results_with_accuracy_differences("bounded_rotary")
    results = results.assign(largest_gradient=results.gradient_norm.str.get("largest"))
    columns = {"largest_output": "largest output", "largest_gradient": "largest gradient"}
    largest = results.groupby("candidate")[list(columns)].max().map("{:,.3g}".format)
    table = make_denominator_accuracy_table(bounded_rotary.SELECTION_SEEDS, ACCURACY)
    return table.join(largest.rename(columns=columns))


def make_linear_attention_table() -> pd.DataFrame:
    """Return a table that compares teka's linear attention with methods from other papers.

    Its columns are the accuracy, the change of the logits under shifts, and the time of one layer.
    """
    results = load_results_with_accuracy_differences("linear_positions")
    errors = results.groupby("candidate").equivariance_error.max().map("{:.0e}".format)
    times = pd.DataFrame(read_json(linear_positions.TIMES)).map("{:.0f}".format)
    table = summarize_by_data_set(results, ACCURACY_AND_DIFFERENCE).assign(
        **{"change of the logits": errors}
    )
    return table.join(times.rename(columns="ms, {} tokens".format))


def make_coverage_table() -> pd.DataFrame:
    """Return a table with the percentage of simulated intervals that contain the true value.

    Percentages significantly below 95 are bold.
    """
    rows = pd.read_csv(interval_coverage.RESULTS)
    rows = rows[rows.images == COVERAGE_IMAGES]
    text = (100 * rows.coverage).map("{:.0f}".format)
    rows = rows.assign(text=text.where(rows.upper >= 0.95, "**" + text + "**"))
    # Values at one shift have other names than their mean over shifts.
    names = rows.metric.replace({"agreement": "consistency", "error": "mean_error"})
    groups = rows.groupby(["kind", names, "population"], sort=False).text.first()
    results = groups.unstack("population")[COVERAGE_POPULATIONS].agg(" / ".join, axis=1)
    return results.unstack("kind", sort=False).rename_axis("metric")


TABLES: dict[str, dict[str, Callable[[], pd.DataFrame]]] = {
    "reproduction/studies/README.md": {
        "denominators": make_denominator_table,
        "denominators, evaluation": partial(
            make_denominator_accuracy_table, bounded_rotary.EVALUATION_SEEDS
        ),
        "kernels": make_kernel_table,
        "positions": partial(make_study_table, "positions", DIFFERENCE),
        "full size": partial(make_study_table, "large"),
        "start of softmax": partial(make_study_table, "softmax_start"),
        "start of rotation": partial(make_study_table, "rotation_start"),
        "start of rotation, other kernels": partial(make_study_table, "rotation_start_kernels"),
        "linear attention": make_linear_attention_table,
    },
    "reproduction/studies/interval_coverage.md": {"coverage": make_coverage_table},
}


def update_tables(name: str, page: str) -> str:
    """Replace the tables in a page by tables of the current results, and return the new page.

    Args:
        name: Path of the page in the repository.
        page: Markdown text of the page.

    Raises:
        ValueError: The comment before a table is missing or occurs twice.
    """
    for title, make_table in TABLES[name].items():
        mark = f"<!-- table: {title} -->"
        if page.count(mark) != 1:
            raise ValueError(f"{name} must have the line {mark!r} once, got {page.count(mark)}.")
        before, after = page.split(mark)
        text = re.sub(r"\A\n+(\|.*\n)*\n*", "", after)
        page = f"{before}{mark}\n\n{format_markdown_table(make_table())}\n\n{text}"
    return page


if __name__ == "__main__":
    for name in TABLES:
        path = ROOT / name
        write_bytes(path, update_tables(name, path.read_text(encoding="utf-8")).encode())
