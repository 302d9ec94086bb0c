import csv
import io

import numpy as np
import pytest

from reproduction.horn2021.horn2021 import (
    AT_A_GLANCE,
    accuracy_table,
    draw_figure1,
    draw_glance,
    effort_table,
    figure1_note,
    has_shifts,
    ordered_models,
    shift_table,
    stability_table,
    table1_csv,
)
from reproduction.horn2021.papers import figure1
from tests.reproduction.horn2021.reproduction_cells import photograph_cell, reproduction_cell

MODELS = ("Performer (absolute)", "Performer (strategy 1 exact)")


def test_rows_stand_in_the_order_of_the_paper_and_its_numbers_before_ours(study_of, study_cell):
    models = [
        "Performer (mine)",
        "Performer (strategy 1 exact)",
        "Performer (strategy 1)",
        "AlexNet",
    ]
    cells = [
        reproduction_cell(study_cell, model, seed=seed) for model in models for seed in (0, 1, 2)
    ]
    study = study_of(*cells)
    assert ordered_models(study) == [models[3], models[2], models[1], models[0]]
    table = accuracy_table(study)
    assert table.heads[:3] == ("model", "MNIST: paper", "ours")
    assert [row[:3] for row in table.rows] == [
        ("AlexNet", "99.07", "92.0 ± 5.0"),
        ("Performer (strategy 1)", "98.8", "92.0 ± 5.0"),
        ("Performer (strategy 1 exact)", "98.8", "92.0 ± 5.0"),
        ("Performer (mine)", "–", "92.0 ± 5.0"),
        ("best of the paper", "99.34", ""),
    ]


def test_what_is_not_there_is_a_dash_and_what_diverged_is_said(study_of, study_cell, failed_cell):
    labels = {"data": "mnist", "model": "VGG-16"}
    cells = [photograph_cell(study_cell, "AlexNet"), failed_cell("mnist", labels=labels)]
    rows = {row[0]: row for row in accuracy_table(study_of(*cells)).rows}
    assert rows["AlexNet"][1:5] == ("99.07", "–", "67.99", "90.0")
    assert rows["VGG-16"][2] == "diverged (1 of 1)"


def test_parameters_of_data_sets_with_one_channel_and_with_three_are_both_given(
    study_of, study_cell
):
    grey = reproduction_cell(study_cell, "AlexNet", parameters=2456778)
    colour = photograph_cell(study_cell, "AlexNet", parameters=2472266)
    row, _ = accuracy_table(study_of(grey, colour)).rows
    assert row[-3:-1] == ("2.5M", "2,456,778 – 2,472,266")


def test_the_effort_counts_seeds_epochs_images_and_seconds_of_a_core(study_of, study_cell):
    effort = {"steps": 1000, "process_seconds": 10.0}
    cells = [
        reproduction_cell(study_cell, "AlexNet", seed=seed, epochs=3 + seed, **effort)
        for seed in (0, 1)
    ]
    images = f"{1000 * cells[0]['run']['batch_size']:,}"
    assert effort_table(study_of(*cells)).rows == (("AlexNet", "2", "3 – 4", images, "10.0"),)


def test_the_answers_that_stay_are_those_of_the_seed_with_the_fewest(study_of, study_cell):
    kept = [
        {"images": 50, "shifts": 783, "consistency": share, "unchanged": share - 0.1}
        for share in (1.0, 0.9951)
    ]
    cells = [
        reproduction_cell(study_cell, MODELS[0], seed=seed, stability={"circular": one})
        for seed, one in enumerate(kept)
    ]
    rows = stability_table(study_of(*cells, reproduction_cell(study_cell, "AlexNet"))).rows
    assert rows == (("MNIST, Performer (absolute)", "circular", "50", "783", "99.51", "89.51"),)


def test_the_csv_has_a_row_for_each_model_and_data_set_with_its_provenance(study_of, study_cell):
    cells = [reproduction_cell(study_cell, "AlexNet"), photograph_cell(study_cell, "AlexNet")]
    rows = list(csv.DictReader(io.StringIO(table1_csv(study_of(*cells)))))
    assert [row["data"] for row in rows] == ["mnist", "cifar10"]
    assert float(rows[0]["accuracy"]) == 0.9
    assert float(rows[0]["paper_accuracy_percent"]) == 99.07
    assert rows[0]["hardware"] == "two cores"
    assert rows[0]["accuracy_half_width"] == ""


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
    titles = [
        f"{name}: shift dx (pixels)" for name in ("MNIST, digit 1", "Fashion-MNIST, trousers")
    ]
    assert [panel.get_xlabel() for panel in panels] == titles
    for panel in panels:
        drawn = lines(panel)
        assert "AlexNet" not in drawn
        assert all(drawn[model] == pytest.approx([90, 100, 80]) for model in MODELS)


