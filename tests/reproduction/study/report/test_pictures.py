from itertools import pairwise

import numpy as np
import pytest
from matplotlib.text import Text

from reproduction.study.report.curves import draw_learning_curves
from reproduction.study.report.pictures import draw_dot_plot, draw_heat_map, draw_shift_plot
from reproduction.study.report.results import StudyMatrix

REFERENCE = {"kernel": "softmax"}
NAMES = ["a", "_hidden", "$\\nonsense$ $", "50 % off"]


@pytest.fixture
def matrix(study_of, study_cells):
    return StudyMatrix(study_of(*study_cells()))


def texts_of(panel):
    return [text.get_text() for text in panel.texts if text.get_text()]


def test_learning_curves_are_three_panels_for_each_data_set_with_a_line_for_each_kernel(matrix):
    figure = draw_learning_curves(matrix, "rotation", REFERENCE)
    assert [panel.get_xlabel() for panel in figure.axes] == [
        name for name in ("steps", "CPU seconds", "training GFLOPs") for _ in range(2)
    ]
    assert [panel.get_title(loc="left") for panel in figure.axes[:2]] == ["mnist", "fashion-mnist"]
    assert all(len(panel.get_lines()) == 5 for panel in figure.axes)
    # Drawn from the worst to the best.
    group = matrix.at("mnist", matrix.rows[-1], "rotation")
    steps, seconds, flops = (
        np.asarray(panel.get_lines()[0].get_xydata()) for panel in figure.axes[::2]
    )
    assert steps[:, 0].tolist() == [point.step for point in group.curve]
    assert seconds[:, 0] == pytest.approx([point.process_seconds for point in group.curve])
    assert flops[-1, 0] == pytest.approx(group.results[0].training_flops * 64 * 625 / 1e9)
    for points in (steps, seconds, flops):
        assert points[:, 1] == pytest.approx([100 * point.accuracy.value for point in group.curve])


@pytest.mark.parametrize(("factor", "scale"), [(2, "linear"), (4, "log")])
def test_the_axes_of_a_row_are_logarithmic_where_one_data_set_s_runs_differ_much(
    study_of, study_cell, factor, scale
):
    def cell(data, kernel, seconds):
        curve = [
            {"step": s, "process_seconds": s * seconds, "accuracy": 0.5, "loss": 1.0}
            for s in (5, 10)
        ]
        return study_cell(data, kernel, learning_curve=curve)

    cells = [cell("mnist", "softmax", 1.5), cell("mnist", "taylor 2", 1.0)]
    cells += [cell("fashion-mnist", "softmax", factor), cell("fashion-mnist", "taylor 2", 1.0)]
    figure = draw_learning_curves(StudyMatrix(study_of(*cells)), "rotation", REFERENCE)
    assert [panel.get_xscale() for panel in figure.axes] == ["linear"] * 2 + [scale] * 2 + [
        "linear"
    ] * 2


def test_direct_labels_name_every_line_without_overlap(matrix):
    figure = draw_learning_curves(matrix, "rotation", REFERENCE)
    figure.draw_without_rendering()
    for panel in figure.axes[1::2]:
        assert sorted(texts_of(panel)) == sorted(matrix.rows)
        boxes = sorted(
            (Text.get_window_extent(text) for text in panel.texts), key=lambda box: -box.y0
        )
        assert all(above.y0 >= below.y1 for above, below in pairwise(boxes))
        assert all(box.x1 <= figure.bbox.x1 for box in boxes)


def test_labels_of_thirty_lines_stay_beside_their_panel(study_of, study_cell):
    names = [f"variant {index} of thirty that has a long name" for index in range(30)]
    cells = [
        study_cell(labels={"data": "mnist", "kernel": name, "position": "rotation"})
        for name in names
    ]
    figure = draw_learning_curves(StudyMatrix(study_of(*cells)), "rotation", REFERENCE)
    figure.draw_without_rendering()
    for panel in figure.axes:
        assert len(texts_of(panel)) == len(names)
        boxes = sorted(
            (Text.get_window_extent(text) for text in panel.texts), key=lambda box: -box.y0
        )
        assert all(above.y0 >= below.y1 for above, below in pairwise(boxes))
        assert boxes[-1].y0 >= panel.bbox.y0
        assert boxes[0].y1 <= panel.bbox.y1 + 0.03 * panel.bbox.height


def test_the_band_goes_from_the_lowest_seed_to_the_highest(matrix):
    panel = draw_learning_curves(matrix, "none", REFERENCE).axes[0]
    runs = matrix.at("mnist", "constant", "none").results
    low, high = (extreme(run.learning_curve[-1].accuracy for run in runs) for extreme in (min, max))
    vertices = np.asarray(panel.collections[0].get_paths()[0].vertices)
    ends = vertices[vertices[:, 0] == 625, 1]
    assert (ends.min(), ends.max()) == pytest.approx((100 * low, 100 * high))


