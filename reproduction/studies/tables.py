"""Write the tables of pages of the docs from what the studies kept.

    python reproduction/studies/tables.py

A table stands under a line `<!-- table: its name -->` of a page; a mark without one gets it. A test holds the pages to
what this writes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

import bounded_rotary
import interval_coverage
import linear_positions
import pandas as pd

from reproduction.study import Study, read_cells, read_study
from reproduction.study.report import add_differences, format_mean, half_width
from teka.files import write_bytes
from teka.reporting.formatting import percent

ROOT = Path(__file__).parents[2]
MARK = "<!-- table: {} -->"
DATA = {
    "digits": "digits",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
}
SMALL = ("digits", "mnist", "fashion-mnist")
SOFTMAX, SQUARED_RELU = "softmax", "squared relu"
NOTHING = "–"


@cache
def plan(name: str) -> Study:
    """A study as its file has it."""
    return read_study(ROOT / "reproduction" / "studies" / f"{name}.yaml")


@cache
def results(name: str) -> pd.DataFrame:
    """Return the finished cells of a study."""
    return read_cells(plan(name), ROOT / "reproduction" / "studies" / name)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(line)} |".replace("|  |", "| |") for line in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]) + "\n"


def signed(differences: Iterable[float]) -> str:
    """Return the mean of differences and half of its interval, with the sign."""
    return format_mean(differences, signed=True)


def accuracies(name: str, factor: str) -> pd.DataFrame:
    """Return the accuracies of a study with one column for each level of a factor."""
    return results(name).accuracy.unstack(factor)


def differences(name: str, factor: str, reference: str) -> pd.DataFrame:
    """Return accuracies minus those of a level of a factor, paired by seed."""
    wide = accuracies(name, factor)
    return wide.sub(wide[reference], axis=0).drop(columns=reference)


def accuracies_on(data: str) -> str:
    """Return the accuracy of every kernel with every position."""
    levels = plan("kernels").factors
    wide = accuracies("kernels", "position").xs(data, level="data")
    rows = [
        [kernel, *(format_mean(wide.loc[kernel, position]) for position in levels["position"])]
        for kernel in levels["kernel"]
    ]
    return table(["kernel", *levels["position"]], rows)


def differences_with_rotary() -> str:
    """Return kernels minus softmax, both with rotary, at equal steps and equal time.

    * marks kernels with a run that ends before that of softmax.
    """
    cells = add_differences(results("kernels"), {"kernel": SOFTMAX}).xs("rotary", level="position")
    seconds = cells.process_seconds.unstack("kernel")
    is_early = seconds.lt(seconds[SOFTMAX], axis=0).groupby(level="data").any()
    rows = []
    for kernel in plan("kernels").factors["kernel"]:
        if kernel == SOFTMAX:
            continue
        row = [kernel]
        for data in SMALL:
            group = cells.xs((data, kernel), level=("data", "kernel"))
            early = "*" if is_early.loc[data, kernel] else ""
            row += [signed(group.at_equal_steps), signed(group.at_equal_time) + early]
        rows.append(row)
    head = [column for data in SMALL for column in (f"{DATA[data]}: steps", "time")]
    return table(["kernel", *head], rows)


def differences_with_all_positions() -> str:
    """Return kernels minus softmax: for each seed, the median over positions."""
    wide = differences("kernels", "kernel", SOFTMAX).drop("rotation joint", level="position")
    medians = wide.groupby(level=["data", "seed"]).median()
    rows = [
        [kernel, *(signed(medians.loc[data, kernel]) for data in SMALL)]
        for kernel in plan("kernels").factors["kernel"]
        if kernel != SOFTMAX
    ]
    return table(["kernel", *(DATA[data] for data in SMALL)], rows)


def gains_of_positions() -> str:
    """Return positions minus none, for every kernel, and the median over kernels of each seed."""
    wide = differences("kernels", "position", "none")
    medians = wide.groupby(level=["data", "seed"]).median()
    levels = plan("kernels").factors
    positions = [position for position in levels["position"] if position != "none"]
    rows = []
    for kernel, data in product(levels["kernel"], SMALL):
        group = wide.xs((data, kernel), level=("data", "kernel"))
        rows.append([kernel, DATA[data], *(signed(group[position]) for position in positions)])
    for data in SMALL:
        rows.append(["median", DATA[data], *(signed(medians.loc[data, one]) for one in positions)])
    means = wide.groupby(level=["data", "kernel"]).mean()
    above = (f"{(means[one] > 0).sum()} of {means[one].count()}" for one in positions)
    rows.append(["rows above 0", "", *above])
    return table(["kernel", "data", *positions], rows)


def beyond_noise() -> str:
    """Return how many differences exceed their interval, and how many would by chance alone."""
    rows = []
    for question, factor, other, reference in (
        ("kernel less softmax", "kernel", "position", SOFTMAX),
        ("position less none", "position", "kernel", "none"),
    ):
        wide = differences("kernels", factor, reference)
        for data in SMALL:
            groups = wide.xs(data, level="data").stack().dropna().groupby(level=[other, factor])
            means = groups.mean()
            is_beyond = means.abs() > half_width(groups)
            above = (is_beyond & (means > 0)).sum()
            counts = (len(means), above, is_beyond.sum() - above)
            rows.append([question, DATA[data], *map(str, counts), f"{len(means) / 40:.1f}"])
    return table(["difference", "data", "compared", "above", "below", "by chance, each"], rows)


def variants(name: str) -> str:
    """Return the accuracy of every variant of a study, the best first."""
    wide = accuracies(name, "data")
    means = wide.groupby(level="variant").mean()
    leads = means.sub(means.mean()).mean(axis=1).sort_values(ascending=False)
    data = list(plan(name).factors["data"])
    rows = [
        [variant, *(format_mean(wide.loc[variant, one]) for one in data)] for variant in leads.index
    ]
    return table(["variant", *(DATA[one] for one in data)], rows)


def variants_against(name: str, reference: str) -> str:
    """Return the accuracy of every variant of a study, and its difference to one of them."""
    wide, less = accuracies(name, "variant"), differences(name, "variant", reference)
    levels, rows = plan(name).factors, []
    for variant in levels["variant"]:
        row = [variant]
        for data in levels["data"]:
            values = wide.loc[data, variant]
            row.append(format_mean(values))
            is_compared = variant != reference and values.notna().any()
            row.append(signed(less.loc[data, variant]) if is_compared else "")
        rows.append(row)
    head = [column for one in levels["data"] for column in (DATA[one], "difference")]
    return table(["variant", *head], rows)


def rotation_start_of_kernels() -> str:
    """Return rotation on MNIST with initial weights of standard deviation 8 minus 1."""
    squared = accuracies("rotation_start", "variant").loc["mnist"]
    others = accuracies("rotation_start_kernels", "variant").loc["mnist"]
    rows = []
    for kernel in (SQUARED_RELU, *plan("rotation_start_kernels").factors["kernel"]):
        group = squared if kernel == SQUARED_RELU else others.loc[kernel]
        default, larger = group["σ = 1"], group["σ = 8"]
        row = [kernel, format_mean(default), format_mean(larger), signed(larger - default)]
        rows.append(row)
    return table(["kernel with rotation", "σ = 1", "σ = 8", "difference"], rows)


@cache
def bounded() -> Mapping[bounded_rotary.Cell, dict]:
    """The cells of the study of rotary's denominators, without those that tuned a rate."""
    return {cell: result for cell, result in bounded_rotary.read().items() if "accuracy" in result}


