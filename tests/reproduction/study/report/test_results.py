from statistics import fmean

import pytest

from reproduction.study.cells import decode_cell
from reproduction.study.report.results import (
    StudyMatrix,
    StudyResults,
    compare_with,
    read_study_results,
)
from teka.audit.statistics.estimate import mean_over_seeds


def test_cells_are_gathered_over_seeds(study_of, study_cells):
    study = study_of(*study_cells())
    assert study.factors == ("data", "kernel", "position")
    assert study.levels("position") == ["rotation", "none"]
    assert study.seeds == [0, 1, 2]
    assert len(study.groups) == 2 * 5 * 2
    assert all([result.seed for result in group.results] == [0, 1, 2] for group in study.groups)
    assert (study.planned, study.missing) == (60, 0)


def test_missing_and_failed_cells_are_counted(study_of, study_cells, failed_cell):
    study = study_of(*study_cells()[:-2], failed_cell("fashion-mnist", "constant", "none", 1))
    assert (len(study.results), len(study.failed), study.missing) == (58, 1, 1)
    group = study.group({"data": "fashion-mnist", "kernel": "constant", "position": "none"})
    assert group is not None
    assert (len(group.results), group.failed, group.missing) == (1, (1,), 1)


def test_the_plan_may_be_given(study_of, study_cells):
    assert study_of(*study_cells(), planned=67).missing == 7


def test_temporary_files_are_left_alone(study_folder, study_cell):
    folder = study_folder(study_cell())
    (folder / "cells" / ".cell.json").write_text("{")
    assert len(read_study_results(folder).cells) == 1


def test_a_folder_without_cells_is_named(tmp_path):
    with pytest.raises(
        ValueError, match=r"folder must be a study's folder, with one cell or more in cells"
    ):
        read_study_results(tmp_path)


def test_a_cell_that_is_there_twice_is_named(study_of, study_cell, failed_cell):
    with pytest.raises(
        ValueError, match=r"001\.json: labels must be each cell once.*Another has seed 3 too"
    ):
        study_of(study_cell(seed=3), failed_cell(seed=3))


def test_cells_with_other_factors_are_named(study_of, study_cell):
    with pytest.raises(
        ValueError, match=r"001\.json: labels must be the factors of the other cells"
    ):
        study_of(study_cell(), study_cell(labels={"data": "mnist", "variant": "softmax"}))


def test_the_order_of_labels_does_not_matter(study_of, study_cell):
    turned = {"position": "rotation", "kernel": "softmax", "data": "mnist"}
    (group,) = study_of(study_cell(seed=0), study_cell(seed=1, labels=turned)).groups
    assert len(group.results) == 2


def test_each_quantity_is_the_mean_over_seeds_with_its_interval(study_of, study_cell):
    values = (0.91, 0.94, 0.97)
    (group,) = study_of(
        *[study_cell(seed=seed, accuracy=value) for seed, value in enumerate(values)]
    ).groups
    assert group.estimate("accuracy") == mean_over_seeds(values)
    assert group.estimate("process_seconds").value == fmean(
        result.process_seconds for result in group.results
    )


def test_the_curve_stands_at_every_step_that_all_seeds_reach(study_of, study_cell):
    def points(*steps):
        return [
            {"step": s, "process_seconds": s / 10, "accuracy": s / 100, "loss": 1.0} for s in steps
        ]

    cells = [
        study_cell(seed=0, learning_curve=points(10, 30, 50)),
        study_cell(seed=1, learning_curve=points(20, 40)),
    ]
    (group,) = study_of(*cells).groups
    assert [point.step for point in group.curve] == [20, 30, 40]
    assert [point.accuracy.value for point in group.curve] == pytest.approx([0.2, 0.3, 0.4])
    assert [point.process_seconds for point in group.curve] == pytest.approx([2, 3, 4])


def test_a_group_of_failed_cells_has_no_estimates(study_of, failed_cell):
    (group,) = study_of(failed_cell(seed=0), failed_cell(seed=1)).groups
    assert group.estimate("accuracy") is None
    assert group.largest("noise_floor") is None
    assert group.curve == []
    assert (group.failed, group.missing) == ((0, 1), 0)


def test_errors_are_the_largest_over_seeds(study_of, study_cell):
    (group,) = study_of(
        *[study_cell(seed=s, equivariance_error=e) for s, e in enumerate((2e-7, 5e-7, 3e-7))]
    ).groups
    assert group.largest("equivariance_error") == 5e-7


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
            study_cell(
                kernel=kernel,
                seed=seed,
                learning_curve=points,
                accuracy=points[-1]["accuracy"],
                **further,
            )
            for kernel, curves in (("taylor 2", ours), ("softmax", reference))
            for seed, points in enumerate(curves)
        ]
        study = study_of(*cells)
        return study.group(
            {"data": "mnist", "kernel": "taylor 2", "position": "rotation"}
        ), study.group({"data": "mnist", "kernel": "softmax", "position": "rotation"})

    return make


def test_a_slower_run_is_read_between_its_points(pair):
    ours, reference = pair([curve((5, 10.0, 0.3), (10, 30.0, 0.7))], [SLOW])
    comparison = compared(ours, reference)
    assert comparison.early == 0
    assert (comparison.equal_time and comparison.equal_time.value) == pytest.approx(0.5 - 0.9)


