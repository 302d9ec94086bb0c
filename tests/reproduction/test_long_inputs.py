from typing import Any

import pytest
import torch
from torch import Generator

from reproduction import long_inputs
from reproduction.__main__ import run_command as main
from reproduction.long_inputs import IGNORED, SceneModel, draw_scenes
from teka.data import Dataset, Split
from teka.files import read_json


@pytest.fixture
def digits():
    """Return ten images, filled with one brightness for each class."""
    levels = torch.linspace(0.5, 1, 10)
    return Split(levels.view(10, 1, 1, 1).expand(10, 1, 28, 28).clone(), torch.arange(10))


def test_each_pixel_has_the_classes_of_its_digit_and_the_other_digit(digits):
    scenes, labels = draw_scenes(digits, 20, 48, Generator().manual_seed(0))
    assert torch.equal(scenes[:, 0] > 0, labels[:, 0] != IGNORED)
    for scene, (own, other) in zip(scenes[:, 0], labels, strict=True):
        is_digit = own != IGNORED
        assert is_digit.sum() == 2 * 14 * 14
        expected = digits.images[own[is_digit], 0, 0, 0]
        torch.testing.assert_close(scene[is_digit], expected)
        classes, counts = torch.stack([own, other])[:, is_digit].unique(dim=1, return_counts=True)
        if classes.shape[1] == 1:
            assert classes[0] == classes[1]
        else:
            assert torch.equal(classes, classes.flip(0, 1))
            assert counts[0] == counts[1]


@pytest.mark.parametrize("attention", ["linear", "softmax", "none"])
def test_only_attention_carries_information_between_distant_pixels(attention):
    torch.manual_seed(0)
    model = SceneModel(attention).eval()
    scene = torch.rand(1, 1, 32, 32)
    changed = scene.clone()
    changed[..., 0, 0] += 1
    with torch.inference_mode():
        difference = (model(changed) - model(scene))[..., 31, 31].abs().max()
    assert (difference > 0) == (attention != "none")


def test_long_inputs_command_trains_and_measures(digits, tmp_path, monkeypatch):
    dataset = Dataset("digits", digits, digits, digits, num_classes=10)
    monkeypatch.setattr(long_inputs, "load", lambda *_, **__: dataset)
    monkeypatch.setattr(long_inputs, "SIDES", (30, 32, 34))
    monkeypatch.setattr(long_inputs, "TEST_SCENES", 3)
    words = ["long-inputs", "--seed", "10", "--out", str(tmp_path), "--steps", "2", "2", "2"]
    assert main(words) == 0
    result: Any = read_json(tmp_path / "linear-seed-10.json")
    assert result["seconds_per_step"].keys() == {"30", "32", "34"}
    assert 0 <= result["test"]["other_class"] <= 1
    assert result["test"]["scenes"] == 3


@pytest.mark.parametrize(("option", "value"), [("--attention", "sparse"), ("--seed", "-2")])
def test_invalid_options_are_errors(tmp_path, capsys, option, value):
    words = ["long-inputs", "--seed", "0", option, value, "--out", str(tmp_path)]
    assert main(words) == 2
    assert value in capsys.readouterr().err
