from statistics import fmean

import pytest

from teka.experiments.study.report.estimate import estimate


def test_each_quantity_is_the_mean_over_seeds_with_its_interval(study_of, study_cell):
    values = (0.91, 0.94, 0.97)
    (group,) = study_of(*[study_cell(seed=seed, accuracy=value) for seed, value in enumerate(values)]).groups
    assert group.estimate("accuracy") == estimate(values)
    assert group.estimate("process_seconds").mean == fmean(result.process_seconds for result in group.results)


def test_the_curve_stands_at_every_step_that_all_seeds_reach(study_of, study_cell):
    def points(*steps):
        return [{"step": s, "process_seconds": s / 10, "accuracy": s / 100, "loss": 1.0} for s in steps]

    cells = [study_cell(seed=0, learning_curve=points(10, 30, 50)), study_cell(seed=1, learning_curve=points(20, 40))]
    (group,) = study_of(*cells).groups
    assert [point.step for point in group.curve] == [20, 30, 40]
    assert [point.accuracy.mean for point in group.curve] == pytest.approx([0.2, 0.3, 0.4])
    assert [point.process_seconds for point in group.curve] == pytest.approx([2, 3, 4])


def test_a_group_of_failed_cells_has_no_estimates(study_of, failed_cell):
    (group,) = study_of(failed_cell(seed=0), failed_cell(seed=1)).groups
    assert group.estimate("accuracy") is None
    assert group.largest("noise_floor") is None
    assert group.curve == []
    assert (group.failed, group.missing) == ((0, 1), 0)


def test_errors_are_the_largest_over_seeds(study_of, study_cell):
    (group,) = study_of(*[study_cell(seed=s, equivariance_error=e) for s, e in enumerate((2e-7, 5e-7, 3e-7))]).groups
    assert group.largest("equivariance_error") == 5e-7
