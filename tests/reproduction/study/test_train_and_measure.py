import shutil
from typing import Any

import joblib
import pytest
import torch

from reproduction.study import read_results_table, read_study
from reproduction.study.model_metrics import count_flops_per_image
from reproduction.study.results import load_saved_results
from reproduction.study.train_and_measure import time_training_steps, train_and_measure
from teka.codec import encode
from teka.files import read_json
from teka.models import read_config
from teka.training.trainer import load_data


@pytest.fixture(scope="module")
def results(finished_folder):
    return load_saved_results(finished_folder / "cells.jsonl.gz")


def test_learning_curve_is_equally_spaced_and_ends_at_the_last_step(results):
    for content in results.values():
        assert content["steps"] == 4
        assert [point["step"] for point in content["learning_curve"]] == [2, 3, 4]
        seconds = [point["process_seconds"] for point in content["learning_curve"]]
        assert seconds == sorted(seconds)
        assert content["process_seconds"] == pytest.approx(seconds[-1], abs=1e-3)


def test_only_the_model_without_absolute_positions_is_equivariant(results):
    none, absolute = (
        results["squared-relu--none--seed-0"],
        results["squared-relu--absolute--seed-0"],
    )
    assert none["equivariance_error"] <= 10 * none["noise_floor"]
    assert len(set(none["accuracy_by_shift"])) == 1
    assert absolute["equivariance_error"] > 100 * absolute["noise_floor"]
    for content in (none, absolute):
        assert (
            content["worst_shift_accuracy"]
            <= content["minimum_accuracy"]
            == min(content["accuracy_by_shift"])
        )


def test_result_has_the_conditions_of_its_training(results):
    content = results["softmax--none--seed-3"]
    assert (content["seed"], content["test_images"], content["shifted_images"]) == (3, 50, 20)
    assert content["shifts"] == [[0, 0], [0, 3], [-2, 1]]
    assert content["labels"] == {"kernel": "softmax", "position": "none"}
    assert {"command", "teka", "torch", "hardware", "date"} <= content.keys()


def test_models_are_saved_as_model_files(finished_folder, results):
    for name, content in results.items():
        facts = encode(read_config(finished_folder / "models" / name).facts)
        assert facts["run"]["seed"] == content["seed"]
        assert facts["training"]["validation_accuracy"] == content["learning_curve"][-1]["accuracy"]
        assert 0 <= facts["evaluation"]["accuracy"] <= 1


def test_the_data_folder_is_not_saved(results):
    assert all(content["run"]["data_dir"] is None for content in results.values())


def test_flops_count_matrix_products(tiny_study):
    study = read_study(tiny_study)
    run = study.make_study_model({"kernel": "squared relu", "position": "none"}, 0).run
    dataset = load_data(run)
    model = run.make_model(image_size=dataset.image_size, in_channels=1, num_classes=10).eval()
    flops = count_flops_per_image(model, dataset)
    # FLOPs of the stem: two 3 × 3 convolutions of 64 pixels, 1 to 4 and 4 to 8 channels.
    stem = 2 * 64 * 9 * (1 * 4 + 4 * 8)
    assert stem < flops < 100 * stem


def test_a_run_without_validation_images_is_an_error(tiny_fields, write_study, tmp_path):
    tiny_fields["base"]["validation_size"] = 0
    study = read_study(write_study(tiny_fields))
    study_model = study.make_study_model({"kernel": "softmax", "position": "none"}, 0)
    with pytest.raises(ValueError, match=r"validation_size must be at least 1"):
        train_and_measure(study_model, tmp_path, measure=study.measure)


def test_a_run_with_early_stopping_is_measured_after_every_epoch(
    tiny_fields, write_study, tmp_path
):
    tiny_fields["base"] |= {"epochs": 30, "patience": 1, "learning_rate": 1e-9, "warmup": 0.0}
    study = read_study(write_study(tiny_fields))
    study_model = study.make_study_model({"kernel": "softmax", "position": "none"}, 0)
    content = train_and_measure(study_model, tmp_path, measure=study.measure)
    curve = content["learning_curve"]
    assert isinstance(curve, list)
    steps = [point["step"] for point in curve]
    assert 1 < len(steps) < 30
    assert steps == list(range(4, 4 * len(steps) + 1, 4))
    assert (content["steps"], content["epochs"]) == (steps[-1], len(steps))


def test_record_of_the_attention_heads_is_saved(tiny_fields, write_study, tmp_path):
    tiny_fields["base"] |= {"model": "self_attention", "dim": 6, "heads": 3, "depth": 2}
    for name in ("stem", "periodic"):
        tiny_fields["base"].pop(name)
    tiny_fields["factors"] = {"position": {"quadratic": {"position": "quadratic"}}}
    del tiny_fields["leave_out"], tiny_fields["reference"]
    study = read_study(write_study(tiny_fields))
    (study_model, _) = study.models()
    train_and_measure(study_model, tmp_path, measure=study.measure)
    assert (tmp_path / "heads" / f"{study_model.name}.npz").is_file()


def test_every_model_is_timed_and_the_tables_use_the_seconds(
    finished_folder, tiny_study, tmp_path, monkeypatch
):
    monkeypatch.setattr("reproduction.study.train_and_measure.SECONDS", 0.0)
    shutil.copy(finished_folder / "cells.jsonl.gz", tmp_path)
    study, threads = read_study(tiny_study), []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    path = time_training_steps(study, tmp_path, processes=2, command="study tiny.yaml")
    content: Any = read_json(path)
    assert [model["labels"] for model in content["models"]] == [
        {"kernel": "softmax", "position": "none"},
        {"kernel": "squared relu", "position": "none"},
        {"kernel": "squared relu", "position": "absolute"},
    ]
    for model in content["models"]:
        assert model["seconds"] > 0
    assert content["command"] == "study tiny.yaml"
    assert threads == [max(1, joblib.cpu_count() // 2)]
    seconds = {tuple(model["labels"].values()): model["seconds"] for model in content["models"]}
    results = read_results_table(study, tmp_path)
    expected = [steps * seconds[index[:-1]] for index, steps in results.steps.items()]
    assert results.process_seconds.tolist() == pytest.approx(expected)
