import dataclasses

import pytest
import torch
import yaml

from reproduction.horn2021 import read_reproduction, reproduce, reproduction
from reproduction.horn2021.papers import paper_row, table1
from reproduction.horn2021.reproduction import target_levels, write_reproduction
from reproduction.study import read_study
from teka.files import read_json
from tests.reproduction.horn2021.reproduction_cells import photograph_cell, reproduction_cell

MODEL = "Performer (absolute)"
TINY = {
    "name": "tiny",
    "base": {
        "data": "digits",
        "image_size": 8,
        "train_size": 48,
        "validation_size": 20,
        "epochs": 1,
    },
    "factors": {
        "data": {"mnist": {}, "cifar10": {}},
        "model": {
            "Linformer": {
                "model": "linformer",
                "tokens": "image",
                "dim": 8,
                "depth": 1,
                "heads": 2,
            },
            "Performer (absolute)": {"position": "absolute", "dim": 8, "depth": 2, "heads": 2},
        },
    },
    "measure": {
        "weights": "best",
        "mode": "lossless",
        "shifts": [[0, 1]],
        "classes": [1],
        "curve_points": 2,
    },
}


@pytest.mark.parametrize("scale", ["small", "full"])
def test_every_model_of_the_paper_is_there_on_every_data_set(scale):
    study = read_reproduction(scale)
    assert list(study.factors["data"]) == ["mnist", "fashion-mnist", "cifar10"]
    assert {paper_row(model) for model in study.factors["model"]} >= set(table1())
    baselines = {"alexnet", "vgg16", "resnet18", "linformer", "routing_transformer"}
    assert {study.make_cell(labels, 0).run.model for labels in study.combinations()} == {
        "performer",
        *baselines,
    }
    assert len(study.seeds) >= 3


@pytest.mark.parametrize(("scale", "image_size"), [("full-cpu", None), ("one-stem", 32)])
def test_every_model_at_full_resolution_has_one_recipe_and_seeds_that_chose_nothing(
    scale, image_size
):
    study = read_reproduction(scale)
    runs = [study.make_cell(labels, 10).run for labels in study.combinations()]
    assert study.seeds == (10, 11, 12)
    assert {run.image_size for run in runs} == {image_size}
    for data in study.factors["data"]:
        of_data = [run for run in runs if run.data == data]
        recipes = {dataclasses.replace(run.recipe, learning_rate=1.0) for run in of_data}
        assert len(of_data) == len(study.factors["model"])
        assert len(recipes) == 1
        assert {(run.train_size, run.validation_size) for run in of_data} == {
            (None, 5000 if data == "cifar10" else 6000)
        }
    ours = next(run for run in runs if run.stem == "polyphase" and run.position == "rotary")
    made = ours.make_model(image_size=(32, 32), in_channels=3, num_classes=10)
    assert sum(parameter.numel() for parameter in made.parameters()) <= 4_700_000


def test_the_full_scale_follows_the_protocol():
    study = read_reproduction("full")
    run = study.make_cell({"data": "mnist", "model": "Performer (absolute)"}, 0).run
    assert (run.image_size, run.dim, run.depth, run.heads, run.dropout, run.stem) == (
        32,
        256,
        6,
        8,
        0.1,
        "patch",
    )
    assert (run.optimizer, run.learning_rate, run.betas, run.batch_size) == (
        "adam",
        5e-5,
        (0.9, 0.98),
        22,
    )
    assert (run.gradient_clip, run.patience, run.train_size, run.validation_size) == (
        0.5,
        20,
        None,
        None,
    )
    assert study.measure.weights == "best"
    assert sorted(shift[1] for shift in study.measure.shifts) == list(range(-8, 9))


def test_models_at_full_scale_have_the_papers_number_of_parameters_and_ours_no_more():
    study = read_reproduction("full")
    for model, parameters in {
        "AlexNet": 2_472_266,
        "VGG-16": 134_301_514,
        "ResNet-18": 11_181_642,
        "Linformer": 10_261_514,
        "Performer (absolute)": 4_742_986,
        "Performer (strategy 2 exact)": 4_579_562,
        "Performer (squared relu × rotary)": 4_433_050,
    }.items():
        run = study.make_cell({"data": "cifar10", "model": model}, 0).run
        with torch.device("meta" if run.model == "vgg16" else "cpu"):
            made = run.make_model(image_size=(32, 32), in_channels=3, num_classes=10)
        assert sum(parameter.numel() for parameter in made.parameters()) == parameters, model


