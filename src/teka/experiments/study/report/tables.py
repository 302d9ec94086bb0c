"""The tables of a study: accuracies in rows and columns, and every group against the reference."""

import textwrap
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from teka.audit.page.notation import averaged, listed, percent, significant
from teka.audit.page.tables import WIDTH, Table
from teka.audit.statistics.estimate import Estimate
from teka.experiments.study.report.results import StudyGroup, StudyMatrix, StudyResults, compare_with, reference_group

NOTHING = "–"
DIFFERENCES = ("at equal\nsteps", "at equal\ntime")
SHIFTS = ("not\nshifted", "worst\nshift", "every\nshift", "equivariance\nerror", "noise\nfloor")
EARLY = "*"


def with_interval(share: Estimate) -> str:
    """A share in % and half the width of its interval: "95.3 ± 0.4"."""
    return percent(share.value) + _half_width(share)


def signed_with_interval(difference: Estimate) -> str:
    """A difference of shares in % points with its sign, a true minus: "−0.3 ± 0.4"."""
    return _signed(difference.value) + _half_width(difference)


def with_deviation(shares: Sequence[float]) -> str:
    """Mean and standard deviation over seeds of shares in %: "94.8 ± 0.3"; the mean alone for one seed."""
    return percent(fmean(shares)) + _deviation(shares)


def signed_with_deviation(differences: Sequence[float]) -> str:
    """The same of differences of shares, with a sign, a true minus: "−0.3 ± 0.4"."""
    return _signed(fmean(differences)) + _deviation(differences)


def _deviation(shares: Sequence[float]) -> str:
    return f" ± {percent(stdev(shares))}" if len(shares) > 1 else ""


def _signed(difference: float) -> str:
    rounded = round(100 * difference, 1) + 0.0  # Adding 0 makes a rounded −0 a 0.
    return f"{rounded:+.1f}".replace("-", "−")


def _half_width(share: Estimate) -> str:
    return "" if share.half_width is None else f" ± {percent(share.half_width)}"


def diverged(group: StudyGroup) -> str:
    """How many runs of a group diverged, of those that are there: "diverged (1 of 3)"; empty for none."""
    total = len(group.failed) + len(group.results)
    return f"diverged ({len(group.failed)} of {total})" if group.failed else ""


def accuracy_cell(group: StudyGroup | None) -> str:
    """The accuracy of a group over its seeds, and on a further line how many of them diverged; a dash for nothing."""
    if group is None:
        return NOTHING
    accuracy = group.estimate("accuracy")
    return "\n".join(part for part in (accuracy and with_interval(accuracy), diverged(group)) if part)


def accuracy_tables(study: StudyResults) -> list[Table]:
    """For each data set the accuracy in rows and columns, the best first; none for a study without columns."""
    matrix = StudyMatrix(study)
    if matrix.column_factor is None:
        return []
    return [
        Table(
            _title(panel, f"accuracy in %, {matrix.row_title} × {matrix.column_factor}"),
            (matrix.row_title, *matrix.columns),
            tuple(
                (row, *(accuracy_cell(matrix.at(panel, row, column)) for column in matrix.columns))
                for row in matrix.rows
            ),
        )
        for panel in matrix.panels
    ]


def comparison_tables(study: StudyResults, reference: Mapping[str, str]) -> list[Table]:
    """For each data set a row for each group, the best first: its accuracy, that less the reference's, its cost."""
    matrix = StudyMatrix(study)
    heads = ("seeds", "accuracy\n%", *(DIFFERENCES if reference else ()), "MFLOPs\nan image", "CPU\nseconds")
    words = "accuracy and cost"
    if reference:
        levels = listed([f"{factor} {level}" for factor, level in reference.items()])
        words += f", and the difference to {levels} in % points"
    return [
        Table(
            _title(panel, words),
            (_names(matrix), *heads),
            tuple(
                (
                    _name(matrix, group),
                    str(len(group.results)),
                    _accuracy(group),
                    *(_differences(study, group, reference) if reference else ()),
                    *_cost(group),
                )
                for group in matrix.ranked_groups(panel)
            ),
        )
        for panel in matrix.panels
    ]


def shift_tables(study: StudyResults) -> list[Table]:
    """For each data set one row for each group, the most accurate first: how it bears shifts."""
    matrix = StudyMatrix(study)
    return [
        Table(
            _title(panel, "accuracy in % under shifts"),
            (_names(matrix), *SHIFTS),
            tuple((_name(matrix, group), *_under_shifts(group)) for group in matrix.ranked_groups(panel)),
        )
        for panel in matrix.panels
    ]


def _title(panel: str, words: str) -> str:
    return ": ".join(part for part in (panel, words) if part)


def _names(matrix: StudyMatrix) -> str:
    return " × ".join(part for part in (matrix.row_title, matrix.column_factor) if part)


