import pytest

from teka.experiments.study.report.comparison import accuracy_at_equal_time, compare_with, reference_group
from teka.experiments.study.report.estimate import estimate


def curve(*points):
    return [{"step": s, "process_seconds": t, "accuracy": a, "loss": 1.0} for s, t, a in points]


def compared(ours, reference):
    comparison = compare_with(ours, reference)
    assert comparison is not None
    return comparison


SLOW = curve((5, 10.0, 0.5), (10, 20.0, 0.9))
FAST = curve((5, 2.0, 0.4), (10, 4.0, 0.8))


@pytest.fixture
def pair(study_of, study_cell):
    """Two kernels, each with the curves given for its seeds and final accuracies equal to the curves' ends."""

    def make(ours, reference, **further):
        cells = [
            study_cell(kernel=kernel, seed=seed, learning_curve=points, accuracy=points[-1]["accuracy"], **further)
            for kernel, curves in (("taylor 2", ours), ("softmax", reference))
            for seed, points in enumerate(curves)
        ]
        study = study_of(*cells)
        return study.group({"data": "mnist", "kernel": "taylor 2", "position": "rotation"}), study.group(
            {"data": "mnist", "kernel": "softmax", "position": "rotation"}
        )

    return make


def test_a_slower_run_is_read_between_its_points(pair):
    ours, reference = pair([curve((5, 10.0, 0.3), (10, 30.0, 0.7))], [SLOW])
    assert accuracy_at_equal_time(ours.results[0], reference.results[0]) == (pytest.approx(0.5), False)


def test_a_run_that_ends_earlier_is_marked_and_keeps_its_last_accuracy(pair):
    ours, reference = pair([FAST], [SLOW])
    assert accuracy_at_equal_time(ours.results[0], reference.results[0]) == (0.8, True)
    comparison = compared(ours, reference)
    assert comparison.early == 1
    assert (comparison.equal_time and comparison.equal_time.mean) == pytest.approx(-0.1)


def test_a_run_without_a_point_by_then_has_no_accuracy(pair):
    ours, reference = pair([SLOW], [FAST])
    assert accuracy_at_equal_time(ours.results[0], reference.results[0]) is None
    assert compared(ours, reference).equal_time is None


def test_a_group_is_equal_to_itself(study_of, study_cells):
    for group in study_of(*study_cells()).groups:
        comparison = compared(group, group)
        assert comparison.equal_steps == comparison.equal_time == (0, 0, 3)
        assert comparison.early == 0


def test_differences_are_paired_by_seed(pair):
    ours = [curve((10, 20.0, accuracy)) for accuracy in (0.5, 0.6, 0.7)]
    reference = [curve((10, 20.0, accuracy)) for accuracy in (0.51, 0.62, 0.71, 0.9)]
    comparison = compared(*pair(ours, reference))
    expected = estimate([-0.01, -0.02, -0.01])
    assert comparison.equal_steps == pytest.approx(expected)
    assert comparison.equal_time == pytest.approx(expected)


def test_a_longer_run_is_cut_off_at_equal_steps(study_of, study_cell):
    long = study_cell(kernel="taylor 2", steps=20, learning_curve=curve((5, 2.0, 0.4), (20, 8.0, 0.7)), accuracy=0.7)
    short = study_cell(kernel="softmax", steps=10, learning_curve=curve((5, 2.0, 0.4), (10, 4.0, 0.8)), accuracy=0.8)
    ours, reference = study_of(long, short).groups
    assert compared(ours, reference).equal_steps.mean == pytest.approx(0.5 - 0.8)
    assert compared(reference, ours).equal_steps.mean == pytest.approx(0.8 - 0.5)


def test_groups_without_a_common_seed_are_not_compared(study_of, study_cell, failed_cell):
    ours, reference = study_of(study_cell(kernel="taylor 2"), failed_cell(kernel="softmax")).groups
    assert compare_with(ours, reference) is None


def test_the_reference_has_the_same_levels_otherwise(study_of, study_cells):
    study = study_of(*study_cells())
    for group in study.groups:
        found = reference_group(study, group, {"kernel": "softmax"})
        assert found is not None
        assert found.labels == {**group.labels, "kernel": "softmax"}
        assert reference_group(study, group, {}) is None
        assert reference_group(study, group, {"kernel": "not there yet"}) is None


def test_an_unknown_factor_is_an_error(study_of, study_cell):
    study = study_of(study_cell())
    with pytest.raises(ValueError, match=r"reference factor is 'kernels', expected one of .*; did you mean 'kernel'"):
        reference_group(study, study.groups[0], {"kernels": "softmax"})