def test_the_figure_needs_the_performers_on_the_two_data_sets_that_the_paper_shows():
    levels = target_levels(read_reproduction("small"), "figure1")
    assert levels["data"] == ["mnist", "fashion-mnist"]
    assert all(model.startswith("Performer") for model in levels["model"])
    assert len(levels["model"]) == 12


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A reproduction of two small models on digits."""
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY, sort_keys=False), encoding="utf-8")
    study = read_study(path)
    monkeypatch.setattr(reproduction, "read_reproduction", lambda scale: study)
    return study


def test_the_table_finds_what_the_figure_has_trained(tiny, tmp_path):
    out = tmp_path / "out"
    reproduce("figure1", out, command="python -m reproduction reproduce figure1")
    (first,) = (out / "cells").iterdir()
    assert first.name == "mnist--performer-absolute--seed-0.json"
    reproduce(
        "table1", out, only={"data": ["mnist"]}, command="python -m reproduction reproduce table1"
    )
    commands = {path.name: read_json(path)["command"] for path in (out / "cells").iterdir()}
    assert commands == {
        first.name: "python -m reproduction reproduce figure1",
        "mnist--linformer--seed-0.json": "python -m reproduction reproduce table1",
    }


@pytest.mark.parametrize(
    ("target", "only", "message"),
    [
        pytest.param("figure2", {}, r"target must be .*got 'figure2'", id="an unknown target"),
        pytest.param(
            "figure1",
            {"model": ["Linformer"]},
            r"only model of figure1 must be .*got 'Linformer'",
            id="no Performer",
        ),
        pytest.param(
            "figure1", {"model": ["GPT"]}, r"only model must be .*got 'GPT'", id="an unknown model"
        ),
        pytest.param(
            "table1", {"seed": ["9"]}, r"only seed must be .*got '9'", id="an unknown seed"
        ),
    ],
)
def test_what_cannot_be_reproduced_is_an_error(tiny, tmp_path, target, only, message):
    with pytest.raises(ValueError, match=message):
        reproduce(target, tmp_path / "out", only=only)


def test_an_unknown_scale_is_an_error():
    with pytest.raises(
        ValueError,
        match=r"scale must be one of 'full', 'full-cpu', 'one-stem', 'small'.*got 'huge'",
    ):
        read_reproduction("huge")


def test_the_table_is_written_three_times_and_the_figure_in_three_forms(study_folder, study_cell):
    cells = [reproduction_cell(study_cell, MODEL, seed=seed) for seed in (0, 1)]
    folder = study_folder(*cells, photograph_cell(study_cell, MODEL))
    written = write_reproduction(folder, description="A small one.", planned=9)
    assert [path.name for path in written.files] == [
        "table1.md", "table1.csv", "reproduction.html", "at_a_glance.png", "figure1.png", "figure1_all_classes.png"
    ]  # fmt: skip
    assert all(path.is_file() for path in written.files)
    text, _, page = (path.read_text(encoding="utf-8") for path in written.files[:3])
    for part in ("91.0 ± 12.7", "3 of 9 models trained, 6 not there yet", "two cores"):
        assert part in page
        assert part in text
    assert part in written.terminal
    assert "A small one." in page
    assert page.count("data:image/png;base64,") == 3
    assert 'src="http' not in page
    assert "python -m reproduction study study.yaml" in page


def test_without_shifted_images_there_is_no_figure(study_folder, study_cell):
    written = write_reproduction(study_folder(photograph_cell(study_cell, MODEL)))
    assert len(written.files) == 3
    assert "under shifts" not in written.terminal


def test_without_any_result_nothing_is_written(tmp_path):
    with pytest.raises(ValueError, match="a study's folder"):
        write_reproduction(tmp_path)
    assert list(tmp_path.iterdir()) == []
