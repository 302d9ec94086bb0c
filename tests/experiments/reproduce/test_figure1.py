import numpy as np
import pytest
from tests.experiments.reproduce.reproduction_cells import photograph_cell, reproduction_cell

from teka.experiments.reference import figure1
from teka.experiments.reproduce.figure1 import draw_figure1, figure1_note, has_shifts, shift_table

MODELS = ("Performer (absolute)", "Performer (strategy 1 exact)")


@pytest.fixture
def study(study_of, study_cell):
    cells = [
        reproduction_cell(study_cell, model, data, seed)
        for model in MODELS
        for data in ("mnist", "fashion-mnist")
        for seed in (0, 1)
    ]
    return study_of(*cells, reproduction_cell(study_cell, "AlexNet"))


def lines(panel):
    return {line.get_label(): list(line.get_ydata()) for line in panel.get_lines()}


def test_there_is_a_panel_for_each_data_set_and_a_line_for_each_performer(study):
    panels = draw_figure1(study, of_class=1).axes
    assert [panel.get_title(loc="left") for panel in panels] == ["MNIST, digit 1", "Fashion-MNIST, trousers"]
    for panel in panels:
        drawn = lines(panel)
        assert "AlexNet" not in drawn
        assert all(drawn[model] == pytest.approx([90, 100, 80]) for model in MODELS)


def test_the_papers_curves_lie_behind_at_the_same_share_of_the_width(study):
    panel = draw_figure1(study, of_class=1).axes[0]
    (curve,) = (c for c in figure1() if c.data == "mnist" and c.model == "Performer (absolute)")
    (line,) = (line for line in panel.get_lines() if line.get_label() == "paper: Performer (absolute)")
    assert np.asarray(line.get_xdata()).tolist() == [shift / 2 for shift in curve.accuracy]
    assert np.asarray(line.get_ydata()).tolist() == list(curve.accuracy.values())
    ours = next(line for line in panel.get_lines() if line.get_label() == MODELS[0])
    assert line.get_zorder() < ours.get_zorder()


def test_the_figure_of_all_classes_has_the_mean_of_the_seeds_and_no_curve_of_the_paper(study):
    panel = draw_figure1(study, of_class=None).axes[0]
    drawn = lines(panel)
    assert set(drawn) == set(MODELS)
    assert drawn[MODELS[0]] == pytest.approx([81, 91, 71])


def test_the_table_compares_the_worst_shift_with_the_middle(study):
    (row,) = (row for row in shift_table(study).rows if row[0] == "MNIST, Performer (absolute)")
    assert row[:5] == ("MNIST, Performer (absolute)", "±1 of 16", "50", "90.0 ± 0.0", "500")
    assert row[5:] == ("91.0 ± 1.4", "71.0 ± 1.4", "66.0 ± 1.4", "−20.0 ± 0.0")


def test_the_table_has_no_spread_of_one_seed(study_of, study_cell):
    row = shift_table(study_of(reproduction_cell(study_cell, MODELS[0]))).rows[0]
    assert row == ("MNIST, Performer (absolute)", "±1 of 16", "50", "90.0", "500", "90.0", "70.0", "65.0", "−20.0")


def test_the_table_has_the_baselines_too_with_the_size_of_their_images(study_of, study_cell):
    baseline = reproduction_cell(study_cell, "AlexNet")
    baseline["run"]["image_size"] = 32
    rows = shift_table(study_of(reproduction_cell(study_cell, MODELS[0]), baseline)).rows
    assert [row[:2] for row in rows] == [("MNIST, AlexNet", "±1 of 32"), ("MNIST, Performer (absolute)", "±1 of 16")]


def test_the_note_says_that_the_papers_curves_are_of_another_size(study):
    assert "by up to 1 of 16 pixels" in figure1_note(study)
    assert "of 32 pixels, are drawn at the same share of the width" in figure1_note(study)


def test_photographs_have_no_shifts_and_baselines_are_not_drawn(study_of, study_cell):
    cells = [photograph_cell(study_cell, MODELS[0]), reproduction_cell(study_cell, "AlexNet")]
    assert not has_shifts(study_of(*cells))
