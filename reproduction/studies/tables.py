"""Tables of two pages, written from the results of the studies.

    python -m reproduction.studies.tables

A page has a line `<!-- table: TITLE -->` before each table.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd

from reproduction.studies import bounded_rotary, interval_coverage, linear_positions
from reproduction.study import read_study
from reproduction.study.report import add_differences, format_markdown_table, summarize_seeds
from reproduction.study.results import read_results_table
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
# The bound of the outputs with each denominator of rotary attention.
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


@cache
def read_results(name: str) -> Any:
    """Read the results of a study, with the differences from the reference models."""
    study = read_study(STUDIES / f"{name}.yaml")
    results = read_results_table(study, STUDIES / name)
    if study.script:
        # Models that only tuned the learning rate have no test accuracy.
        results = results.dropna(subset="accuracy").droplevel("rate")
    return add_differences(results, study.reference)


def make_table_by_data_set(results: pd.DataFrame, headings: Mapping[str, str]) -> pd.DataFrame:
    """Return a table of means over seeds, with a column for each quantity on each data set.

    Args:
        results: Table of `read_results`.
        headings: Names of the columns to summarize, and their headings.
    """
    table = summarize_seeds(results, headings).drop(columns="seeds").unstack("data", sort=False)
    table.columns = [f"{DATA.get(data, data)}: {heading}" for heading, data in table]
    return table


def make_study_table(name: str, headings: Mapping[str, str]) -> pd.DataFrame:
    """Return a table of means over seeds of a study."""
    return make_table_by_data_set(read_results(name), headings)


def make_kernel_table() -> pd.DataFrame:
    """Compare content kernels with softmax at equal steps and equal time, with rotary positions."""
    results = read_results("kernels").xs("rotary", level="position")
    table = make_table_by_data_set(results, {"at_equal_steps": "steps", "at_equal_time": "time"})
    return table.drop(index="softmax")


def compare_denominators(seeds: Iterable[int], headings: Mapping[str, str]) -> pd.DataFrame:
    """Compare models with different denominators of rotary attention, trained with some seeds."""
    results = read_results("bounded_rotary")
    table = make_table_by_data_set(results[results.index.isin(seeds, level="seed")], headings)
    return table.assign(bound=pd.Series(BOUNDS))


def make_denominator_table() -> pd.DataFrame:
    """Compare the accuracies of the denominators, and the size of their outputs and gradients."""
    results = read_results("bounded_rotary")
    results = results.assign(largest_gradient=results.gradient_norm.str.get("largest"))
    columns = {"largest_output": "largest output", "largest_gradient": "largest gradient"}
    largest = results.groupby("candidate")[list(columns)].max().map("{:,.3g}".format)
    table = compare_denominators(bounded_rotary.SELECTION_SEEDS, ACCURACY)
    return table.join(largest.rename(columns=columns))


def make_linear_attention_table() -> pd.DataFrame:
    """Compare linear attentions of other papers with teka's: accuracy, shift error and time."""
    results = read_results("linear_positions")
    errors = results.groupby("candidate").equivariance_error.max().map("{:.0e}".format)
    times = pd.DataFrame(read_json(linear_positions.TIMES)).map("{:.0f}".format)
    table = make_table_by_data_set(results, ACCURACY | DIFFERENCE).assign(
        **{"change of the logits": errors}
    )
    return table.join(times.rename(columns="ms, {} tokens".format))


def make_coverage_table() -> pd.DataFrame:
    """Return the percentage of intervals with the true value, bold if significantly below 95."""
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
            compare_denominators, bounded_rotary.EVALUATION_SEEDS, ACCURACY | DIFFERENCE
        ),
        "kernels": make_kernel_table,
        "positions": partial(make_study_table, "positions", DIFFERENCE),
        "full size": partial(make_study_table, "large", ACCURACY | DIFFERENCE),
        "start of softmax": partial(make_study_table, "softmax_start", ACCURACY | DIFFERENCE),
        "start of rotation": partial(make_study_table, "rotation_start", ACCURACY | DIFFERENCE),
        "start of rotation, other kernels": partial(
            make_study_table, "rotation_start_kernels", ACCURACY | DIFFERENCE
        ),
        "linear attention": make_linear_attention_table,
    },
    "reproduction/studies/interval_coverage.md": {"coverage": make_coverage_table},
}


def update_tables(name: str, page: str) -> str:
    """Return the text of a page after all its tables are made again from the results.

    Args:
        name: Path of the page in the repository.
        page: Text of the page.

    Raises:
        ValueError: The line before a table is missing, or occurs twice.
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
