import os
import shutil

import pytest
import torch

from reproduction.study import pack_study, read_study
from reproduction.study.measure import flops_per_image
from reproduction.study.run_cell import repeat_cell, run_cell, share_of_cores, torch_threads
from teka.codec import encode
from teka.files import read_json, write_json
from teka.models import read_config
from teka.training.train import load_data

NAME = "squared-relu--none--seed-3"


@pytest.fixture(scope="module")
def cells(finished):
    return {path.stem: read_json(path) for path in (finished / "cells").glob("*.json")}


def test_the_learning_curve_has_its_points_at_equal_distances_and_ends_with_the_last_step(cells):
    for content in cells.values():
        assert content["steps"] == 4
        assert [point["step"] for point in content["learning_curve"]] == [2, 3, 4]
        seconds = [point["process_seconds"] for point in content["learning_curve"]]
        assert seconds == sorted(seconds)
        assert content["process_seconds"] == pytest.approx(seconds[-1], abs=1e-3)


def test_a_model_without_positions_answers_alike_at_every_shift_and_an_absolute_one_does_not(cells):
    none, absolute = cells["squared-relu--none--seed-0"], cells["squared-relu--absolute--seed-0"]
    assert none["equivariance_error"] <= 10 * none["noise_floor"]
    assert len(set(none["accuracy_by_shift"])) == 1
    assert absolute["equivariance_error"] > 100 * absolute["noise_floor"]
    for content in (none, absolute):
        assert (
            content["worst_shift_accuracy"]
            <= content["minimum_accuracy"]
            == min(content["accuracy_by_shift"])
        )


def test_a_cell_says_what_it_was_measured_on(cells):
    content = cells["softmax--none--seed-3"]
    assert (content["seed"], content["test_images"], content["shifted_images"]) == (3, 50, 20)
    assert content["shifts"] == [[0, 0], [0, 3], [-2, 1]]
    assert content["labels"] == {"kernel": "softmax", "position": "none"}
    assert {"command", "teka", "torch", "hardware", "date"} <= content.keys()


def test_a_study_that_saves_its_models_has_a_model_file_of_each_cell(finished, cells):
    for name, content in cells.items():
        facts = encode(read_config(finished / "models" / name).facts)
        assert facts["run"]["seed"] == content["seed"]
        assert facts["training"]["validation_accuracy"] == content["learning_curve"][-1]["accuracy"]
        assert 0 <= facts["evaluation"]["accuracy"] <= 1


def test_the_data_folder_is_no_part_of_a_cell(cells):
    assert all(content["run"]["data_dir"] is None for content in cells.values())


def test_the_floating_point_operations_are_those_of_the_products(tiny_study):
    study = read_study(tiny_study)
    run = study.make_cell({"kernel": "squared relu", "position": "none"}, 0).run
    dataset = load_data(run)
    model = run.make_model(image_size=dataset.image_size, in_channels=1, num_classes=10).eval()
    forward, training = flops_per_image(model, dataset)
    # The stem alone, by hand: two 3 × 3 convolutions of 64 cells, 1 to 4 and 4 to 8 channels.
    stem = 2 * 64 * 9 * (1 * 4 + 4 * 8)
    assert stem < forward < training < 4 * forward
    assert all(parameter.grad is None for parameter in model.parameters())


def test_without_held_out_images_there_is_no_curve_and_that_is_an_error(
    tiny_fields, write, tmp_path
):
    tiny_fields["base"]["validation_size"] = 0
    study = read_study(write(tiny_fields))
    cell = study.make_cell({"kernel": "softmax", "position": "none"}, 0)
    with pytest.raises(ValueError, match=r"validation_size must be 1 or more.*got 0"):
        run_cell(cell, study.measure, tmp_path / "cells", data_dir=None, command="")


def test_a_run_that_may_stop_early_has_a_point_of_the_curve_after_every_epoch(
    tiny_fields, write, tmp_path
):
    tiny_fields["base"] |= {"epochs": 30, "patience": 1, "learning_rate": 1e-9, "warmup": 0.0}
    study = read_study(write(tiny_fields))
    cell = study.make_cell({"kernel": "softmax", "position": "none"}, 0)
    run_cell(cell, study.measure, tmp_path / "cells", data_dir=None, command="")
    content = read_json(tmp_path / "cells" / f"{cell.name}.json")
    curve = content["learning_curve"]
    assert isinstance(curve, list)
    steps = [point["step"] for point in curve]
    assert 1 < len(steps) < 30
    assert steps == list(range(4, 4 * len(steps) + 1, 4))
    assert (content["steps"], content["epochs"]) == (steps[-1], len(steps))


def test_a_cell_of_a_self_attention_network_keeps_its_heads(tiny_fields, write, tmp_path):
    tiny_fields["base"] |= {"model": "self_attention", "dim": 6, "heads": 3, "depth": 2}
    for name in ("stem", "periodic"):
        tiny_fields["base"].pop(name)
    tiny_fields["factors"] = {
        "encoding": {name: {"encoding": name} for name in ("quadratic", "table")}
    }
    del tiny_fields["leave_out"], tiny_fields["reference"]
    study = read_study(write(tiny_fields))
    for encoding, shape in (("quadratic", "center"), ("table", "mean")):
        cell = study.make_cell({"encoding": encoding}, 0)
        run_cell(cell, study.measure, tmp_path / "cells", data_dir=None, command="")
        heads = read_json(tmp_path / "cells" / f"{cell.name}.json")["heads"]
        assert isinstance(heads, dict)
        assert heads.keys() == {"start", "end", "chance"}
        assert [len(layer[shape]) for layer in heads["end"]] == [3, 3]
        assert heads["start"][0][shape] != heads["end"][0][shape]
        assert 0 < heads["chance"][0]["window_3"] < 3


def test_training_a_cell_again_reproduces_its_numbers_loose_or_packed(
    finished, tiny_study, tmp_path
):
    folder = shutil.copytree(finished, tmp_path / "packed")
    pack_study(folder)
    stored, repeated = repeat_cell(read_study(tiny_study), folder, NAME)
    assert stored == repeated
    assert stored["accuracy"] == read_json(finished / "cells" / f"{NAME}.json")["accuracy"]


def test_a_number_that_is_not_the_cell_s_is_seen(finished, tiny_study, tmp_path):
    folder = tmp_path / "changed"
    shutil.copytree(finished, folder)
    path = folder / "cells" / f"{NAME}.json"
    write_json(path, {**read_json(path), "accuracy": 0.123})
    stored, repeated = repeat_cell(read_study(tiny_study), folder, NAME)
    assert stored != repeated
    assert stored["accuracy"] == 0.123
    assert read_json(path)["accuracy"] == 0.123  # the file stays as it was


def test_a_cell_that_is_not_there_is_an_error_that_offers_the_nearest(finished, tiny_study):
    with pytest.raises(ValueError, match=f"Did you mean '{NAME}'"):
        repeat_cell(read_study(tiny_study), finished, "squared-relu--none--seed-4")


def test_processes_share_the_cores_they_were_given_and_each_has_a_thread(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(7), raising=False)
    assert [share_of_cores(processes) for processes in (1, 3, 8)] == [7, 2, 1]


def test_threads_are_what_they_were_after_an_error():
    before, within = torch.get_num_threads(), 0
    with pytest.raises(KeyError), torch_threads(before + 1):  # noqa: PT012
        within = torch.get_num_threads()
        raise KeyError
    assert (within, torch.get_num_threads()) == (before + 1, before)
