import csv
from pathlib import Path

import numpy as np
import pytest

from reproduction.horn2021.report import (
    AT_A_GLANCE,
    accuracy_table,
    draw_shifts,
    paper_name,
    read_paper_figure,
    read_paper_table,
    shift_table,
    stability_table,
    training_table,
    write_reproduction,
)
from reproduction.horn2021.scales import SCALES, read_scale
from reproduction.study import read_cells
from tests.reproduction.conftest import failed_cell, saved_cell

NAMES = ("data", "model")
MODELS = ("Performer (absolute)", "Performer (strategy 1 exact)")
CLASS_1 = {"1": {"shifted_images": 50, "accuracy_by_shift": [1.0, 0.9, 0.8]}}
STABILITY = {"circular": {"images": 50, "shifts": 783, "consistency": 1.0, "unchanged": 0.9}}


def shifted_cell(accuracy, **fields):
    return saved_cell(accuracy, epochs=3, classes=CLASS_1, **fields)


def photograph_cell(accuracy, **fields):
    """Return a cell of images that cannot be shifted without loss."""
    content = saved_cell(accuracy, epochs=3, shifts=[], shifted_images=0, accuracy_by_shift=[])
    return content | {"minimum_accuracy": None, "worst_shift_accuracy": None} | fields


@pytest.fixture
def cells(save_study):
    saved = {
        (data, model, seed): shifted_cell(0.9 + 0.02 * seed)
        for data in ("mnist", "fashion-mnist")
        for model in (*MODELS, "AlexNet")
        for seed in (0, 1)
    }
    return read_cells(*save_study(saved, names=NAMES))


def test_the_tables_of_the_paper():
    table = read_paper_table()
    assert table.shape == (9, 4)
    assert table.loc["VGG-16"].tolist() == [99.34, 91.98, 75.45, "134M"]
    curves = read_paper_figure().groupby(["data", "model"])
    assert len(curves) == 7
    assert set(read_paper_figure().model) <= set(table.index)
    for _, curve in curves:
        assert sorted(curve.shift_px) == list(range(-8, 9))
        assert curve.accuracy_percent.between(0, 100).all()
    none = curves.get_group(("mnist", "Performer (no position)"))
    assert set(none.accuracy_percent) == {99.41}


def test_paper_name_removes_exact_forms_and_distances():
    assert paper_name("Performer (strategy 2 exact with k = 4)") == "Performer (strategy 2)"


def test_the_accuracy_table_has_the_accuracies_of_the_paper_next_to_ours(save_study):
    cells = {
        ("mnist", "AlexNet", 0): shifted_cell(0.9),
        ("mnist", "AlexNet", 1): shifted_cell(0.92),
        ("cifar10", "AlexNet", 0): photograph_cell(0.5, parameters=22001),
        ("mnist", "Performer (strategy 1 exact)", 0): shifted_cell(0.9),
        ("mnist", "Performer (mine)", 0): failed_cell(),
    }
    table = accuracy_table(read_cells(*save_study(cells, names=NAMES)))
    assert table.loc["AlexNet"].tolist() == [
        99.07,
        "91.0 ± 12.7",
        67.99,
        "50.0",
        "2.5M",
        "21,001 – 22,001",
        "5.10",
    ]
    assert table.loc["Performer (strategy 1 exact)", "mnist: paper"] == 98.8
    mine = table.loc["Performer (mine)"]
    assert np.isnan(mine["mnist: paper"])
    assert mine["mnist: ours"] == "–"


def test_the_shift_table_has_class_1_and_all_classes(cells):
    row = shift_table(cells).loc[("mnist", "Performer (absolute)")]
    assert row.tolist() == [
        2,
        "50.0",
        "90.0 ± 0.0",
        "500",
        "91.0 ± 12.7",
        "71.0 ± 12.7",
        "66.0 ± 12.7",
        "−20.0 ± 0.0",
    ]


