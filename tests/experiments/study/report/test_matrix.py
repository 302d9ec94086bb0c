import pytest

from teka.experiments.study.report.matrix import StudyMatrix


@pytest.mark.parametrize(
    ("factors", "column", "rows"),
    [
        pytest.param("data kernel position", "position", ("kernel",), id="kernel-by-position"),
        pytest.param("position data kernel", "position", ("kernel",), id="in-any-order"),
        pytest.param("data variant", None, ("variant",), id="a-single-factor-makes-rows"),
        pytest.param("data position", None, ("position",), id="even-if-it-is-position"),
        pytest.param("kernel depth", "depth", ("kernel",), id="another-factor-makes-columns"),
        pytest.param("depth kernel", "depth", ("kernel",), id="but-never-the-kernel"),
        pytest.param("data kernel position depth", "position", ("kernel", "depth"), id="further-ones-join-the-rows"),
        pytest.param("data", None, (), id="data-alone"),
    ],
)
def test_factors_find_their_places(study_of, study_cell, factors, column, rows):
    matrix = StudyMatrix(study_of(study_cell(labels={factor: f"some {factor}" for factor in factors.split()})))
    assert (matrix.column_factor, matrix.row_factors) == (column, rows)
    (group,) = matrix.study.groups
    assert matrix.at(matrix.panel_of(group), matrix.row_of(group), matrix.column_of(group)) is group
    assert matrix.panels == (["some data"] if "data" in factors.split() else [""])
    assert matrix.name_of(group)


def test_rows_and_columns_go_from_the_best_to_the_worst(study_of, study_cells):
    matrix = StudyMatrix(study_of(*reversed(study_cells(kernels=("constant", "softmax", "taylor 2")))))
    assert matrix.rows == ["softmax", "taylor 2", "constant"]
    assert matrix.columns == ["rotation", "none"]


def test_missing_cells_favour_no_row(study_of, study_cell):
    # "easy" is worse than "all" wherever both are, but is there only where accuracies are high.
    place = {("easy", "mnist"): 0.97, ("all", "mnist"): 0.98, ("all", "fashion-mnist"): 0.5}
    cells = [study_cell(labels={"data": d, "kernel": k}, accuracy=value) for (k, d), value in place.items()]
    assert StudyMatrix(study_of(*cells)).rows == ["all", "easy"]


def test_failed_groups_come_last(study_of, study_cell, failed_cell):
    matrix = StudyMatrix(study_of(failed_cell(kernel="softmax"), study_cell(kernel="constant")))
    assert matrix.rows == ["constant", "softmax"]
    assert [group.labels["kernel"] for group in matrix.ranked_groups("mnist")] == ["constant", "softmax"]
