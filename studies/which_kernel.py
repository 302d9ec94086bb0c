"""Write the tables of docs/which_kernel.md from the cells of the studies.

    python studies/which_kernel.py

A table stands under a line `<!-- table: its name -->` of the page; a mark without one gets it. A test holds the page to
what this writes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from statistics import fmean, median

from teka.files import write_bytes
from teka.report.notation import percent
from teka.report.study_comparison import compare_with
from teka.report.study_estimate import estimate
from teka.report.study_group import StudyGroup
from teka.report.study_matrix import StudyMatrix
from teka.report.study_notation import NOTHING, signed_with_interval, with_interval
from teka.report.study_results import StudyResults, read_study_results
from teka.study import Study, read_study

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "which_kernel.md"
MARK = "<!-- table: {} -->"
DATA = {"digits": "digits", "mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
SMALL = ("digits", "mnist", "fashion-mnist")
SOFTMAX, SQUARED_RELU = "softmax", "squared relu"


@cache
def plan(name: str) -> Study:
    """A study as its file has it."""
    return read_study(ROOT / "studies" / f"{name}.yaml")


@cache
def results(name: str) -> StudyResults:
    """The cells of a study that are there."""
    return read_study_results(ROOT / "studies" / name)


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
        [kernel, *(accuracy(kernel_group(data, kernel, position)) for position in levels["position"])]
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
            group, reference = kernel_group(data, kernel, "rotary"), kernel_group(data, SOFTMAX, "rotary")
            found = compare_with(group, reference) if group and reference else None
            time = found.equal_time if found else None
            early = "*" if found and found.early else ""
            row.append(signed_with_interval(found.equal_steps) if found else NOTHING)
            row.append(signed_with_interval(time) + early if time else NOTHING)
        rows.append(row)
    return table(["kernel", *(head for data in SMALL for head in (f"{DATA[data]}: steps", "time"))], rows)


def paired(groups: Iterable[StudyGroup | None], references: Iterable[StudyGroup | None]) -> dict[int, float]:
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
            row.append(gain(medians(difference(data, (kernel, one), (SOFTMAX, one)) for one in positions)))
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
            row.append(gain(medians(difference(data, (one, position), (one, "none")) for one in levels["kernel"])))
        rows.append(row)
    above = (f"{sum(one > 0 for one in column)} of {len(column)}" for column in columns.values())
    rows.append(["rows above 0", "", *above])
    return table(["kernel", "data", *positions], rows)


def gain(differences: Sequence[float]) -> str:
    """The mean of differences over seeds and its interval."""
    return signed_with_interval(estimate(differences)) if differences else NOTHING


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
                found += [estimate(differences)] if other != pair and differences else []
            beyond = [one.mean > 0 for one in found if one.half_width is not None and abs(one.mean) > one.half_width]
            above = sum(beyond)
            rows.append([question, DATA[data], *map(str, (len(found), above, len(beyond) - above))])
            rows[-1].append(f"{len(found) / 40:.1f}")
    return table(["difference", "data", "compared", "above", "below", "by chance, each"], rows)


def six_seeds() -> str:
    """Squared relu against softmax, both with rotary, over two studies."""
    rows = [[SOFTMAX], [SQUARED_RELU], ["difference"]]
    for data in SMALL:
        groups = [group for kernel in (SOFTMAX, SQUARED_RELU) if (group := kernel_group(data, kernel, "rotary"))]
        later = [results("softmax_start").group({"data": data, "variant": name}) for name in (SOFTMAX, SQUARED_RELU)]
        softmax, squared = ([first, second] for first, second in zip(groups, later, strict=True) if second)
        for row, both in zip(rows, (softmax, squared), strict=False):
            row.append(with_interval(estimate([result.accuracy for group in both for result in group.results])))
        rows[2].append(signed_with_interval(estimate([*paired(squared, softmax).values()])))
    return table(["with rotary", *(DATA[data] for data in SMALL)], rows)


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
            group, other = (study.group({"data": one, "variant": level}) for level in (variant, reference))
            differences = [*paired([group], [other]).values()] if variant != reference else []
            row += [accuracy(group), signed_with_interval(estimate(differences)) if differences else ""]
        rows.append(row)
    head = [column for one in levels["data"] for column in (DATA[one], "difference")]
    return table(["variant", *head], rows)


def rotation_start_of_kernels() -> str:
    """Rotation on MNIST with larger weights at first, less that with those of the default, for every kernel."""
    squared, others = (results(name) for name in ("rotation_start", "rotation_start_kernels"))
    scales, rows = ("σ = 1", "σ = 8"), []
    for kernel in (SQUARED_RELU, *plan("rotation_start_kernels").factors["kernel"]):
        study, labels = (squared, {}) if kernel == SQUARED_RELU else (others, {"kernel": kernel})
        default, larger = (study.group({"data": "mnist", **labels, "variant": scale}) for scale in scales)
        rows.append([kernel, accuracy(default), accuracy(larger), gain([*paired([larger], [default]).values()])])
    return table(["kernel with rotation", *scales, "difference"], rows)


def exactness() -> str:
    """What shifts change, over all cells of the study of kernels."""
    joint, exact = [], []
    for result in results("kernels").results:
        (joint if result.labels["position"] == "rotation joint" else exact).append(result)
    rows = []
    for name, cells in (("every other", exact), ("rotation joint", joint)):
        errors = [(cell.equivariance_error or 0.0, cell.noise_floor or 0.0) for cell in cells]
        falls = [(cell.unshifted_accuracy or 0.0) - (cell.minimum_accuracy or 0.0) for cell in cells]
        row = [name, str(len(cells)), percent(max(falls)), f"{max(error for error, _ in errors):.1e}"]
        rows.append([*row, f"{max(floor for _, floor in errors):.1e}", f"{max(e / f for e, f in errors):,.2g}"])
    return table(
        ["position", "models", "lost at the worst shift", "change of the logits", "noise floor", "ratio"], rows
    )


TABLES: Mapping[str, Callable[[], str]] = {
    **{f"accuracy on {data}": partial(accuracies_on, data) for data in SMALL},
    "differences with rotary": differences_with_rotary,
    "six seeds": six_seeds,
    "differences with all positions": differences_with_all_positions,
    "beyond noise": beyond_noise,
    "gains of positions": gains_of_positions,
    "exactness": exactness,
    "full size": partial(variants_against, "large", "softmax × rotary"),
    "softmax start": partial(variants_against, "softmax_start", SOFTMAX),
    "improvements": partial(variants, "improvements"),
    "rotation start": partial(variants_against, "rotation_start", "σ = 1"),
    "rotation start of kernels": rotation_start_of_kernels,
}


def with_tables(page: str) -> str:
    """The page with every table as the cells have it.

    Args:
        page: The page's text, with the mark of every table once.

    Raises:
        ValueError: A mark is missing or there twice.
    """
    for name, write in TABLES.items():
        mark = MARK.format(name)
        if page.count(mark) != 1:
            raise ValueError(f"{PAGE.name} has the line {mark!r} {page.count(mark)} times, expected once")
        before, after = page.split(mark)
        rest = after.lstrip("\n")
        while rest.startswith("|"):  # the lines of the old table, where there is one
            _, _, rest = rest.partition("\n")
        rest = rest.lstrip("\n")
        page = f"{before}{mark}\n\n{write()}\n{rest}"
    return page


if __name__ == "__main__":
    write_bytes(PAGE, with_tables(PAGE.read_text(encoding="utf-8")).encode())