def accuracies_of(data: str, candidate: str, seeds: Sequence[int]) -> dict[int, float]:
    """Accuracy of a candidate for those of the seeds that are there."""
    cells = bounded().items()
    pair = (data, candidate)
    return {
        cell.seed: one["accuracy"]
        for cell, one in cells
        if (cell.data, cell.candidate) == pair and cell.seed in seeds
    }


def less(ours: Mapping[int, float], theirs: Mapping[int, float]) -> str:
    """One candidate less another, for every seed that both have."""
    differences = [accuracy - theirs[seed] for seed, accuracy in ours.items() if seed in theirs]
    return signed(differences)


def mean(found: Mapping[int, float]) -> str:
    """Mean and interval of a candidate over seeds."""
    return format_mean(found.values())


def bounded_accuracy() -> str:
    """Every denominator on the selection seeds, and less the one of the highest mean, seed by seed."""
    names, rows = (
        bounded_rotary.CANDIDATES,
        [[name, str(one["bound"])] for name, one in bounded_rotary.CANDIDATES.items()],
    )
    for data in bounded_rotary.DATA:
        found = {name: accuracies_of(data, name, bounded_rotary.SELECTION_SEEDS) for name in names}
        best = max(found, key=lambda name: fmean(found[name].values()) if found[name] else 0.0)
        for row in rows:
            row += [
                mean(found[row[0]]),
                "best" if row[0] == best else less(found[row[0]], found[best]),
            ]
    head = [column for data in bounded_rotary.DATA for column in (data, "less the best")]
    return table(["denominator", "bound", *head], rows)


