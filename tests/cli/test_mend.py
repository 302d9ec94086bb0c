import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.torch import load_file

from teka.cli import main
from teka.cli.mend import cost
from tests.audit.page.test_compared import difference, make_pair

SOURCE = """
import threading

import torch
from torch import nn

from teka.audit.adapters import Subject

def strided():
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 6, 3, 2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)
    return nn.Sequential(*layers).eval()

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
    return Subject("bare", "factory", placed(), input_size=(8, 8), in_channels=1, num_classes=4)

def locked():
    model = placed()
    model.lock = threading.Lock()
    return model

def no_module():
    return lambda images: images.flatten(1)[:, :4]
"""
OPTIONS = ("--data", "data.npz", "--images", "0", "--max-shift", "2", "--shifts", "axes")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").write_text(SOURCE)
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8), dtype=np.uint8)
    labels = np.arange(20) % 4
    np.savez(
        tmp_path / "data.npz", images=images, labels=labels, test_images=images, test_labels=labels
    )
    return tmp_path


def test_it_audits_before_and_after_and_says_what_was_done_and_what_it_costs(here, capsys):
    assert (
        main(["mend", "models.py:strided", *OPTIONS, "--html", "out.html", "--json", "out.json"])
        == 0
    )
    written = json.loads((here / "out.json").read_text())
    before, after = written["reports"]
    assert (before["name"], after["name"]) == ("models:strided", "models:strided, mended")
    assert written["mending"]["fixed"] == {"circular": ["model.0"], "polyphase": ["model.0"]}
    assert after["model"]["mended"] == {"circular": 1, "polyphase": 1}
    errors = [one["metrics"][0]["numbers"]["maximum_error"]["value"] for one in (before, after)]
    assert errors[0] > 1e-3
    assert errors[1] < 1e-5
    assert written["comparisons"][0]["numbers"]["accuracy"]
    out = " ".join(capsys.readouterr().out.split())
    assert "circular: model.0 polyphase: model.0" in out
    # Without training the model predicts one class, so that what its accuracy becomes says nothing.
    assert "models:strided, mended is not compared, because its results are invalid" in out
    assert "accuracy unshifted" not in out
    assert "teka mend --fix circular" in out
    page = (here / "out.html").read_text()
    assert "Mended without training: circular in 1 layer and polyphase in 1 layer." in page
    assert "teka mend --fix polyphase" in page


def test_chosen_fixes_are_made_and_weights_are_written_where_a_fix_changes_them(here, capsys):
    options = (*OPTIONS, "--max-shift", "1", "--out", "mended.safetensors")
    assert main(["mend", "models.py:strided", *options, "--fix", "blur"]) == 0
    assert "not written: weights, for no fix changed any" in capsys.readouterr().out
    assert not (here / "mended.safetensors").exists()
    for model in ("placed", "bare"):
        assert main(["mend", f"models.py:{model}", *options, "--fix", "positions"]) == 0
        (name, table), *more = load_file(here / "mended.safetensors").items()
        assert (name, more) == ("pos_embed", [])
        assert (table == table.flatten()[0]).all()
        (here / "mended.safetensors").unlink()


def test_a_model_with_nothing_to_mend_is_left_and_the_audit_written(here, capsys):
    assert main(["mend", "models.py:plain", *OPTIONS, "--json", "out.json"]) == 0
    assert "nothing to mend" in capsys.readouterr().out
    written = json.loads((here / "out.json").read_text())
    assert (len(written["reports"]), written["comparisons"]) == (1, [])


@pytest.mark.parametrize(
    ("ends", "p_value", "words"),
    [
        (
            (0.03, 0.01, 0.05),
            0.001,
            "It loses accuracy unshifted: −3.0 points (−5.0 to −1.0, p = 0.001).",
        ),
        (
            (-0.03, -0.05, -0.01),
            0.001,
            "It gains accuracy unshifted: +3.0 points (+1.0 to +5.0, p = 0.001).",
        ),
        (
            (0.01, -0.01, 0.03),
            0.3,
            "not told apart from that before: −1.0 points (−3.0 to +1.0, p = 0.300).",
        ),
    ],
)
def test_a_loss_is_called_a_loss_and_what_is_not_told_apart_is_said_to_be(ends, p_value, words):
    pair = make_pair(0, 1, 0.1, 0.5)
    assert "is not known" in cost([pair])
    pair.comparison.numbers["accuracy"] = replace(
        difference(0.0, p_value), value=ends[0], lower=ends[1], upper=ends[2]
    )
    assert cost([pair]).endswith(words)


def test_bad_input_is_one_line(here, fails):
    assert "Did you mean 'polyphase'?" in fails(
        "mend", "models.py:strided", *OPTIONS, "--fix", "polyphse"
    )
    assert "a torch.nn.Module" in fails("mend", "models.py:no_module", *OPTIONS)
    assert "a module that can be copied (" in fails("mend", "models.py:locked", *OPTIONS)
    said = fails("mend", "models.py:bare", *OPTIONS, "--json", "here", "--out", "here")
    assert "out must be another file than that of --json, got 'here'" in said
