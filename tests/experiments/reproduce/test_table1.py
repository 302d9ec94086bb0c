import csv
import io

from tests.experiments.reproduce.reproduction_cells import photograph_cell, reproduction_cell

from teka.experiments.reproduce.table1 import accuracy_table, effort_table, ordered_models, table1_csv


def test_rows_stand_in_the_order_of_the_paper_and_its_numbers_before_ours(study_of, study_cell):
    models = ["Performer (mine)", "Performer (strategy 1 exact)", "Performer (strategy 1)", "AlexNet"]
    cells = [reproduction_cell(study_cell, model, seed=seed) for model in models for seed in (0, 1, 2)]
    study = study_of(*cells)
    assert ordered_models(study) == [models[3], models[2], models[1], models[0]]
    table = accuracy_table(study)
    assert table.heads[:3] == ("model", "MNIST: paper", "ours")
    assert [row[:3] for row in table.rows] == [
        ("AlexNet", "99.07", "92.0 ± 2.0"),
        ("Performer (strategy 1)", "98.8", "92.0 ± 2.0"),
        ("Performer (strategy 1 exact)", "98.8", "92.0 ± 2.0"),
        ("Performer (mine)", "–", "92.0 ± 2.0"),
    ]


def test_what_is_not_there_is_a_dash_and_what_diverged_is_said(study_of, study_cell, failed_cell):
    labels = {"data": "mnist", "model": "VGG-16"}
    cells = [photograph_cell(study_cell, "AlexNet"), failed_cell("mnist", labels=labels)]
    rows = {row[0]: row for row in accuracy_table(study_of(*cells)).rows}
    assert rows["AlexNet"][1:5] == ("99.07", "–", "67.99", "90.0")
    assert rows["VGG-16"][2] == "diverged (1 of 1)"


def test_parameters_of_data_sets_with_one_channel_and_with_three_are_both_given(study_of, study_cell):
    grey = reproduction_cell(study_cell, "AlexNet", parameters=2456778)
    colour = photograph_cell(study_cell, "AlexNet", parameters=2472266)
    (row,) = accuracy_table(study_of(grey, colour)).rows
    assert row[-3:-1] == ("2.5M", "2,456,778 – 2,472,266")


def test_the_effort_counts_seeds_and_epochs(study_of, study_cell):
    cells = [reproduction_cell(study_cell, "AlexNet", seed=seed, epochs=3 + seed, seconds=10.0) for seed in (0, 1)]
    assert effort_table(study_of(*cells)).rows == (("AlexNet", "2", "3 – 4", "10.0"),)


def test_the_csv_has_a_row_for_each_model_and_data_set_with_its_provenance(study_of, study_cell):
    cells = [reproduction_cell(study_cell, "AlexNet"), photograph_cell(study_cell, "AlexNet")]
    rows = list(csv.DictReader(io.StringIO(table1_csv(study_of(*cells)))))
    assert [row["data"] for row in rows] == ["mnist", "cifar10"]
    assert float(rows[0]["accuracy_percent"]) == 90.0
    assert float(rows[0]["paper_accuracy_percent"]) == 99.07
    assert rows[0]["hardware"] == "two cores"
    assert rows[0]["standard_deviation"] == ""