def bounded_evaluation() -> str:
    """The default less the old one and less softmax, on seeds that chose nothing."""
    default, *others = "mixed, λ = 0.3", "features (before)", SOFTMAX
    rows = [[default], *([name] for name in others)]
    for data in bounded_rotary.DATA:
        found = {
            row[0]: accuracies_of(data, row[0], bounded_rotary.EVALUATION_SEEDS) for row in rows
        }
        for row in rows:
            row += [
                mean(found[row[0]]),
                "" if row[0] == default else less(found[default], found[row[0]]),
            ]
    head = [column for data in bounded_rotary.DATA for column in (data, "default less this")]
    return table(["denominator", *head], rows)


def bounded_sizes() -> str:
    """How large outputs, gains and gradients become with each denominator, and what half precision makes of it."""
    rows = []
    for candidate in bounded_rotary.CANDIDATES:
        cells = [one for cell, one in bounded().items() if cell.candidate == candidate]
        if not cells:
            continue
        half = {
            name: [cell["half"][name] for cell in cells]
            for name in ("test float16", "inverted float16")
        }
        rows.append(
            [
                candidate,
                f"{max(cell['largest_output'] for cell in cells):,.3g}",
                f"{max(cell['gain'][view][0] for cell in cells for view in cell['gain']):,.3g}",
                percent(fmean(cell["gain"]["inverted"][1] for cell in cells)),
                f"{median(cell['gradient_norm']['median'] for cell in cells):.2g}",
                f"{max(cell['gradient_norm']['largest'] for cell in cells):,.3g}",
                *(percent(min(one["finite"] for one in found)) for found in half.values()),
                *(percent(min(one["agree"] for one in found)) for found in half.values()),
            ]
        )
    head = [
        "denominator",
        "largest output / value",
        "largest gain",
        "rows above 1",
        "gradient's norm, median",
        "largest",
    ]
    return table([*head, "finite in fp16", "inverted", "same answer in fp16", "inverted"], rows)


def exactness() -> str:
    """Return what shifts change, over all cells of the study of kernels."""
    cells = results("kernels")
    is_joint = cells.index.get_level_values("position") == "rotation joint"
    rows = []
    for name, group in (("every other", cells[~is_joint]), ("rotation joint", cells[is_joint])):
        errors = group.equivariance_error
        row = [
            name,
            str(len(group)),
            percent((group.unshifted_accuracy - group.minimum_accuracy).max()),
            f"{errors.max():.1e}",
            f"{group.noise_floor.max():.1e}",
            f"{(errors / group.noise_floor).max():,.2g}",
        ]
        rows.append(row)
    head = ["position", "models", "lost at the worst shift", "change of the logits", "noise floor"]
    return table([*head, "ratio"], rows)


def positions_with(kernel: str) -> str:
    """Return every position and its difference to rotary, the best in the mean of the data first."""
    wide = accuracies("positions", "position").xs(kernel, level="kernel")
    less = differences("positions", "position", "rotary").xs(kernel, level="kernel")
    data = list(plan("positions").factors["data"])
    order = wide.groupby(level="data").mean().mean().sort_values(ascending=False)
    rows = []
    for position in order.index:
        row = [position]
        for one in data:
            row.append(format_mean(wide.loc[one, position]))
            row.append(signed(less.loc[one, position]) if position != "rotary" else "")
        rows.append(row)
    head = [column for one in data for column in (DATA[one], "less rotary")]
    return table([f"position, with {kernel}", *head], rows)


def linear_position_rows() -> str:
    """Relative positions in linear attention as others have them, beside ours."""
    content, rows = linear_positions.read(), []
    cells = [one for one in content["cells"] if one["seed"] in linear_positions.SEEDS]
    ours = next(iter(linear_positions.ROWS))

    def found(data: str, row: str) -> dict[int, float]:
        return {
            one["seed"]: one["accuracy"]
            for one in cells
            if (one["data"], one["row"]) == (data, row)
        }

    for row in linear_positions.ROWS:
        columns = []
        for data in linear_positions.DATA:
            columns += [
                mean(found(data, row)),
                "" if row == ours else less(found(data, row), found(data, ours)),
            ]
        error = max(one["equivariance_error"] for one in cells if one["row"] == row)
        times = [f"{one:.0f}" for one in content["times"].get(row, {}).values()]
        rows.append([row, *columns, f"{error:.0e}", *times])
    sizes = next(iter(content["times"].values()), {})
    head = [column for data in linear_positions.DATA for column in (DATA[data], "less ours")]
    return table(
        ["", *head, "change of the logits", *(f"ms, {int(size):,} tokens" for size in sizes)], rows
    )