def test_the_stability_table_has_the_seed_with_the_lowest_shares(save_study):
    lower = {"circular": {**STABILITY["circular"], "consistency": 0.9951, "unchanged": 0.8951}}
    cells = {
        ("mnist", MODELS[0], 0): shifted_cell(0.9, stability=STABILITY),
        ("mnist", MODELS[0], 1): shifted_cell(0.9, stability=lower),
        ("mnist", "AlexNet", 0): shifted_cell(0.9),
    }
    table = stability_table(read_cells(*save_study(cells, names=NAMES)))
    assert table.index.tolist() == [("mnist", MODELS[0], "circular")]
    assert table.iloc[0].tolist() == [50, 783, "99.51", "89.51"]


def test_the_training_table_counts_images(cells):
    assert training_table(cells).iloc[0].tolist() == [2, "3.00", "6,400", "10.0"]


def test_figure_1_has_a_panel_per_data_set_and_the_curves_of_the_paper(cells):
    figure = draw_shifts(cells, is_class_1=True)
    labels = [panel.get_xlabel() for panel in figure.axes]
    assert labels == ["mnist: shift dx (pixels)", "fashion-mnist: shift dx (pixels)"]
    lines = figure.axes[0].get_lines()
    ours = next(line for line in lines if line.get_label() == MODELS[0])
    points = np.asarray(ours.get_xydata()).tolist()
    assert points == [[-1, pytest.approx(90)], [0, 100], [1, pytest.approx(80)]]
    paper = read_paper_figure().groupby(["data", "model"]).get_group(("mnist", MODELS[0]))
    (curve,) = (
        line
        for line in lines
        if line.get_linestyle() == ":" and line.get_color() == ours.get_color()
    )
    # Images of 16 pixels are half as wide as those of the paper.
    assert np.asarray(curve.get_xdata()).tolist() == (paper.shift_px / 2).tolist()
    assert np.asarray(curve.get_ydata()).tolist() == paper.accuracy_percent.tolist()


def test_the_figure_of_all_classes_has_means_over_seeds(cells):
    lines = draw_shifts(cells).axes[0].get_lines()
    assert [line.get_label() for line in lines] == [*MODELS, "AlexNet"]
    assert np.asarray(lines[0].get_ydata()) == pytest.approx([81, 91, 71])


def test_write_reproduction_writes_tables_and_figures(save_study):
    models = [*AT_A_GLANCE, "Performer (strategy 2 with k = 2)"]
    cells = {("mnist", model, 0): shifted_cell(0.9, stability=STABILITY) for model in models}
    cells["cifar10", "AlexNet", 0] = photograph_cell(0.5)
    study, folder = save_study(cells, names=NAMES, description="A small scale.")
    text = write_reproduction(study, folder)
    assert {path.name for path in folder.iterdir() if path.is_file()} == {
        "table1.md",
        "table1.csv",
        "at_a_glance.png",
        "figure1.png",
        "figure1_all_classes.png",
    }
    for part in ("A small scale.", "7 of 14 cells finished", "## Unchanged predictions"):
        assert part in text
    with (folder / "table1.csv").open(encoding="utf-8") as file:
        rows = {(row["data"], row["model"]): row for row in csv.DictReader(file)}
    assert float(rows["cifar10", "AlexNet"]["paper_accuracy_percent"]) == 67.99
    assert rows["mnist", "Performer (squared relu × rotary)"]["paper_accuracy_percent"] == ""


def test_without_shifted_images_there_are_no_figures(save_study):
    study, folder = save_study({("cifar10", "AlexNet", 0): photograph_cell(0.5)}, names=NAMES)
    assert "Shifts along x" not in write_reproduction(study, folder)
    assert {path.name for path in folder.iterdir() if path.is_file()} == {"table1.md", "table1.csv"}


@pytest.mark.parametrize("scale", [scale for scale in SCALES if scale != "full"])
def test_the_committed_tables_equal_the_committed_cells(scale):
    folder = Path(__file__).parents[3] / "reproduction" / "horn2021" / scale
    page = (folder / "table1.md").read_text(encoding="utf-8")
    for model, row in accuracy_table(read_cells(read_scale(scale), folder)).iterrows():
        for text in row.filter(like="ours"):
            assert text in page, model
