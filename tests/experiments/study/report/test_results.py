import pytest

from teka.experiments.study.report.results import read_study_results


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
    with pytest.raises(ValueError, match=r"folder is .*, expected a study's folder, with one cell or more in cells"):
        read_study_results(tmp_path)


def test_a_cell_that_is_there_twice_is_named(study_of, study_cell, failed_cell):
    with pytest.raises(ValueError, match=r"001\.json: labels is .*, expected each cell once; another has seed 3 too"):
        study_of(study_cell(seed=3), failed_cell(seed=3))


def test_cells_with_other_factors_are_named(study_of, study_cell):
    with pytest.raises(ValueError, match=r"001\.json: labels is .*, expected the factors of the other cells"):
        study_of(study_cell(), study_cell(labels={"data": "mnist", "variant": "softmax"}))


def test_the_order_of_labels_does_not_matter(study_of, study_cell):
    turned = {"position": "rotation", "kernel": "softmax", "data": "mnist"}
    (group,) = study_of(study_cell(seed=0), study_cell(seed=1, labels=turned)).groups
    assert len(group.results) == 2
