from typing import Any

import torch
from torch import nn

from reproduction import all_shifts
from reproduction.__main__ import run_command as main
from reproduction.all_shifts import count_changing_shifts
from teka.files import read_json


class FirstPixelModel(nn.Module):
    """Model that predicts its class from the first pixel."""

    def forward(self, images):
        return torch.stack([0.5 - images[:, 0, 0, 0], images[:, 0, 0, 0] - 0.5], dim=1)


def test_changes_are_counted_over_every_shift():
    images = torch.zeros(3, 1, 4, 5)
    images[1] = 1
    images[2, 0, 1, 1] = 1
    assert count_changing_shifts(FirstPixelModel(), images).tolist() == [0, 0, 1]


def test_an_interrupted_measurement_continues(tmp_path, monkeypatch):
    out = tmp_path / "digits.json"
    monkeypatch.setattr(all_shifts, "BATCH_SIZE", 2)
    command = ["all-shifts", "digits", "--data", "digits", "--out", str(out)]
    assert main([*command, "--images", "2"]) == 0
    assert read_json(out)["images"] == 2
    batches = []

    def count(model, images):
        batches.append(len(images))
        return torch.tensor([0, 3])

    monkeypatch.setattr(all_shifts, "count_changing_shifts", count)
    assert main([*command, "--images", "4"]) == 0
    assert batches == [2]
    result: Any = read_json(out)
    assert result["images"] == 4
    assert result["unchanged_images"] == 3
    assert result["changed_predictions"] == 3
    assert result["shifts"] == 256
    assert result["interval"][0] < 0.75 < result["interval"][1]


def test_an_unknown_model_is_an_error_of_one_line(fails, tmp_path):
    error = fails("all-shifts", "none", "--data", "digits", "--out", tmp_path / "x.json")
    assert "the model must be one of" in error


def test_results_of_another_model_are_an_error(fails, tmp_path):
    out = tmp_path / "digits.json"
    out.write_text('{"model": "other", "num_changes": [1]}')
    error = fails("all-shifts", "digits", "--data", "digits", "--out", out)
    assert "results of the model digits" in error
    error = fails("all-shifts", "digits", "--data", "digits", "--out", tmp_path)
    assert "a file that can be written" in error
