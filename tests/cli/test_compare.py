import json
import re

import numpy as np
import pytest

from teka.cli import audit, main

SOURCE = """
import torch
from torch import nn

from teka.audit.adapters import Preprocessing, LoadedModel

class Quarters(nn.Module):
    def __init__(self, sign):
        super().__init__()
        self.sign = sign

    def forward(self, images):
        columns = images.mean(dim=(1, 2)).unflatten(1, (4, -1))
        return self.sign * columns.sum(dim=2) * 50

def right():
    return Quarters(1).eval()

def wrong():
    return Quarters(-1).eval()

def half():
    swapped = Quarters(1).eval()
    return lambda images: swapped(images)[:, [0, 1, 3, 2]]

def training():
    return nn.Sequential(Quarters(1), nn.Dropout(0.9))

def named(names, side=16):
    transform = Preprocessing(1, resize=(side, side))
    model = lambda images: images.flatten(1)[:, :10]
    known = tuple(names), len(names), transform
    return LoadedModel("one", "factory", model, None, *known)

def broken():
    return nn.Conv2d(5, 4, 1).eval()

def up():
    return named("0123456789")

def down():
    return named("9876543210")

def large():
    return named("0123456789", 20)

def last_pixel():
    return lambda images: images[:, 0, :4, -1] * torch.arange(4.0)
"""
OPTIONS = ("--data", "data.npz", "--images", "0", "--max-shift", "1", "--shifts", "dx")


@pytest.fixture
def model_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").write_text(SOURCE)
    images = np.zeros((20, 6, 12), dtype=np.uint8)
    places = np.arange(20) % 4 * 3 + 1
    images[np.arange(20), :, places] = 255
    labels = places // 3
    np.savez(
        tmp_path / "data.npz", images=images, labels=labels, test_images=images, test_labels=labels
    )
    return tmp_path


def test_model_that_is_always_wrong_is_not_compared(model_folder, capsys):
    assert (
        main(["compare", "models.py:right", "models.py:wrong", *OPTIONS, "--json", "out.json"]) == 0
    )
    written = json.loads((model_folder / "out.json").read_text())
    (comparison,) = written["comparisons"]
    assert (comparison["first"], comparison["second"]) == ("models:right", "models:wrong")
    assert comparison["numbers"]["accuracy"]["value"] == 1
    # Only the first model is right on all 20 images, and 20 signs agree with probability 2⁻¹⁹.
    assert comparison["numbers"]["accuracy"]["p_value"] == pytest.approx(1e-4)
    assert [report["name"] for report in written["reports"]] == ["models:right", "models:wrong"]
    # A model that is always wrong is no better than chance, so its difference is not shown.
    assert comparison["invalid"] == ["models:wrong"]
    assert [report["invalid"] for report in written["reports"]] == [[], ["no better than chance"]]
    out = " ".join(capsys.readouterr().out.split())
    assert "no comparison, because only models:right has valid results." in out
    assert "points" not in out


def test_model_that_is_half_right_differs_by_50_points(model_folder, capsys):
    assert main(["compare", "models.py:right", "models.py:half", *OPTIONS]) == 0
    out = capsys.readouterr().out
    assert "models:right minus models:half" in out
    assert "The accuracies differ significantly at 3 of 3 shifts" in out
    assert re.search(r"accuracy at every shift \(points\) +\+50\.0 ", out)


def test_images_are_loaded_once_for_all_models(model_folder, monkeypatch):
    load_images, calls = audit.load_audit_images, []
    monkeypatch.setattr(
        audit, "load_audit_images", lambda *options: calls.append(options) or load_images(*options)
    )
    assert main(["compare", "models.py:right", "models.py:wrong", "models.py:half", *OPTIONS]) == 0
    assert len(calls) == 1


def test_page_names_the_best_model_and_the_invalid_one(model_folder):
    models = ["models.py:half", "models.py:right", "models.py:last_pixel"]
    assert main(["compare", *models, *OPTIONS, "--html", "out.html", "--json", "out.json"]) == 0
    page = (model_folder / "out.html").read_text()
    assert (
        "models:right is significantly better than models:half in accuracy at every shift" in page
    )
    assert "models:last_pixel is not compared, because its results are invalid" in page
    assert "p = 0.003" in page
    written = json.loads((model_folder / "out.json").read_text())
    pairs = [(pair["first"], pair["second"]) for pair in written["comparisons"]]
    names = ["models:half", "models:right", "models:last_pixel"]
    assert pairs == [(names[0], names[1]), (names[0], names[2]), (names[1], names[2])]


def test_examples_are_images_on_which_the_models_disagree(model_folder):
    assert (
        main(["compare", "models.py:right", "models.py:last_pixel", *OPTIONS, "--json", "out.json"])
        == 0
    )
    first, second = json.loads((model_folder / "out.json").read_text())["reports"]
    indices = [example["index"] for example in first["examples"]]
    assert indices == [example["index"] for example in second["examples"]]
    assert len(set(indices)) == len(indices) == 8
    for one, other in zip(first["examples"], second["examples"], strict=True):
        right = [
            [prediction == example["label"] for prediction in example["predictions"]]
            for example in (one, other)
        ]
        assert right[0] != right[1]


def test_examples_of_a_model_in_training_mode_use_evaluation_mode(model_folder):
    assert (
        main(["compare", "models.py:training", "models.py:wrong", *OPTIONS, "--json", "out.json"])
        == 0
    )
    first, _ = json.loads((model_folder / "out.json").read_text())["reports"]
    assert all(example["predictions"] == 3 * [example["label"]] for example in first["examples"])


def test_models_with_equal_names_are_named_as_given(model_folder):
    (model_folder / "other").mkdir()
    (model_folder / "other" / "models.py").write_text(SOURCE)
    models = ["models.py:right", "other/models.py:right", "models.py:wrong"]
    assert main(["compare", *models, *OPTIONS, "--json", "out.json"]) == 0
    reports = json.loads((model_folder / "out.json").read_text())["reports"]
    names = ["models.py:right", "other/models.py:right", "models:wrong"]
    assert (
        [report["name"] for report in reports]
        == [report["model"]["name"] for report in reports]
        == names
    )


def test_bad_input_is_an_error_of_one_line(model_folder, fails):
    assert "two or more" in fails("compare", "models.py:right", *OPTIONS)
    assert "different models" in fails("compare", "models.py:right", "models.py:right", *OPTIONS)
    assert "one of" in fails("compare", "models.py:right", "nothing", *OPTIONS)
    broken = "models:broken: the model raised RuntimeError"
    assert broken in fails("compare", "models.py:right", "models.py:broken", *OPTIONS)
    for other, message in (
        ("large", "models.py:up: (16, 16), models.py:large: (20, 20)"),
        ("down", "the order of the classes of models.py:down must be that of models.py:up"),
    ):
        assert message in fails(
            "compare", "models.py:up", f"models.py:{other}", "--data", "digits", "--images", "5"
        )
    assert "must be the same" in fails(
        "compare", "digits", "models.py:right", "--ignore-labels", *OPTIONS
    )
