import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from teka.cli import main

SOURCE = """
import threading

import torch
from torch import nn

from teka.audit.adapters import LoadedModel, Preprocessing

def strided():
    torch.manual_seed(0)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)
    return nn.Sequential(nn.Conv2d(1, 6, 3, 2, padding=1), nn.ReLU(), *head).eval()

class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.pos_embed = nn.Parameter(torch.randn(1, 1, 8, 8))

    def forward(self, images):
        return (images + self.pos_embed).relu().flatten(1)[:, :4]

def placed():
    torch.manual_seed(0)
    return Table().eval()

def plain():
    return nn.Sequential(nn.Conv2d(1, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()

def bare():
    transform = Preprocessing(1, (8, 8))
    return LoadedModel("bare", "factory", placed(), num_classes=4, transform=transform)

def locked():
    model = placed()
    model.lock = threading.Lock()
    return model

def no_module():
    return lambda images: images.flatten(1)[:, :4]
"""
OPTIONS = ("--data", "data.npz", "--images", "0", "--max-shift", "2", "--shifts", "axes")


@pytest.fixture
def model_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").write_text(SOURCE)
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8), dtype=np.uint8)
    labels = np.arange(20) % 4
    np.savez(
        tmp_path / "data.npz", images=images, labels=labels, test_images=images, test_labels=labels
    )
    return tmp_path


def test_report_has_the_audits_before_and_after_the_fixes(model_folder, capsys):
    assert (
        main(["fix", "models.py:strided", *OPTIONS, "--html", "out.html", "--json", "out.json"])
        == 0
    )
    written = json.loads((model_folder / "out.json").read_text())
    before, after = written["reports"]
    assert (before["name"], after["name"]) == ("models:strided", "models:strided (fixed)")
    assert written["fix"]["fixed"] == {"circular": ["model.0"], "polyphase": ["model.0"]}
    assert after["model"]["fixed"] == {"circular": 1, "polyphase": 1}
    errors = [
        report["metrics"][0]["numbers"]["maximum_error"]["value"] for report in (before, after)
    ]
    assert errors[0] > 1e-3
    assert errors[1] < 1e-5
    assert written["comparisons"][0]["numbers"]["accuracy"]
    out = " ".join(capsys.readouterr().out.split())
    assert "circular: model.0 polyphase: model.0" in out
    # The untrained model predicts a single class, so its accuracy after the fix means nothing.
    assert "models:strided (fixed) is not compared, because its results are invalid" in out
    assert "accuracy on unshifted" not in out
    assert "teka fix --fix circular" in out
    page = (model_folder / "out.html").read_text()
    assert "Fixed without training: circular in 1 layer and polyphase in 1 layer." in page
    assert "teka fix --fix polyphase" in page


def test_chosen_fixes_are_applied_and_changed_weights_are_saved(model_folder, capsys):
    options = (*OPTIONS, "--max-shift", "1", "--out", "fixed.safetensors")
    assert main(["fix", "models.py:strided", *options, "--fix", "blur"]) == 0
    assert "because the fixes changed layers but no weights" in capsys.readouterr().out
    assert not (model_folder / "fixed.safetensors").exists()
    for model in ("placed", "bare"):
        assert main(["fix", f"models.py:{model}", *options, "--fix", "positions"]) == 0
        (name, table), *more = load_file(model_folder / "fixed.safetensors").items()
        assert (name, more) == ("pos_embed", [])
        assert (table == table.flatten()[0]).all()
        (model_folder / "fixed.safetensors").unlink()


def test_a_model_that_needs_no_fix_is_audited(model_folder, capsys):
    assert main(["fix", "models.py:plain", *OPTIONS, "--json", "out.json"]) == 0
    assert "nothing to fix" in capsys.readouterr().out
    written = json.loads((model_folder / "out.json").read_text())
    assert (len(written["reports"]), written["comparisons"]) == (1, [])


def test_bad_input_is_an_error_of_one_line(model_folder, fails):
    assert "Did you mean 'polyphase'?" in fails(
        "fix", "models.py:strided", *OPTIONS, "--fix", "polyphse"
    )
    torch.jit.script(torch.nn.Flatten()).save(model_folder / "program.pt")
    for model in ("models.py:no_module", "program.pt"):
        error = fails("fix", model, "--trust", *OPTIONS)
        assert "a torch.nn.Module, whose layers can be changed" in error
    assert "a module that can be copied (" in fails("fix", "models.py:locked", *OPTIONS)
    error = fails("fix", "models.py:bare", *OPTIONS, "--json", "here", "--out", "here")
    assert "out must be another file than that of --json, got 'here'" in error
