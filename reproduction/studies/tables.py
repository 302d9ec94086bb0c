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

from reproduction.study import Study, read_study
from reproduction.study.report.results import (
    StudyGroup,
    StudyMatrix,
    StudyResults,
    compare_with,
    read_study_results,
)
from reproduction.study.report.tables import NOTHING, with_interval
from teka.audit.statistics.estimate import mean_over_seeds
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


@cache
def plan(name: str) -> Study:
    """A study as its file has it."""
    return read_study(ROOT / "reproduction" / "studies" / f"{name}.yaml")


@cache
def results(name: str) -> StudyResults:
    """The cells of a study that are there."""
    return read_study_results(ROOT / "reproduction" / "studies" / name)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(line)} |".replace("|  |", "| |") for line in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]) + "\n"


def accuracy(group: StudyGroup | None) -> str:
    """Mean and interval over seeds."""
    found = group.estimate("accuracy") if group else None
    return with_interval(found) if found else NOTHING


def kernel_group(data: str, kernel: str, position: str) -> StudyGroup | None:
    """A group of the study of kernels."""
    return results("kernels").group({"data": data, "kernel": kernel, "position": position})


def accuracies_on(data: str) -> str:
    """Every kernel with every position."""
    levels = plan("kernels").factors
    rows = [
        [
            kernel,
            *(accuracy(kernel_group(data, kernel, position)) for position in levels["position"]),
        ]
        for kernel in levels["kernel"]
    ]
    return table(["kernel", *levels["position"]], rows)


def differences_with_rotary() -> str:
    """Every kernel with rotary less softmax with it, after as many steps and in as much time."""
    rows = []
    for kernel in plan("kernels").factors["kernel"]:
        if kernel == SOFTMAX:
            continue
        row = [kernel]
        for data in SMALL:
            group, reference = (
                kernel_group(data, kernel, "rotary"),
                kernel_group(data, SOFTMAX, "rotary"),
            )
            found = compare_with(group, reference) if group and reference else None
            time = found.equal_time if found else None
            early = "*" if found and found.early else ""
            row.append(with_interval(found.equal_steps, signed=True) if found else NOTHING)
            row.append(with_interval(time, signed=True) + early if time else NOTHING)
        rows.append(row)
    return table(
        ["kernel", *(head for data in SMALL for head in (f"{DATA[data]}: steps", "time"))], rows
    )


def paired(
    groups: Iterable[StudyGroup | None], references: Iterable[StudyGroup | None]
) -> dict[int, float]:
    """The difference in accuracy of every seed that both have."""
    ours, theirs = (
        {result.seed: result.accuracy for group in given if group for result in group.results}
        for given in (groups, references)
    )
    return {seed: accuracy - theirs[seed] for seed, accuracy in ours.items() if seed in theirs}


def difference(data: str, one: tuple[str, str], other: tuple[str, str]) -> dict[int, float]:
    """A kernel with a position less another such pair, for every seed that both have."""
    return paired([kernel_group(data, *one)], [kernel_group(data, *other)])


def medians(differences: Iterable[Mapping[int, float]]) -> list[float]:
    """The median of several differences for every seed."""
    by_seed: dict[int, list[float]] = {}
    for found in differences:
        for seed, one in found.items():
            by_seed.setdefault(seed, []).append(one)
    return [median(found) for found in by_seed.values()]


def differences_with_all_positions() -> str:
    """Every kernel less softmax with the same position: the median of the positions of a seed."""
    levels = plan("kernels").factors
    positions = [position for position in levels["position"] if position != "rotation joint"]
    rows = []
    for kernel in levels["kernel"]:
        if kernel == SOFTMAX:
            continue
        row = [kernel]
        for data in SMALL:
            row.append(
                gain(medians(difference(data, (kernel, one), (SOFTMAX, one)) for one in positions))
            )
        rows.append(row)
    return table(["kernel", *(DATA[data] for data in SMALL)], rows)


def gains_of_positions() -> str:
    """Every position less none, for every kernel and in the median of all kernels of a seed."""
    levels = plan("kernels").factors
    positions = [position for position in levels["position"] if position != "none"]
    rows, columns = [], {position: [] for position in positions}
    for kernel in levels["kernel"]:
        for data in SMALL:
            row = [kernel, DATA[data]]
            for position in positions:
                differences = [*difference(data, (kernel, position), (kernel, "none")).values()]
                columns[position] += [fmean(differences)] if differences else []
                row.append(gain(differences))
            rows.append(row)
    for data in SMALL:
        row = ["median", DATA[data]]
        for position in positions:
            row.append(
                gain(
                    medians(
                        difference(data, (one, position), (one, "none")) for one in levels["kernel"]
                    )
                )
            )
        rows.append(row)
    above = (f"{sum(one > 0 for one in column)} of {len(column)}" for column in columns.values())
    rows.append(["rows above 0", "", *above])
    return table(["kernel", "data", *positions], rows)


def gain(differences: Sequence[float]) -> str:
    """The mean of differences over seeds and its interval."""
    return with_interval(mean_over_seeds(differences), signed=True) if differences else NOTHING


