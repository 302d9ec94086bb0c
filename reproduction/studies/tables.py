"""Write the tables of pages from the results of the studies.

    python -m reproduction.studies.tables

A table follows a line `<!-- table: TITLE -->` of a page.
"""

import re
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd

from reproduction.studies import bounded_rotary, interval_coverage, linear_positions
from reproduction.studies.small_models import read_results
from reproduction.study import read_study
from reproduction.study.cells import read_cells
from reproduction.study.report import add_differences, format_mean, to_markdown
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


@cache
def load(study: str) -> Any:
    """Return the cells of a study, or the evaluated cells of a script."""
    if study in ("bounded_rotary", "linear_positions"):
        results = read_results(STUDIES / f"{study}.jsonl.gz").dropna(subset="accuracy")
        return results.set_index(["data", "candidate", "seed"])
    return read_cells(read_study(STUDIES / f"{study}.yaml"), STUDIES / study)


def compare(accuracy: Any, factor: str, reference: str | None = None) -> pd.DataFrame:
    """Return a table of accuracies, and of the differences between each level and a reference.

    Args:
        accuracy: Accuracies, indexed by "data", the factor and "seed".
        factor: Factor whose levels are the rows.
        reference: Level that is subtracted with the same seed. By default, the best on each data
            set.
    """
    wide = accuracy.unstack(factor, sort=False)
    columns = {}
    for data, group in wide.groupby("data", sort=False):
        name = DATA.get(data, data)
        base = reference or group.mean().idxmax()
        differences = group.sub(group[base], axis=0)
        columns[name] = group.apply(format_mean)
        columns[f"{name}, difference"] = differences.apply(format_mean, signed=True)
        columns[f"{name}, difference"][base] = "" if reference else "best"
    return pd.DataFrame(columns).rename_axis(factor)


def bounded(seeds: Iterable[int], reference: str | None) -> pd.DataFrame:
    """Compare the denominators of rotary attention on some seeds."""
    accuracy = load("bounded_rotary").accuracy
    accuracy = accuracy[accuracy.index.isin(seeds, level="seed")]
    table = compare(accuracy, "candidate", reference)
    bounds = {name: bound for name, (bound, *_) in bounded_rotary.CANDIDATES.items()}
    order = [name for name in bounds if name in table.index]
    return table.assign(bound=pd.Series(bounds)).loc[order]


def with_rotary() -> pd.DataFrame:
    """Compare kernels with softmax, both with rotary, at equal steps and at equal time."""
    cells = add_differences(load("kernels"), {"kernel": "softmax"}).xs("rotary", level="position")
    groups = cells.groupby(["kernel", "data"], sort=False)
    names = {"at_equal_steps": "steps", "at_equal_time": "time"}
    table = groups[list(names)].agg(format_mean, signed=True).rename(columns=names).unstack("data")
    table.columns = [f"{DATA[data]}: {name}" for name, data in table.columns]
    return table.drop(index="softmax")


def rotation_start() -> pd.DataFrame:
    """Compare initial weights of the rotation kernel on MNIST."""
    squared = pd.concat({"squared relu": load("rotation_start").accuracy}, names=["kernel"])
    others = load("rotation_start_kernels").accuracy.reorder_levels(squared.index.names)
    accuracy = pd.concat([squared, others]).xs("mnist", level="data").unstack("variant", sort=False)
    accuracy["difference"] = accuracy["σ = 8"] - accuracy["σ = 1"]
    groups = accuracy[["σ = 1", "σ = 8", "difference"]].groupby("kernel", sort=False)
    table = groups.agg(format_mean)
    return table.assign(difference=groups.difference.agg(format_mean, signed=True))


def position_differences() -> pd.DataFrame:
    """Compare the positions of other papers with rotary, for two kernels."""
    wide = load("positions").accuracy.unstack("position", sort=False)
    differences = wide.sub(wide["rotary"], axis=0).drop(columns="rotary")
    groups = differences.groupby(["kernel", "data"], sort=False)
    table = groups.agg(format_mean, signed=True).T
    table.columns = [f"{kernel}: {DATA[data]}" for kernel, data in table]
    return table


def denominators() -> pd.DataFrame:
    """Compare accuracies, outputs and gradients of the denominators of rotary attention."""
    accuracy = bounded(bounded_rotary.SELECTION_SEEDS, None)
    accuracy = accuracy.drop(columns=accuracy.filter(like="difference"))
    columns = {"largest_output": "largest output", "gradient_norm.largest": "largest gradient"}
    largest = load("bounded_rotary").groupby("candidate")[list(columns)].max()
    return accuracy.join(largest.map("{:,.3g}".format).rename(columns=columns))


def linear_table() -> pd.DataFrame:
    """Compare published linear attentions with ours."""
    cells = load("linear_positions")
    table = compare(cells.accuracy, "candidate", next(iter(linear_positions.CANDIDATES)))
    errors = cells.groupby("candidate").equivariance_error.max().map("{:.0e}".format)
    times = pd.DataFrame(read_json(linear_positions.TIMES)).map("{:.0f}".format)
    table = table.assign(**{"change of the logits": errors})
    return table.join(times.rename(columns="ms, {} tokens".format))


def coverage() -> pd.DataFrame:
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


def variants(study: str, reference: str) -> pd.DataFrame:
    """Compare the variants of a study with one of them."""
    return compare(load(study).accuracy, "variant", reference)


TABLES: dict[str, dict[str, Callable[[], pd.DataFrame]]] = {
    "reproduction/studies/README.md": {
        "denominators": denominators,
        "denominators, evaluation": partial(
            bounded, bounded_rotary.EVALUATION_SEEDS, "mixed, λ = 0.3"
        ),
        "kernels": with_rotary,
        "positions": position_differences,
        "full size": partial(variants, "large", "softmax × rotary"),
        "start of softmax": partial(variants, "softmax_start", "softmax"),
        "start of rotation": rotation_start,
        "linear attention": linear_table,
    },
    "reproduction/studies/interval_coverage.md": {"coverage": coverage},
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