def test_a_row_that_the_last_data_set_lacks_is_named_in_a_legend(study_of, study_cells):
    cells = [
        cell
        for cell in study_cells()
        if (cell["labels"]["data"], cell["labels"]["kernel"]) != ("fashion-mnist", "taylor 2")
    ]
    figure = draw_learning_curves(StudyMatrix(study_of(*cells)), "rotation", REFERENCE)
    assert [text.get_text().strip() for legend in figure.legends for text in legend.texts] == [
        "taylor 2"
    ]


def test_a_column_without_a_finished_cell_has_no_learning_curves(study_of, study_cell, failed_cell):
    matrix = StudyMatrix(study_of(study_cell(position="none"), failed_cell(position="rotation")))
    assert draw_learning_curves(matrix, "none", REFERENCE).axes
    with pytest.raises(
        ValueError, match=r"column must be one with a finished cell.*got 'rotation'"
    ):
        draw_learning_curves(matrix, "rotation", REFERENCE)


def test_the_heat_map_prints_every_mean_with_its_interval(matrix):
    figure = draw_heat_map(matrix)
    for panel, name in zip(figure.axes, matrix.panels, strict=True):
        printed = texts_of(panel)
        for row in matrix.rows:
            for column in matrix.columns:
                accuracy = matrix.at(name, row, column).estimate("accuracy")
                assert f"{100 * accuracy.value:.1f}" in printed
                assert f"± {100 * accuracy.half_width:.1f}" in printed
        bold = [text.get_text() for text in panel.texts if text.get_fontweight() == "bold"]
        best = matrix.ranked_groups(name)[0].estimate("accuracy")
        assert bold == [f"{100 * best.value:.1f}"]


def test_the_heat_map_tells_diverged_from_missing(study_of, study_cell, failed_cell):
    cells = [study_cell(), failed_cell(kernel="taylor 2"), study_cell(position="none")]
    (panel,) = draw_heat_map(StudyMatrix(study_of(*cells))).axes
    assert texts_of(panel).count("diverged") == 1
    assert len(panel.patches) == 3


def test_the_dot_plot_has_a_dot_for_each_group(matrix):
    for panel, name in zip(draw_dot_plot(matrix, REFERENCE).axes, matrix.panels, strict=True):
        dots = [line for line in panel.get_lines() if len(np.asarray(line.get_xdata())) == 1]
        means = [group.estimate("accuracy").value for group in matrix.ranked_groups(name)]
        places = sorted((float(np.asarray(dot.get_xdata())[0]) for dot in dots), reverse=True)
        assert places == pytest.approx([100 * mean for mean in means])


def test_shifts_have_a_panel_for_each_data_set_and_column(matrix):
    figure = draw_shift_plot(matrix)
    assert [panel.get_title(loc="left") for panel in figure.axes] == ["rotation", "none"] * 2
    group = matrix.at("mnist", matrix.rows[0], "rotation")
    dots = [line for line in figure.axes[0].get_lines() if len(np.asarray(line.get_xdata())) == 1]
    assert [float(np.asarray(dot.get_xdata())[0]) for dot in dots[:3]] == pytest.approx(
        [
            100 * group.estimate(q).value
            for q in ("unshifted_accuracy", "minimum_accuracy", "worst_shift_accuracy")
        ]
    )


@pytest.mark.parametrize("accuracy", [0.0, 1.0], ids=["none-right", "all-right"])
def test_accuracies_at_the_ends_of_the_scale_are_drawn(study_of, study_cell, accuracy):
    curve = [
        {"step": s, "process_seconds": s / 10, "accuracy": accuracy, "loss": 1.0} for s in (5, 10)
    ]
    shifts = {
        "accuracy_by_shift": [accuracy] * 4,
        "minimum_accuracy": accuracy,
        "worst_shift_accuracy": accuracy,
    }
    cells = [
        study_cell(kernel=k, accuracy=accuracy, learning_curve=curve, **shifts)
        for k in ("softmax", "taylor 2")
    ]
    matrix = StudyMatrix(study_of(*cells))
    figures = (
        draw_learning_curves(matrix, "rotation", {}),
        draw_heat_map(matrix),
        draw_dot_plot(matrix, {}),
    )
    for figure in (*figures, draw_shift_plot(matrix)):
        figure.draw_without_rendering()


def test_names_are_no_formulae(study_of, study_cell):
    labels = [{"data": name, "kernel": name, "position": name} for name in NAMES]
    matrix = StudyMatrix(study_of(*[study_cell(labels=one) for one in labels]))
    figures = (
        draw_learning_curves(matrix, NAMES[2], {}),
        draw_heat_map(matrix),
        draw_dot_plot(matrix, {}),
    )
    for figure in (*figures, draw_shift_plot(matrix)):
        figure.draw_without_rendering()
