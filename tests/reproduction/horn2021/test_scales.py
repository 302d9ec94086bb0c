import dataclasses

import pytest
import torch

from reproduction.horn2021.paper_comparison import (
    find_name_in_paper,
    read_paper_study,
    read_paper_table,
    select_paper_models,
)


@pytest.mark.parametrize("scale", ["small", "full"])
def test_every_model_of_the_paper_is_trained_on_every_data_set(scale):
    study = read_paper_study(scale)
    assert list(study.factors["data"]) == ["mnist", "fashion-mnist", "cifar10"]
    assert set(map(find_name_in_paper, study.factors["model"])) >= set(read_paper_table().index)
    models = {"alexnet", "vgg16", "resnet18", "linformer", "routing_transformer", "performer"}
    assert {study_model.run.model for study_model in study.models()} == models
    assert len(study.seeds) >= 3


@pytest.mark.parametrize(("scale", "image_size"), [("full-cpu", None), ("one-stem", 32)])
def test_models_at_full_resolution_share_a_recipe_and_have_evaluation_seeds(scale, image_size):
    study = read_paper_study(scale)
    runs = [study_model.run for study_model in study.models({"seed": ["10"]})]
    assert study.seeds == (10, 11, 12)
    assert {run.image_size for run in runs} == {image_size}
    for data in study.factors["data"]:
        data_runs = [run for run in runs if run.data == data]
        recipes = {dataclasses.replace(run.recipe, learning_rate=1.0) for run in data_runs}
        assert len(data_runs) == len(study.factors["model"])
        assert len(recipes) == 1
        sizes = {(run.train_size, run.validation_size) for run in data_runs}
        assert sizes == {(None, 5000 if data == "cifar10" else 6000)}
    ours = next(run for run in runs if run.stem == "polyphase" and run.position == "rotary")
    model = ours.make_model(image_size=(32, 32), in_channels=3, num_classes=10)
    assert sum(parameter.numel() for parameter in model.parameters()) <= 4_700_000


def test_the_full_scale_follows_the_protocol_of_the_paper():
    study = read_paper_study("full")
    run = study.make_study_model({"data": "mnist", "model": "Performer (absolute)"}, 0).run
    model = (run.image_size, run.dim, run.depth, run.heads, run.dropout, run.stem)
    assert model == (32, 256, 6, 8, 0.1, "patch")
    optimizer = (run.optimizer, run.learning_rate, run.betas, run.batch_size)
    assert optimizer == ("adam", 5e-5, (0.9, 0.98), 22)
    assert (run.gradient_clip, run.patience, run.train_size) == (0.5, 20, None)
    assert study.measure.weights == "best"
    assert sorted(dx for _, dx in study.measure.shifts) == list(range(-8, 9))


def test_the_models_at_full_scale_have_the_numbers_of_parameters_of_the_paper():
    study = read_paper_study("full")
    for model, num_parameters in {
        "AlexNet": 2_472_266,
        "VGG-16": 134_301_514,
        "ResNet-18": 11_181_642,
        "Linformer": 10_261_514,
        "Performer (absolute)": 4_742_986,
        "Performer (strategy 2 exact)": 4_579_562,
        "Performer (squared relu × rotary)": 4_433_050,
    }.items():
        run = study.make_study_model({"data": "cifar10", "model": model}, 0).run
        with torch.device("meta" if run.model == "vgg16" else "cpu"):
            made = run.make_model(image_size=(32, 32), in_channels=3, num_classes=10)
        assert sum(parameter.numel() for parameter in made.parameters()) == num_parameters, model


def test_figure_1_needs_the_performers_on_two_data_sets():
    study = read_paper_study("small")
    levels = select_paper_models(study, "figure1")
    assert levels["data"] == ["mnist", "fashion-mnist"]
    assert len(levels["model"]) == 12
    assert all(model.startswith("Performer") for model in levels["model"])
    assert select_paper_models(study, "table1") == {}


def test_unknown_scales_and_targets_are_errors():
    with pytest.raises(ValueError, match=r"scale must be one of 'full', .*got 'huge'"):
        read_paper_study("huge")
    with pytest.raises(ValueError, match=r"target must be one of .*got 'figure2'"):
        select_paper_models(read_paper_study("small"), "figure2")