def test_a_run_that_ends_earlier_is_marked_and_keeps_its_last_accuracy(pair):
    ours, reference = pair([FAST], [SLOW])
    comparison = compared(ours, reference)
    assert comparison.early == 1
    assert (comparison.equal_time and comparison.equal_time.value) == pytest.approx(-0.1)


def test_a_run_without_a_point_by_then_has_no_accuracy(pair):
    ours, reference = pair([SLOW], [FAST])
    assert compared(ours, reference).equal_time is None


def test_a_group_is_equal_to_itself(study_of, study_cells):
    for group in study_of(*study_cells()).groups:
        comparison = compared(group, group)
        assert comparison.equal_steps == comparison.equal_time == mean_over_seeds([0.0] * 3)
        assert comparison.early == 0


def test_differences_are_paired_by_seed(pair):
    ours = [curve((10, 20.0, accuracy)) for accuracy in (0.5, 0.6, 0.7)]
    reference = [curve((10, 20.0, accuracy)) for accuracy in (0.51, 0.62, 0.71, 0.9)]
    comparison = compared(*pair(ours, reference))
    expected = mean_over_seeds([-0.01, -0.02, -0.01])
    for found in (comparison.equal_steps, comparison.equal_time):
        assert found is not None
        assert (found.value, found.lower, found.upper) == pytest.approx(
            (expected.value, expected.lower, expected.upper)
        )


def test_a_longer_run_is_cut_off_at_equal_steps(study_of, study_cell):
    long = study_cell(
        kernel="taylor 2",
        steps=20,
        learning_curve=curve((5, 2.0, 0.4), (20, 8.0, 0.7)),
        accuracy=0.7,
    )
    short = study_cell(
        kernel="softmax",
        steps=10,
        learning_curve=curve((5, 2.0, 0.4), (10, 4.0, 0.8)),
        accuracy=0.8,
    )
    ours, reference = study_of(long, short).groups
    assert compared(ours, reference).equal_steps.value == pytest.approx(0.5 - 0.8)
    assert compared(reference, ours).equal_steps.value == pytest.approx(0.8 - 0.5)


def test_groups_without_a_common_seed_are_not_compared(study_of, study_cell, failed_cell):
    ours, reference = study_of(study_cell(kernel="taylor 2"), failed_cell(kernel="softmax")).groups
    assert compare_with(ours, reference) is None


def test_the_reference_has_the_same_levels_otherwise(study_of, study_cells):
    study = study_of(*study_cells())
    for group in study.groups:
        found = study.reference_of(group, {"kernel": "softmax"})
        assert found is not None
        assert found.labels == {**group.labels, "kernel": "softmax"}
        assert study.reference_of(group, {}) is None
        assert study.reference_of(group, {"kernel": "not there yet"}) is None


def test_an_unknown_factor_is_an_error(study_of, study_cell):
    study = study_of(study_cell())
    with pytest.raises(
        ValueError, match=r"reference factor must be one of .*got 'kernels'.*Did you mean 'kernel'"
    ):
        study.reference_of(study.groups[0], {"kernels": "softmax"})


def test_factors_find_their_places(failed_cell):
    for factors, column, rows in (
        ("data kernel position", "position", ("kernel",)),
        ("position data kernel", "position", ("kernel",)),
        ("data variant", None, ("variant",)),  # a single factor makes rows
        ("data position", None, ("position",)),
        ("kernel depth", "depth", ("kernel",)),
        ("depth kernel", "depth", ("kernel",)),  # the kernel is never in columns
        (
            "data kernel position depth",
            "position",
            ("kernel", "depth"),
        ),  # further ones join the rows
        ("data", None, ()),
    ):
        cell = decode_cell(
            failed_cell(labels={factor: f"some {factor}" for factor in factors.split()}), factors
        )
        matrix = StudyMatrix(StudyResults((cell,), planned=1))
        assert (matrix.column_factor, matrix.row_factors) == (column, rows), factors
        (group,) = matrix.study.groups
        assert matrix.at(*matrix.place_of(group)) is group, factors
        assert matrix.panels == (["some data"] if "data" in factors.split() else [""]), factors
        assert matrix.name_of(group), factors


def test_rows_and_columns_go_from_the_best_to_the_worst(study_of, study_cells):
    matrix = StudyMatrix(
        study_of(*reversed(study_cells(kernels=("constant", "softmax", "taylor 2"))))
    )
    assert matrix.rows == ["softmax", "taylor 2", "constant"]
    assert matrix.columns == ["rotation", "none"]


def test_missing_cells_favour_no_row(study_of, study_cell):
    # "easy" is worse than "all" wherever both are, but is there only where accuracies are high.
    place = {("easy", "mnist"): 0.97, ("all", "mnist"): 0.98, ("all", "fashion-mnist"): 0.5}
    cells = [
        study_cell(labels={"data": d, "kernel": k}, accuracy=value)
        for (k, d), value in place.items()
    ]
    assert StudyMatrix(study_of(*cells)).rows == ["all", "easy"]


def test_failed_groups_come_last(study_of, study_cell, failed_cell):
    matrix = StudyMatrix(study_of(failed_cell(kernel="softmax"), study_cell(kernel="constant")))
    assert matrix.rows == ["constant", "softmax"]
    assert [group.labels["kernel"] for group in matrix.ranked_groups("mnist")] == [
        "constant",
        "softmax",
    ]
