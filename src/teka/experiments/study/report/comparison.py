"""A group of a study against the group of the reference level: at equal steps and at equal time, paired by seed."""

from collections.abc import Mapping
from typing import NamedTuple

from teka.errors import unknown_name
from teka.experiments.study.cells import CellResult
from teka.experiments.study.report.estimate import Estimate, estimate
from teka.experiments.study.report.group import StudyGroup
from teka.experiments.study.report.results import StudyResults


class AtEqualTime(NamedTuple):
    """Accuracy at the CPU time at which the reference ends.

    Args:
        accuracy: On the learning curve at that time; the last one of a run that ends earlier.
        is_early: Whether the run ends earlier.
    """

    accuracy: float
    is_early: bool


class Comparison(NamedTuple):
    """Accuracy less that of the reference, means and intervals of the differences over the seeds that both have.

    Args:
        equal_steps: After as many steps.
        equal_time: After as many CPU seconds; None where every run is too slow to have a point on its curve by then.
        early: How many runs ended before that time, so that their last accuracy stands for it.
    """

    equal_steps: Estimate
    equal_time: Estimate | None
    early: int


def accuracy_at_equal_time(result: CellResult, reference: CellResult) -> AtEqualTime | None:
    """Accuracy on the learning curve at the CPU time at which the curve of the reference ends.

    Args:
        result: The run.
        reference: The run that sets the time.

    Returns:
        None where the run is slower to its first point than the reference to its last.
    """
    end, last = reference.learning_curve[-1].process_seconds, result.learning_curve[-1]
    if last.process_seconds < end:
        return AtEqualTime(last.accuracy, is_early=True)
    accuracy = result.at("accuracy", end, along="process_seconds")
    return None if accuracy is None else AtEqualTime(accuracy, is_early=False)


def compare_with(group: StudyGroup, reference: StudyGroup) -> Comparison | None:
    """The group against the reference; None where no seed has finished in both.

    Args:
        group: The group.
        reference: The group it is compared with.
    """
    by_seed = {result.seed: result for result in reference.results}
    pairs = [(result, by_seed[result.seed]) for result in group.results if result.seed in by_seed]
    if not pairs:
        return None
    timed = [(accuracy_at_equal_time(result, other), other) for result, other in pairs]
    differences = [at.accuracy - other.learning_curve[-1].accuracy for at, other in timed if at is not None]
    return Comparison(
        equal_steps=estimate([_difference_at_equal_steps(result, other) for result, other in pairs]),
        equal_time=estimate(differences) if differences else None,
        early=sum(at.is_early for at, _ in timed if at is not None),
    )


def _difference_at_equal_steps(result: CellResult, reference: CellResult) -> float:
    step = min(one.learning_curve[-1].step for one in (result, reference))
    ours, theirs = (one.at("accuracy", step) for one in (result, reference))
    # Test images where both ran as long; the learning curves where one ran longer.
    if result.steps == reference.steps or ours is None or theirs is None:
        return result.accuracy - reference.accuracy
    return ours - theirs


def reference_group(study: StudyResults, group: StudyGroup, reference: Mapping[str, str]) -> StudyGroup | None:
    """The group with the same levels as this one but for those of the reference; None where no cell is there.

    Args:
        study: The results.
        group: The group to be compared.
        reference: The reference's level of some factors; empty for no comparison.

    Raises:
        ValueError: The reference names a factor that the study does not have.
    """
    for factor in reference:
        if factor not in study.factors:
            raise unknown_name("reference factor", factor, study.factors)
    return study.group({**group.labels, **reference}) if reference else None
