"""Write the tables of pages from the results of the studies.

    python -m reproduction.studies.tables

A table follows a line `<!-- table: TITLE -->` of a page.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd

from reproduction.studies import bounded_rotary, interval_coverage, linear_positions
from reproduction.study import read_study
from reproduction.study.cells import read_cells
from reproduction.study.report import add_differences, format_table, to_markdown
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
def read_grid(name: str) -> Any:
    """Return the cells of a study with a YAML file, with the differences from its reference."""
    study = read_study(STUDIES / f"{name}.yaml")
    return add_differences(read_cells(study, STUDIES / name), study.reference)


def read_tuned(module: Any, seeds: Iterable[int]) -> Any:
    """Return the cells of a script at the best learning rates, with the differences."""
    cells = read_cells(module.STUDY, module.RESULTS).droplevel("rate")
    cells = cells[cells.index.isin(seeds, level="seed")]
    return add_differences(cells, module.STUDY.reference)


def table_by_data(cells: pd.DataFrame, headings: Mapping[str, str]) -> pd.DataFrame:
    """Return means over seeds, with columns for each data set.

    Args:
        cells: Table with one row per cell.
        headings: Headings of the columns, by name.
    """
    table = format_table(cells, headings).drop(columns="seeds").unstack("data", sort=False)
    table.columns = [f"{DATA.get(data, data)}: {heading}" for heading, data in table]
    return table


def grid_table(name: str, headings: Mapping[str, str]) -> pd.DataFrame:
    """Compare the levels of a study with its reference."""
    return table_by_data(read_grid(name), headings)


def rotary_table() -> pd.DataFrame:
    """Compare kernels with softmax, both with rotary, at equal steps and at equal time."""
    cells = read_grid("kernels").xs("rotary", level="position")
    table = table_by_data(cells, {"at_equal_steps": "steps", "at_equal_time": "time"})
    return table.drop(index="softmax")


def compare_denominators(seeds: Iterable[int], headings: Mapping[str, str]) -> pd.DataFrame:
    """Compare the denominators of rotary attention on some seeds."""
    cells = read_tuned(bounded_rotary, seeds)
    table = table_by_data(cells, headings)
    return table.assign(bound=pd.Series(BOUNDS))


def denominator_table() -> pd.DataFrame:
    """Compare accuracies, outputs and gradients of the denominators of rotary attention."""
    cells = read_cells(bounded_rotary.STUDY, bounded_rotary.RESULTS).dropna(subset="accuracy")
    cells["largest_gradient"] = cells.gradient_norm.str.get("largest")
    columns = {"largest_output": "largest output", "largest_gradient": "largest gradient"}
    largest = cells.groupby("candidate")[list(columns)].max().map("{:,.3g}".format)
    table = compare_denominators(bounded_rotary.SELECTION_SEEDS, ACCURACY)
    return table.join(largest.rename(columns=columns))


def linear_table() -> pd.DataFrame:
    """Compare published linear attentions with ours."""
    cells = read_tuned(linear_positions, linear_positions.SELECTION_SEEDS)
    errors = cells.groupby("candidate").equivariance_error.max().map("{:.0e}".format)
    times = pd.DataFrame(read_json(linear_positions.TIMES)).map("{:.0f}".format)
    table = table_by_data(cells, ACCURACY | DIFFERENCE).assign(**{"change of the logits": errors})
    return table.join(times.rename(columns="ms, {} tokens".format))


def coverage_table() -> pd.DataFrame:
    """Return the coverage of intervals in percent, bold if significantly below 95 %."""
    rows = pd.read_csv(interval_coverage.RESULTS)
    rows = rows[rows.images == COVERAGE_IMAGES]
    text = (100 * rows.coverage).map("{:.0f}".format)
    rows = rows.assign(text=text.where(rows.upper >= 0.95, "**" + text + "**"))
    # Values at one shift have other names than their mean over shifts.
    names = rows.metric.replace({"agreement": "consistency", "error": "mean_error"})
    groups = rows.groupby(["kind", names, "population"], sort=False).text.first()
    cells = groups.unstack("population")[COVERAGE_POPULATIONS].agg(" / ".join, axis=1)
    return cells.unstack("kind", sort=False).rename_axis("metric")


TABLES: dict[str, dict[str, Callable[[], pd.DataFrame]]] = {
    "reproduction/studies/README.md": {
        "denominators": denominator_table,
        "denominators, evaluation": partial(
            compare_denominators, bounded_rotary.EVALUATION_SEEDS, ACCURACY | DIFFERENCE
        ),
        "kernels": rotary_table,
        "positions": partial(grid_table, "positions", DIFFERENCE),
        "full size": partial(grid_table, "large", ACCURACY | DIFFERENCE),
        "start of softmax": partial(grid_table, "softmax_start", ACCURACY | DIFFERENCE),
        "start of rotation": partial(grid_table, "rotation_start", ACCURACY | DIFFERENCE),
        "start of rotation, other kernels": partial(
            grid_table, "rotation_start_kernels", ACCURACY | DIFFERENCE
        ),
        "linear attention": linear_table,
    },
    "reproduction/studies/interval_coverage.md": {"coverage": coverage_table},
}


def with_tables(name: str, page: str) -> str:
    """Return a page with the present tables.

    Args:
        name: Path of the page in the repository.
        page: Text of the page.

    Raises:
        ValueError: The mark of a table is missing, or there twice.
    """
    for title, make_table in TABLES[name].items():
        mark = f"<!-- table: {title} -->"
        if page.count(mark) != 1:
            raise ValueError(f"{name} must have the line {mark!r} once, got {page.count(mark)}.")
        before, after = page.split(mark)
        text = re.sub(r"\A\n+(\|.*\n)*\n*", "", after)
        page = f"{before}{mark}\n\n{to_markdown(make_table())}\n\n{text}"
    return page


if __name__ == "__main__":
    for name in TABLES:
        path = ROOT / name
        write_bytes(path, with_tables(name, path.read_text(encoding="utf-8")).encode())
