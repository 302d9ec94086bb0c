from pathlib import Path

import pytest
import torch

from reproduction.horn2021.papers import PIXELS, figure1, paper_row, table1
from reproduction.study import read_study
from tests.cordonnier2020 import paper_models

STUDIES = Path(__file__).parents[3] / "reproduction" / "studies"
FULL, SMALL = (read_study(STUDIES / f"cordonnier2020{size}.yaml") for size in ("", "_small"))
PRUNED = "SA quadratic generalized pruned"  # made from a trained model


def test_table_1_has_the_nine_models_with_an_accuracy_on_each_data_set():
    rows = table1()
    assert len(rows) == 9
    assert all(set(row.accuracy) == {"mnist", "fashion-mnist", "cifar10"} for row in rows.values())
    assert rows["VGG-16"].accuracy == {"mnist": 99.34, "fashion-mnist": 91.98, "cifar10": 75.45}
    assert rows["Performer (strategy 1)"].parameters == "4.7M"


def test_figure_1_has_seven_curves_over_17_shifts():
    curves = figure1()
    assert len(curves) == 7
    assert all(sorted(curve.accuracy) == list(range(-8, 9)) for curve in curves)
    assert all(0 <= value <= 100 for curve in curves for value in curve.accuracy.values())
    assert {curve.model for curve in curves} <= table1().keys()


def test_a_model_without_positions_is_flat_on_the_digit_one():
    (none,) = (curve for curve in figure1() if curve.model == "Performer (no position)")
    assert none.data == "mnist"
    assert set(none.accuracy.values()) == {99.41}


def test_the_exact_form_of_a_strategy_is_compared_with_the_strategy():
    assert paper_row("Performer (strategy 2 exact)") == "Performer (strategy 2)"
    assert paper_row("Performer (squared relu × rotary)") not in table1()


def test_the_images_have_32_pixels():
    assert PIXELS == 32


def test_there_are_five_models_with_accuracy_parameters_and_operations():
    models = paper_models()
    assert len(models) == 5
    assert models["SA quadratic"] == (93.8, "12.1M", "6.2B")
    assert models["SA quadratic generalized pruned"] == (93.4, "9.7M", "4.9B")
    assert models["SA learned"].accuracy == 91.8
    assert models["ResNet18"].flops == "1.1B"


def test_every_model_that_the_paper_trains_from_nothing_is_a_level():
    assert paper_models().keys() - {PRUNED} <= FULL.factors["model"].keys()


@pytest.mark.parametrize("model", sorted(paper_models().keys() - {PRUNED}))
def test_a_level_has_the_papers_parameters_and_recipe(model):
    (labels,) = [labels for labels in FULL.combinations() if labels["model"] == model]
    run = FULL.make_cell(labels, seed=0).run
    assert (run.data, run.image_size, run.epochs, run.optimizer, run.momentum) == (
        "cifar10",
        None,
        300,
        "sgd",
        0.9,
    )
    with torch.device("meta"):
        made = run.make_model(image_size=(32, 32), in_channels=3, num_classes=10)
    parameters = sum(parameter.numel() for parameter in made.parameters())
    assert f"{parameters / 1e6:.1f}M" == paper_models()[model].parameters


@pytest.mark.parametrize("study", [FULL, SMALL], ids=lambda study: study.name)
def test_every_cell_can_be_built(study):
    for labels in study.combinations():
        run = study.make_cell(labels, seed=0).run
        side = run.image_size or 32
        channels = 3 if run.data == "cifar10" else 1
        run.make_model(image_size=(side, side), in_channels=channels, num_classes=10)