def test_the_papers_curves_lie_behind_at_the_same_share_of_the_width(study):
    panel = draw_figure1(study, of_class=1).axes[0]
    (curve,) = (c for c in figure1() if c.data == "mnist" and c.model == "Performer (absolute)")
    (line,) = (
        line for line in panel.get_lines() if line.get_label() == "paper: Performer (absolute)"
    )
    assert np.asarray(line.get_xdata()).tolist() == [shift / 2 for shift in curve.accuracy]
    assert np.asarray(line.get_ydata()).tolist() == list(curve.accuracy.values())
    ours = next(line for line in panel.get_lines() if line.get_label() == MODELS[0])
    assert line.get_zorder() < ours.get_zorder()


def test_the_figure_of_all_classes_has_the_mean_of_the_seeds_and_no_curve_of_the_paper(study):
    panel = draw_figure1(study, of_class=None).axes[0]
    drawn = lines(panel)
    assert set(drawn) == set(MODELS)
    assert drawn[MODELS[0]] == pytest.approx([81, 91, 71])


def test_of_strategy_2_only_the_papers_distance_is_drawn_where_there_are_others(
    study_of, study_cell
):
    names = [
        "Performer (strategy 2 with k = 2)",
        "Performer (strategy 2 exact with k = 6)",
        "Performer (strategy 2)",
    ]
    study = study_of(*(reproduction_cell(study_cell, name) for name in names))
    assert set(lines(draw_figure1(study, of_class=None).axes[0])) == set(names[1:])
    assert "only k = 6 is drawn" in figure1_note(study)


def test_of_strategy_2_another_distance_is_drawn_where_it_is_alone(study_of, study_cell):
    study = study_of(reproduction_cell(study_cell, name := "Performer (strategy 2 with k = 2)"))
    assert set(lines(draw_figure1(study, of_class=None).axes[0])) == {name}
    assert "is drawn" not in figure1_note(study)


def test_at_a_glance_there_are_five_lines_at_most_the_baseline_among_them(study_of, study_cell):
    names = ["Linformer", "Performer (strategy 1 exact)", *AT_A_GLANCE]
    cells = [reproduction_cell(study_cell, name, seed=seed) for name in names for seed in (0, 1)]
    (panel,) = draw_glance(study_of(*cells)).axes
    assert [text.get_text().replace("\n", " ") for text in panel.texts] == list(AT_A_GLANCE)
    for line in panel.get_lines():
        assert np.asarray(line.get_xdata()).tolist() == [-1, 0, 1]
        assert line.get_ydata() == pytest.approx([81, 91, 71])


def test_the_table_compares_the_worst_shift_with_the_middle(study):
    (row,) = (row for row in shift_table(study).rows if row[0] == "MNIST, Performer (absolute)")
    assert row[:5] == ("MNIST, Performer (absolute)", "±1 of 16", "50", "90.0 ± 0.0", "500")
    assert row[5:] == ("91.0 ± 12.7", "71.0 ± 12.7", "66.0 ± 12.7", "−20.0 ± 0.0")


def test_the_table_has_no_spread_of_one_seed(study_of, study_cell):
    row = shift_table(study_of(reproduction_cell(study_cell, MODELS[0]))).rows[0]
    assert row == (
        "MNIST, Performer (absolute)",
        "±1 of 16",
        "50",
        "90.0",
        "500",
        "90.0",
        "70.0",
        "65.0",
        "−20.0",
    )


def test_the_table_has_the_baselines_too_with_the_size_of_their_images(study_of, study_cell):
    baseline = reproduction_cell(study_cell, "AlexNet")
    baseline["run"]["image_size"] = 32
    rows = shift_table(study_of(reproduction_cell(study_cell, MODELS[0]), baseline)).rows
    assert [row[:2] for row in rows] == [
        ("MNIST, AlexNet", "±1 of 32"),
        ("MNIST, Performer (absolute)", "±1 of 16"),
    ]


def test_the_note_says_that_the_papers_curves_are_of_another_size(study):
    assert "by up to 1 of 16 pixels" in figure1_note(study)
    assert "of 32 pixels, and drawn at the same share of the width" in figure1_note(study)


def test_photographs_have_no_shifts_and_baselines_are_not_drawn(study_of, study_cell):
    cells = [photograph_cell(study_cell, MODELS[0]), reproduction_cell(study_cell, "AlexNet")]
    assert not has_shifts(study_of(*cells))
