"""The tables of a study: accuracies in rows and columns, and every group against the reference."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from reproduction.study.report.results import (
    Quantity,
    StudyGroup,
    StudyMatrix,
    StudyResults,
    compare_with,
)
from teka.audit.statistics.estimate import Estimate, mean_over_seeds
from teka.reporting.formatting import averaged, listed, percent, significant
from teka.reporting.tables import Table

NOTHING = "–"
DIFFERENCES = ("at equal\nsteps", "at equal\ntime")
SHIFTS = ("not\nshifted", "worst\nshift", "every\nshift", "equivariance\nerror", "noise\nfloor")
EARLY = "*"
NARROW = 0.002  # half of an interval, below which two decimals of a percentage say more than one


def with_interval(share: Estimate | None, *, signed: bool = False) -> str:
    """A share in % and half its interval, "95.3 ± 0.4", or a difference of shares, "−0.3 ± 0.4"; a dash for none."""
    if share is None:
        return NOTHING
    decimals = 2 if share.half_width and share.half_width < NARROW else 1
    value = percent(share.value, decimals)
    if signed:  # adding 0 makes a rounded −0 a 0
        value = f"{float(value) + 0.0:+.{decimals}f}".replace("-", "−")
    return value if share.half_width is None else f"{value} ± {percent(share.half_width, decimals)}"


def over_seeds(shares: Sequence[float], *, signed: bool = False) -> str:
    """The same of a share of every seed; the mean alone for one seed."""
    return with_interval(mean_over_seeds(shares) if shares else None, signed=signed)


def diverged(group: StudyGroup) -> str:
    """How many runs of a group diverged, of those that are there: "diverged (1 of 3)"; empty for none."""
    total = len(group.failed) + len(group.results)
    return f"diverged ({len(group.failed)} of {total})" if group.failed else ""


def accuracy_cell(group: StudyGroup | None) -> str:
    """The accuracy of a group over its seeds, and on a further line how many of them diverged; a dash for nothing."""
    if group is None:
        return NOTHING
    shares = with_interval(group.estimate("accuracy")) if group.results else ""
    return "\n".join(part for part in (shares, diverged(group)) if part)


def accuracy_tables(study: StudyResults) -> list[Table]:
    """For each data set the accuracy in rows and columns, the best first; none for a study without columns."""
    matrix = StudyMatrix(study)
    if matrix.column_factor is None:
        return []

    def rows(panel: str) -> Iterator[tuple[str, ...]]:
        for row in matrix.rows:
            yield row, *(accuracy_cell(matrix.at(panel, row, column)) for column in matrix.columns)

    words = f"accuracy in %, {matrix.row_title} × {matrix.column_factor}"
    return _tables(matrix, words, (matrix.row_title, *matrix.columns), rows)


def comparison_tables(study: StudyResults, reference: Mapping[str, str]) -> list[Table]:
    """For each data set a row for each group, the best first: its accuracy, that less the reference's, its cost."""
    matrix = StudyMatrix(study)
    heads = (
        "seeds",
        "accuracy\n%",
        *(DIFFERENCES if reference else ()),
        "MFLOPs\nan image",
        "CPU\nseconds",
    )
    words = "accuracy and cost"
    if reference:
        levels = listed([f"{factor} {level}" for factor, level in reference.items()])
        words += f", and the difference to {levels} in % points"

    def cells(group: StudyGroup) -> tuple[str, ...]:
        flops, seconds = group.estimate("forward_flops"), group.estimate("process_seconds")
        return (
            str(len(group.results)),
            with_interval(group.estimate("accuracy")),
            *(_differences(study, group, reference) if reference else ()),
            significant(flops.value / 1e6) if flops else NOTHING,
            significant(seconds.value) if seconds else NOTHING,
        )

    return _ranked_tables(matrix, words, heads, cells)


def shift_tables(study: StudyResults) -> list[Table]:
    """For each data set one row for each group, the most accurate first: how it bears shifts."""
    return _ranked_tables(StudyMatrix(study), "accuracy in % under shifts", SHIFTS, _under_shifts)


def _tables(
    matrix: StudyMatrix,
    words: str,
    heads: tuple[str, ...],
    rows: Callable[[str], Iterable[tuple[str, ...]]],
) -> list[Table]:
    """A table for each data set, with its name in the title."""
    return [
        Table(f"{panel}: {words}" if panel else words, heads, tuple(rows(panel)))
        for panel in matrix.panels
    ]


