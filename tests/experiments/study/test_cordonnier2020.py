"""The studies of Cordonnier et al. 2020 hold the models that their table names."""

from pathlib import Path

import pytest
import torch

from teka.experiments.reference import paper_models
from teka.experiments.study import read_study

STUDIES = Path(__file__).parents[3] / "studies"
FULL, SMALL = (read_study(STUDIES / f"cordonnier2020{size}.yaml") for size in ("", "_small"))
PRUNED = "SA quadratic generalized pruned"  # made from a trained model


def test_every_model_that_the_paper_trains_from_nothing_is_a_level():
    assert paper_models().keys() - {PRUNED} <= FULL.factors["model"].keys()


@pytest.mark.parametrize("model", sorted(paper_models().keys() - {PRUNED}))
def test_a_level_has_the_papers_parameters_and_recipe(model):
    (labels,) = [labels for labels in FULL.combinations() if labels["model"] == model]
    run = FULL.make_cell(labels, seed=0).run
    assert (run.data, run.image_size, run.epochs, run.optimizer, run.momentum) == ("cifar10", None, 300, "sgd", 0.9)
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