def _name(matrix: StudyMatrix, group: StudyGroup) -> str:
    return ", ".join(part for part in (matrix.name_of(group), diverged(group)) if part)


def _accuracy(group: StudyGroup) -> str:
    accuracy = group.estimate("accuracy")
    return with_interval(accuracy) if accuracy else NOTHING


def _differences(study: StudyResults, group: StudyGroup, reference: Mapping[str, str]) -> tuple[str, str]:
    other = reference_group(study, group, reference)
    if other is group:
        return "reference", "reference"
    comparison = compare_with(group, other) if other else None
    if comparison is None:
        return NOTHING, NOTHING
    at_time = signed_with_interval(comparison.equal_time) if comparison.equal_time else NOTHING
    return signed_with_interval(comparison.equal_steps), at_time + (EARLY if comparison.early else " ")


def _cost(group: StudyGroup) -> tuple[str, str]:
    flops, seconds = group.estimate("forward_flops"), group.estimate("process_seconds")
    return significant(flops.value / 1e6) if flops else NOTHING, significant(seconds.value) if seconds else NOTHING


def _under_shifts(group: StudyGroup) -> tuple[str, ...]:
    shares = [
        group.estimate("unshifted_accuracy"), group.estimate("minimum_accuracy"), group.estimate("worst_shift_accuracy")
    ]  # fmt: skip
    errors = [group.largest("equivariance_error"), group.largest("noise_floor")]
    return (
        *(with_interval(share) if share else NOTHING for share in shares),
        *(NOTHING if error is None else f"{error:.1e}" for error in errors),
    )


def study_notes(study: StudyResults, reference: Mapping[str, str]) -> list[str]:
    """What the numbers mean, what is not there yet, and where they come from, a sentence or two each."""
    counts = [len(group.results) for group in study.groups if group.results]
    notes = []
    if counts:
        notes.append(f"Accuracy: {averaged(counts)}" + (", ± half of the 95 % interval." if max(counts) > 1 else "."))
    if reference:
        notes.append(
            "Differences: accuracy less that of the reference, paired by seed, after as many steps and at the CPU time "
            "at which the reference ends; a run cut off there has not gone through its whole learning-rate schedule. "
            f"{EARLY}: the run ends earlier, and its last accuracy stands for it."
        )
    notes.append(_seconds(study))
    notes.append(
        "Under shifts: accuracy on the shifted images where they are not shifted, the lowest at any shift, and the "
        "share of the images right at every shift; equivariance error and noise floor are the largest over seeds."
    )
    there = f"{len(study.results):,} of {study.planned:,} cells finished"
    further = [f"{len(study.failed):,} diverged"] if study.failed else []
    further += [f"{study.missing:,} not there yet"] if study.missing else []
    notes.append(", ".join([there, *further]) + ".")
    return [*notes, _conditions(study)] if study.results else notes


def _seconds(study: StudyResults) -> str:
    timing = study.timing
    if timing is None:
        return (
            "CPU seconds: of each cell's own training steps, which other work on the machine makes longer; `teka study "
            "--step-seconds` times a step of every model in turn."
        )
    return (
        f"CPU seconds: steps times those of one step, the median of {timing.rounds} rounds in which every model was "
        f"timed in turn, on {timing.hardware}, {timing.date}."
    )


def _conditions(study: StudyResults) -> str:
    results = study.results
    shifts = {len(result.shifts) for result in results}
    values = {
        "steps": sorted({result.steps for result in results}),
        "test images": sorted({result.test_images for result in results}),
        "shifted images": sorted({result.shifted_images for result in results}),
        "shifts": sorted(shifts),
    }
    sizes = "; ".join(f"{listed([f'{number:,}' for number in numbers])} {name}" for name, numbers in values.items())
    days = sorted({result.date[:10] for result in results})
    versions = [listed(sorted({f"{name} {getattr(result, name)}" for result in results})) for name in ("teka", "torch")]
    machines = listed(sorted({result.hardware for result in results}))
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"{sizes}. Measured {when} on {machines} with {' and '.join(versions)}."


def _tables(study: StudyResults, reference: Mapping[str, str]) -> list[Table]:
    return [*accuracy_tables(study), *comparison_tables(study, reference), *shift_tables(study)]


def plain_tables(study: StudyResults, reference: Mapping[str, str]) -> str:
    """Every table and the notes as text for a terminal of 120 columns."""
    tables = [table.plain() for table in _tables(study, reference)]
    return "\n\n".join([*tables, *(textwrap.fill(note, WIDTH) for note in study_notes(study, reference))])


def markdown_tables(study: StudyResults, reference: Mapping[str, str]) -> str:
    """Every table and the notes as Markdown."""
    tables = [table.markdown() for table in _tables(study, reference)]
    return "\n\n".join([*tables, *study_notes(study, reference)]) + "\n"
