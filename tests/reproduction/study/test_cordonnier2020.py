from pathlib import Path

import pytest
import torch

from reproduction.study import read_study
from tests.cordonnier2020 import paper_models

STUDIES = Path(__file__).parents[3] / "reproduction" / "studies"
FULL, SMALL = (read_study(STUDIES / f"cordonnier2020{size}.yaml") for size in ("", "_small"))
PRUNED = "SA quadratic generalized pruned"  # made from a trained model


def test_the_table_of_the_paper_has_five_models():
    models = paper_models()
    assert len(models) == 5
    assert models["SA quadratic"] == (93.8, "12.1M", "6.2B")
    assert models["SA quadratic generalized pruned"] == (93.4, "9.7M", "4.9B")
    assert models["SA learned"].accuracy == 91.8
    assert models["ResNet18"].flops == "1.1B"


def test_every_model_that_the_paper_trains_from_scratch_is_a_level():
    assert paper_models().keys() - {PRUNED} <= FULL.factors["model"].keys()


@pytest.mark.parametrize("model", sorted(paper_models().keys() - {PRUNED}))
def test_a_level_has_the_parameters_and_the_recipe_of_the_paper(model):
    run = FULL.make_study_model({"model": model}, 0).run
    recipe = (run.data, run.image_size, run.epochs, run.optimizer, run.momentum)
    assert recipe == ("cifar10", None, 300, "sgd", 0.9)
    with torch.device("meta"):
        made = run.make_model(image_size=(32, 32), in_channels=3, num_classes=10)
    num_parameters = sum(parameter.numel() for parameter in made.parameters())
    assert f"{num_parameters / 1e6:.1f}M" == paper_models()[model].parameters


@pytest.mark.parametrize("study", [FULL, SMALL], ids=lambda study: study.name)
def test_every_model_can_be_built(study):
    for study_model in study.models({"seed": ["0"]}):
        side = study_model.run.image_size or 32
        channels = 3 if study_model.run.data == "cifar10" else 1
        study_model.run.make_model(image_size=(side, side), in_channels=channels, num_classes=10)