def coverage(kinds: Mapping[str, str]) -> str:
    """How often intervals of some kinds cover, for each number, population and number of images."""
    rows = [one for one in interval_coverage.read()["rows"] if one["kind"] in kinds]
    seen = {(one["population"], one["images"]) for one in rows}
    columns = [
        pair
        for pair in product(interval_coverage.SHOWN, interval_coverage.NUMBERS_SHOWN)
        if pair in seen
    ]
    found = {(one["kind"], one["number"], one["population"], one["images"]): one for one in rows}
    lines = []
    for kind, number in dict.fromkeys((one["kind"], one["number"]) for one in rows):
        cells = [found.get((kind, number, *column)) for column in columns]
        lines.append([" ".join([f"`{number}`", kinds[kind]]).strip(), *map(covered, cells)])
    return table(["", *(f"{name}, {images}" for name, images in columns)], lines)


def covered(row: Mapping[str, Any] | None) -> str:
    """A coverage in percent, bold where its own interval lies below 95 %."""
    if row is None:
        return NOTHING
    written = f"{100 * row['coverage']:.0f}"
    return f"**{written}**" if row["upper"] < interval_coverage.CONFIDENCE else written


# The tables of each page of docs/.
TABLES: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "which_kernel.md": {
        "bounded accuracy": bounded_accuracy,
        "bounded evaluation": bounded_evaluation,
        "bounded sizes": bounded_sizes,
        "softmax start": partial(variants_against, "softmax_start", SOFTMAX),
        "differences with rotary": differences_with_rotary,
        "differences with all positions": differences_with_all_positions,
        "positions with softmax": partial(positions_with, SOFTMAX),
        "positions with squared relu": partial(positions_with, SQUARED_RELU),
        "full size": partial(variants_against, "large", "softmax × rotary"),
        "rotation start": partial(variants_against, "rotation_start", "σ = 1"),
    },
    "which_kernel_tables.md": {
        **{f"accuracy on {data}": partial(accuracies_on, data) for data in SMALL},
        "beyond noise": beyond_noise,
        "gains of positions": gains_of_positions,
        "exactness": exactness,
        "improvements": partial(variants, "improvements"),
        "rotation start of kernels": rotation_start_of_kernels,
    },
    "linear_positions.md": {"linear positions": linear_position_rows},
    "interval_coverage.md": {
        "numbers": partial(coverage, {"number": "", "stopped when precise": "stopped early"}),
        "curves": partial(
            coverage, {"curve at a shift": "", "curve, band": "band", "phase": "phase"}
        ),
        "differences": partial(coverage, {"difference": "", "p above 0.05 of equals": "p > 0.05"}),
        "seeds": partial(
            coverage,
            {
                f"{count} seeds{part}": f"{count} seeds{words}"
                for count in interval_coverage.SEEDS
                for part, words in (("", ""), (", curve, band", ", band"))
            },
        ),
    },
}


def with_tables(name: str, page: str) -> str:
    """A page with every table as the cells have it.

    Args:
        name: The page's name.
        page: Its text, with the mark of every table once.

    Raises:
        ValueError: A mark is missing or there twice.
    """
    for title, write in TABLES[name].items():
        mark = MARK.format(title)
        if page.count(mark) != 1:
            raise ValueError(
                f"{name} has the line {mark!r} {page.count(mark)} times, expected once"
            )
        before, after = page.split(mark)
        rest = after.lstrip("\n")
        while rest.startswith("|"):  # the lines of the old table, where there is one
            _, _, rest = rest.partition("\n")
        rest = rest.lstrip("\n")
        page = f"{before}{mark}\n\n{write()}\n{rest}"
    return page


if __name__ == "__main__":
    for name in TABLES:
        path = ROOT / "docs" / name
        write_bytes(path, with_tables(name, path.read_text(encoding="utf-8")).encode())
