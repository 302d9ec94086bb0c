from pathlib import Path

import numpy as np
import pytest

from reproduction.horn2021.paper_comparison import (
    SCALES,
    draw_figure1,
    find_name_in_paper,
    make_accuracy_table,
    read_paper_figure,
    read_paper_study,
    read_paper_table,
    write_paper_comparison,
)
from reproduction.study import read_results_table
from tests.reproduction.conftest import failed_result, saved_result

NAMES = ("data", "model")
MODELS = ("Performer (absolute)", "Performer (strategy 1 exact)")
CLASS_1 = {"1": {"shifted_images": 50, "accuracy_by_shift": [1.0, 0.9, 0.8]}}
STABILITY = {"circular": {"images": 50, "shifts": 783, "consistency": 1.0, "unchanged": 0.9}}


def shifted_result(accuracy, **fields):
    return saved_result(accuracy, epochs=3, classes=CLASS_1, **fields)


def photograph_result(accuracy, **fields):
    """Return a saved result for images that cannot be shifted without loss."""
    content = saved_result(accuracy, epochs=3, shifts=[], shifted_images=0, accuracy_by_shift=[])
    return content | {"minimum_accuracy": None, "worst_shift_accuracy": None} | fields


@pytest.fixture
def results(save_study):
    saved = {
        (data, model, seed): shifted_result(0.9 + 0.02 * seed)
        for data in ("mnist", "fashion-mnist")
        for model in (*MODELS, "AlexNet")
        for seed in (0, 1)
    }
    return read_results_table(*save_study(saved, names=NAMES))


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
    assert find_name_in_paper("Performer (strategy 2 exact with k = 4)") == "Performer (strategy 2)"


def test_the_accuracy_table_has_the_accuracies_of_the_paper_next_to_ours(save_study):
    results = {
        ("mnist", "AlexNet", 0): shifted_result(0.9),
        ("mnist", "AlexNet", 1): shifted_result(0.92),
        ("cifar10", "AlexNet", 0): photograph_result(0.5, parameters=22001),
        ("mnist", "Performer (strategy 1 exact)", 0): shifted_result(0.9),
        ("mnist", "Performer (mine)", 0): failed_result(),
    }
    table = make_accuracy_table(read_results_table(*save_study(results, names=NAMES)))
    assert table.loc["AlexNet"].tolist() == [99.07, "91.0 ± 12.7", 67.99, "50.0", "2.5M"]
    assert table.loc["Performer (strategy 1 exact)", "mnist: paper"] == 98.8
    mine = table.loc["Performer (mine)"]
    assert np.isnan(mine["mnist: paper"])
    assert mine["mnist: ours"] == "–"


def test_figure_1_has_our_curves_and_those_of_the_paper(results):
    axes = draw_figure1(results).axes
    assert [axis.get_title() for axis in axes] == ["mnist", "fashion-mnist"]
    lines = axes[0].get_lines()
    labels = [line.get_label() for line in lines if line.get_linestyle() == "-"]
    assert labels == [*MODELS, "AlexNet"]
    assert np.asarray(lines[0].get_ydata()) == pytest.approx([90, 100, 80])
    paper = [line for line in lines if line.get_linestyle() == ":"]
    assert len(paper) == 2
    # Images of 16 pixels, half as wide as those of the paper.
    assert max(np.asarray(paper[0].get_xdata())) == 4


def test_write_reproduction_writes_tables_and_a_figure(save_study):
    results = {("mnist", model, 0): shifted_result(0.9, stability=STABILITY) for model in MODELS}
    results["cifar10", "AlexNet", 0] = photograph_result(0.5)
    study, folder = save_study(results, names=NAMES, description="A small scale.")
    text = write_paper_comparison(study, folder)
    assert {path.name for path in folder.iterdir() if path.is_file()} == {
        "cells.jsonl.gz",
        "table1.md",
        "figure1.png",
    }
    for part in ("A small scale.", "| trained models | 3 of 6 |", "## Unchanged predictions"):
        assert part in text
    assert "| mnist | Performer (absolute) | circular | 50 | 783 | 100.00 | 90.00 |" in text


def test_without_shifted_images_there_is_no_figure(save_study):
    study, folder = save_study({("cifar10", "AlexNet", 0): photograph_result(0.5)}, names=NAMES)
    assert "| worst shift" not in write_paper_comparison(study, folder)
    assert not (folder / "figure1.png").exists()


@pytest.mark.parametrize("scale", [scale for scale in SCALES if scale != "full"])
def test_the_committed_tables_equal_the_committed_results(scale):
    folder = Path(__file__).parents[3] / "reproduction" / "horn2021" / scale
    page = (folder / "table1.md").read_text(encoding="utf-8")
    for model, row in make_accuracy_table(
        read_results_table(read_paper_study(scale), folder)
    ).iterrows():
        for text in row.filter(like="ours"):
            assert text in page, model