def beyond_noise() -> str:
    """How many differences exceed their interval, and how many would by chance alone."""
    levels, rows = plan("kernels").factors, []
    questions: dict[str, Callable[[str, str], tuple[str, str]]] = {
        "kernel less softmax": lambda _, position: (SOFTMAX, position),
        "position less none": lambda kernel, _: (kernel, "none"),
    }
    for question, reference in questions.items():
        for data in SMALL:
            found = []
            for pair in product(levels["kernel"], levels["position"]):
                other = reference(*pair)
                differences = [*difference(data, pair, other).values()]
                found += [mean_over_seeds(differences)] if other != pair and differences else []
            beyond = [
                one.value > 0
                for one in found
                if one.half_width is not None and abs(one.value) > one.half_width
            ]
            above = sum(beyond)
            rows.append([question, DATA[data], *map(str, (len(found), above, len(beyond) - above))])
            rows[-1].append(f"{len(found) / 40:.1f}")
    return table(["difference", "data", "compared", "above", "below", "by chance, each"], rows)


def variants(name: str) -> str:
    """Every variant of a study on its data, the best first."""
    matrix, data = StudyMatrix(results(name)), list(plan(name).factors["data"])
    rows = [[row, *(accuracy(matrix.at(one, row, "")) for one in data)] for row in matrix.rows]
    return table(["variant", *(DATA[one] for one in data)], rows)


def variants_against(name: str, reference: str) -> str:
    """Every variant of a study on its data, and seed by seed less one of them."""
    study, levels, rows = results(name), plan(name).factors, []
    for variant in levels["variant"]:
        row = [variant]
        for one in levels["data"]:
            group, other = (
                study.group({"data": one, "variant": level}) for level in (variant, reference)
            )
            differences = [*paired([group], [other]).values()] if variant != reference else []
            row += [
                accuracy(group),
                with_interval(mean_over_seeds(differences), signed=True) if differences else "",
            ]
        rows.append(row)
    head = [column for one in levels["data"] for column in (DATA[one], "difference")]
    return table(["variant", *head], rows)


def rotation_start_of_kernels() -> str:
    """Rotation on MNIST with larger weights at first, less that with those of the default, for every kernel."""
    squared, others = (results(name) for name in ("rotation_start", "rotation_start_kernels"))
    scales, rows = ("σ = 1", "σ = 8"), []
    for kernel in (SQUARED_RELU, *plan("rotation_start_kernels").factors["kernel"]):
        study, labels = (squared, {}) if kernel == SQUARED_RELU else (others, {"kernel": kernel})
        default, larger = (
            study.group({"data": "mnist", **labels, "variant": scale}) for scale in scales
        )
        rows.append(
            [
                kernel,
                accuracy(default),
                accuracy(larger),
                gain([*paired([larger], [default]).values()]),
            ]
        )
    return table(["kernel with rotation", *scales, "difference"], rows)


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
    return with_interval(mean_over_seeds(differences), signed=True) if differences else NOTHING


def mean(found: Mapping[int, float]) -> str:
    """Mean and interval of a candidate over seeds."""
    return with_interval(mean_over_seeds([*found.values()])) if found else NOTHING


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
    """What shifts change, over all cells of the study of kernels."""
    joint, exact = [], []
    for result in results("kernels").results:
        (joint if result.labels["position"] == "rotation joint" else exact).append(result)
    rows = []
    for name, cells in (("every other", exact), ("rotation joint", joint)):
        errors = [(cell.equivariance_error or 0.0, cell.noise_floor or 0.0) for cell in cells]
        falls = [
            (cell.unshifted_accuracy or 0.0) - (cell.minimum_accuracy or 0.0) for cell in cells
        ]
        row = [
            name,
            str(len(cells)),
            percent(max(falls)),
            f"{max(error for error, _ in errors):.1e}",
        ]
        rows.append(
            [
                *row,
                f"{max(floor for _, floor in errors):.1e}",
                f"{max(e / f for e, f in errors):,.2g}",
            ]
        )
    return table(
        [
            "position",
            "models",
            "lost at the worst shift",
            "change of the logits",
            "noise floor",
            "ratio",
        ],
        rows,
    )


def positions_with(kernel: str) -> str:
    """Every position that others use, and less rotary, seed by seed; the best in the mean of the data first."""
    study, levels, rows = results("positions"), plan("positions").factors, {}
    for position in levels["position"]:
        row, means = [position], []
        for data in levels["data"]:
            labels = {"data": data, "kernel": kernel}
            group, rotary = (
                study.group({**labels, "position": one}) for one in (position, "rotary")
            )
            differences = [*paired([group], [rotary]).values()] if position != "rotary" else []
            row += [accuracy(group), gain(differences) if differences else ""]
            found = group.estimate("accuracy") if group else None
            means.append(found.value if found else 0.0)
        rows[fmean(means)] = row
    head = [column for data in levels["data"] for column in (DATA[data], "less rotary")]
    return table(
        [f"position, with {kernel}", *head], [rows[value] for value in sorted(rows, reverse=True)]
    )


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