def _ranked_tables(
    matrix: StudyMatrix,
    words: str,
    heads: tuple[str, ...],
    cells: Callable[[StudyGroup], tuple[str, ...]],
) -> list[Table]:
    """Tables with a row for each group, the best first: its name, and how many of its runs diverged, then the cells."""

    def rows(panel: str) -> Iterator[tuple[str, ...]]:
        for group in matrix.ranked_groups(panel):
            yield (
                ", ".join(part for part in (matrix.name_of(group), diverged(group)) if part),
                *cells(group),
            )

    names = " × ".join(part for part in (matrix.row_title, matrix.column_factor) if part)
    return _tables(matrix, words, (names, *heads), rows)


def _differences(
    study: StudyResults, group: StudyGroup, reference: Mapping[str, str]
) -> tuple[str, str]:
    other = study.reference_of(group, reference)
    if other is group:
        return "reference", "reference"
    comparison = compare_with(group, other)
    if comparison is None:
        return NOTHING, NOTHING
    at_steps, at_time = (
        with_interval(one, signed=True) for one in (comparison.equal_steps, comparison.equal_time)
    )
    return at_steps, at_time + (EARLY if comparison.early else " ")


def _under_shifts(group: StudyGroup) -> tuple[str, ...]:
    shares: tuple[Quantity, ...] = (
        "unshifted_accuracy",
        "minimum_accuracy",
        "worst_shift_accuracy",
    )
    errors = [group.largest("equivariance_error"), group.largest("noise_floor")]
    return (
        *(with_interval(group.estimate(share)) for share in shares),
        *(NOTHING if error is None else f"{error:.1e}" for error in errors),
    )


def study_notes(study: StudyResults, reference: Mapping[str, str]) -> list[str]:
    """What the numbers mean, what is not there yet, and where they come from, a sentence or two each."""
    counts = [len(group.results) for group in study.groups if group.results]
    notes = []
    if counts:
        notes.append(
            f"Accuracy: {averaged(counts)}"
            + (", ± half of the 95 % interval." if max(counts) > 1 else ".")
        )
    if reference:
        notes.append(
            "Differences: accuracy less that of the reference, paired by seed, after as many steps and at the CPU time "
            "at which the reference ends; a run cut off there has not gone through its whole learning-rate schedule. "
            f"{EARLY}: the run ends earlier, and its last accuracy stands for it."
        )
    if (timing := study.timing) is None:
        notes.append(
            "CPU seconds: of each cell's own training steps, which other work on the machine makes longer; `python -m reproduction study "
            "--step-seconds` times a step of every model in turn."
        )
    else:
        notes.append(
            f"CPU seconds: steps times those of one step, the median of {timing.rounds} rounds in which every model "
            f"was timed in turn, on {timing.hardware}, {timing.date}."
        )
    notes.append(
        "Under shifts: accuracy on the shifted images where they are not shifted, the lowest at any shift, and the "
        "share of the images right at every shift; equivariance error and noise floor are the largest over seeds."
    )
    notes.append(how_far(study, "cells finished"))
    return [*notes, _conditions(study)] if study.results else notes


def how_far(study: StudyResults, words: str) -> str:
    """How many cells are there, how many diverged, and how many are missing, in a sentence."""
    parts = [f"{len(study.results):,} of {study.planned:,} {words}"]
    parts += [f"{len(study.failed):,} diverged"] if study.failed else []
    parts += [f"{study.missing:,} not there yet"] if study.missing else []
    return ", ".join(parts) + "."


def measured(study: StudyResults, *packages: str) -> str:
    """When the cells were measured, on what, and with which versions, in a sentence."""
    days, machines = (
        sorted({one.date[:10] for one in study.results}),
        sorted({one.hardware for one in study.results}),
    )
    versions = [
        listed(sorted({f"{name} {getattr(one, name)}" for one in study.results}))
        for name in packages
    ]
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"Measured {when} on {listed(machines)} with {' and '.join(versions)}."


def _conditions(study: StudyResults) -> str:
    results = study.results
    values = {
        "steps": {result.steps for result in results},
        "test images": {result.test_images for result in results},
        "shifted images": {result.shifted_images for result in results},
        "shifts": {len(result.shifts) for result in results},
    }
    sizes = [
        f"{listed([f'{number:,}' for number in sorted(numbers)])} {name}"
        for name, numbers in values.items()
    ]
    return f"{'; '.join(sizes)}. {measured(study, 'teka', 'torch')}"
