import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from teka.audit.report import AuditReport
from teka.cli import main
from teka.cli.audit_options import ResultOptions
from tests.audit.adapters.tiny_vit import write_vit

SOURCE = """
import torch
from torch import nn

class Place(nn.Module):
    # Predicts the quarter with the brightest column, which a shift by a quarter changes.
    def forward(self, images):
        columns = images.mean(dim=(1, 2))
        quarters = columns.unflatten(1, (4, -1)).sum(dim=2)
        return quarters * 50

class Mean(nn.Module):
    # Predicts from the mean, which no circular shift changes.
    def forward(self, images):
        mean = images.mean(dim=(1, 2, 3))
        return torch.stack([mean, 0.5 - mean, mean * 0, mean * 0], dim=1)

def place():
    return Place().eval()

def mean():
    return Mean().eval()

def training():
    return Place()

def edge():
    # NaN if the last column is lit.
    return lambda images: Place()(images).where(images[:, 0, 0, -1:] == 0, torch.nan)

def several():
    # The quarter, and features that are equal for all images.
    return lambda images: {"constant": images[:, 0, 0, :1] * 0, "place": Place()(images)}

def layered():
    model = Mean()
    model.head = nn.Identity()
    return model.eval()

def raises():
    class Raises(nn.Module):
        def forward(self, images):
            raise KeyError("weights")
    return Raises().eval()
"""
FAST = ("--skip", "noise", "layers", "--images", "6")


@pytest.fixture
def model_folder(tmp_path, monkeypatch):
    """Return a folder with models and images whose class is the quarter with a bright column."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").write_text(SOURCE)
    images = np.zeros((8, 8, 12), dtype=np.uint8)
    places = np.arange(8) % 4 * 3 + 1
    images[np.arange(8), :, places] = 255
    labels = places // 3
    np.savez(
        tmp_path / "data.npz", images=images, labels=labels, test_images=images, test_labels=labels
    )
    return tmp_path


def test_audit_saves_the_expected_agreement_of_a_shift_sensitive_model(model_folder, capsys):
    arguments = [
        "audit",
        "models.py:place",
        "--data",
        "data.npz",
        "--max-shift",
        "3",
        "--shifts",
        "dx",
    ]
    assert main([*arguments, *FAST, "--json", "out/place.json", "--seed", "2"]) == 0
    report = AuditReport.read(model_folder / "out" / "place.json")
    assert report.number("accuracy") == 1
    # The bright column stays within its quarter for shifts by −1 to 1.
    shifts = [step for _, step in report.metrics[0].shifts]
    assert sorted(shifts) == list(range(-3, 4))
    agreement = dict(zip(shifts, report.metrics[0].curves["agreement"].values, strict=True))
    assert [agreement[step] for step in range(-3, 4)] == [0, 0, 1, 1, 1, 0, 0]
    assert report.number("consistency") == pytest.approx(2 / 6)
    assert report.model["kind"] == "factory"
    assert report.data["name"] == "data.npz"
    assert str(report.provenance["command"]).startswith("teka audit models.py:place")
    out = capsys.readouterr().out
    assert "6 of 8 test images of data.npz, 8 × 12" in out
    assert "written: out/place.json" in out


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("place", "not passed: consistency is"),
        # A model that always predicts the same class is consistent but useless.
        ("mean", "not passed: the results are invalid ("),
    ],
)
def test_exit_code_is_1_below_the_threshold(model_folder, capsys, model, message):
    arguments = [
        "audit",
        f"models.py:{model}",
        "--data",
        "data.npz",
        "--max-shift",
        "2",
        "--shifts",
        "axes",
    ]
    assert main([*arguments, *FAST, "--fail-under", "0.95"]) == 1
    assert message in capsys.readouterr().out


def test_threshold_fails_if_a_mode_cannot_be_measured(model_folder, fails):
    arguments = (
        "audit",
        "models.py:edge",
        "--data",
        "data.npz",
        "--max-shift",
        "1",
        "--shifts",
        "dx",
        *FAST,
    )
    assert "the threshold needs every mode, but these failed: mode circular (the output" in fails(
        *arguments, "--fail-under", "0"
    )


def test_good_model_passes_the_threshold(capsys):
    arguments = ["audit", "digits", "--data", "digits", "--max-shift", "1", *FAST[:-1], "40"]
    assert main([*arguments, "--fail-under", "0.9", "--metric", "worst_shift_accuracy"]) == 0
    assert "passed: worst_shift_accuracy is" in capsys.readouterr().out


def test_output_name_selects_one_of_several_outputs(model_folder, fails):
    arguments = (
        "audit",
        "models.py:several",
        "--data",
        "data.npz",
        "--max-shift",
        "3",
        "--shifts",
        "dx",
        *FAST,
    )
    assert main([*arguments, "--output-name", "place", "--json", "a.json"]) == 0
    assert AuditReport.read("a.json").metrics[0].numbers["consistency"].value == pytest.approx(
        2 / 6
    )
    assert "is a dict of 'constant' (torch.float32 of shape" in fails(*arguments)
    message = fails(*arguments, "--output-name", "plac")
    start = "teka audit: error: output_name must be one of 'constant', 'place', got 'plac'."
    assert message.startswith(start)
    assert "Did you mean 'place'" in message


def test_mode_accepts_several_values_or_can_be_repeated(model_folder, capsys):
    arguments = [
        "audit",
        "models.py:mean",
        "--data",
        "data.npz",
        "--max-shift",
        "1",
        *FAST,
        "--json",
        "out.json",
    ]
    assert main([*arguments, "--mode", "circular", "zero", "--mode", "reflect"]) == 0
    report = AuditReport.read(model_folder / "out.json")
    assert [metrics.movement.mode for metrics in report.metrics] == ["circular", "zero", "reflect"]


def test_transformers_folder_is_audited_on_a_folder_of_pictures(tmp_path, capsys):
    write_vit(tmp_path / "vit", ("left", "right", "none"))
    random = np.random.default_rng(0)
    for label in ("left", "right"):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for number in range(5):
            levels = random.integers(0, 256, (17, 13 + number, 3), dtype=np.uint8)
            Image.fromarray(levels).save(tmp_path / "pictures" / label / f"{number}.png")
    names = {"json": "out.json", "html": "out.html", "markdown": "out.md", "badge": "out.svg"}
    files = [
        word for option, name in names.items() for word in (f"--{option}", str(tmp_path / name))
    ]
    arguments = [
        "audit",
        str(tmp_path / "vit"),
        "--data",
        str(tmp_path / "pictures"),
        "--max-shift",
        "2",
    ]
    assert main([*arguments, "--images", "2", "--skip", "noise", *files]) == 0
    report = AuditReport.read(tmp_path / "out.json")
    assert report.data["class_names"] == ["left", "right", "none"]
    assert report.data["image_shape"] == [1, 12, 12]
    assert report.layers is not None
    assert "<html" in (tmp_path / "out.html").read_text()
    assert "| circular (invalid) |" in (tmp_path / "out.md").read_text()
    assert "shift-consistency" in (tmp_path / "out.svg").read_text()


def test_debug_shows_tracebacks(model_folder, capsys):
    common = ["--data", "data.npz", "--images", "6", "--max-shift", "1", "--skip", "layers"]
    too_small = ["models.py:place", "--protocol", "zhang2019"]
    for arguments, code in ((too_small, 0), (["models.py:raises"], 2)):
        shows_traceback = []
        for debug in ([], ["--debug"]):
            assert main(["audit", *arguments, *common, *debug]) == code
            shows_traceback.append("Traceback (most recent call last)" in capsys.readouterr().err)
        assert shows_traceback == [False, True]


def test_the_main_result_is_printed_before_the_layers(model_folder, capsys):
    options = ["--data", "data.npz", "--images", "20", "--max-shift", "1"]
    assert main(["audit", "models.py:layered", *options]) == 0
    main_result, _, details = capsys.readouterr().out.partition("Explaining the result")
    assert "These results are invalid" in main_result
    assert "layer breaks equivariance" not in main_result
    assert "layer breaks equivariance" in details
    assert "invalid" not in details


def test_skipped_stages_are_not_announced(model_folder, capsys):
    assert main(["audit", "models.py:place", "--data", "data.npz", "--max-shift", "1", *FAST]) == 0
    out = capsys.readouterr().out
    assert "Explaining the result" not in out
    assert not out.endswith("\n\n")


def test_resumed_audit_gives_the_same_metrics(model_folder, capsys):
    arguments = [
        "audit",
        "models.py:place",
        "--data",
        "data.npz",
        "--max-shift",
        "2",
        *FAST,
        "--resume",
        "state",
    ]
    assert main([*arguments, "--json", "first.json"]) == 0
    assert (model_folder / "state" / "circular.safetensors").is_file()
    assert main([*arguments, "--json", "second.json"]) == 0
    first, second = (
        json.loads((model_folder / name).read_text()) for name in ("first.json", "second.json")
    )
    assert first["metrics"] == second["metrics"]


def test_failed_audit_creates_no_folders(model_folder, fails):
    files = [
        text
        for option in ("html", "json", "markdown", "badge")
        for text in (f"--{option}", f"new/{option}/file")
    ]
    for model in ("models.py:missing", "models.py:raises"):
        fails("audit", model, "--data", "data.npz", *FAST, *files, "--resume", "new/state")
    assert not (model_folder / "new").exists()


def test_bad_input_is_an_error_of_one_line_before_the_audit(model_folder, fails):
    (model_folder / "taken").mkdir()
    good = ("audit", "models.py:place", "--data", "data.npz")
    assert "one of" in fails("audit", "nothing", "--data", "data.npz")
    assert "Did you mean 'place'" in fails("audit", "models.py:plaice", "--data", "data.npz")
    assert "Did you mean 'digits'" in fails("audit", "digits", "--data", "digitz")
    assert 'Did you mean "circular"' in fails(*good, "--mode", "circulr", *FAST)
    assert "--metric" in fails(*good, "--metric", "flip_rate")
    assert "fail_under" in fails(*good, "--fail-under", "95")
    assert 'Did you mean "noise"' in fails(*good, "--skip", "noises")
    assert "protocol" in fails(*good, "--protocol", "horn2022")
    assert "a directory" in fails(*good, "--html", model_folder / "taken")
    assert "got -1" in fails(*good, "--images", "-1")
    assert "a multiple of the step" in fails(*good, "--max-shift", "1", "--step", "0.3")
    assert "device" in fails(*good, "--device", "warp")
    layered = ("audit", "models.py:layered", *good[2:])
    message = (
        "layers must be one of 'model', 'model.head', got 'model.hed'. Did you mean 'model.head'"
    )
    assert message in fails(*layered, "--layers", "model.hed")
    assert "KeyError" in fails(
        "audit", "models.py:raises", "--data", "data.npz", *FAST, "--max-shift", "1"
    )


@pytest.mark.skipif(not Path("/dev/fd").is_dir(), reason="needs a system with /dev/fd")
def test_pipe_is_accepted_as_an_output_file():
    reader, writer = os.pipe()
    try:
        ResultOptions().check_output_files((), badge=f"/dev/fd/{writer}")
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("overwritten", ["code.py", "images.npz"])
@pytest.mark.parametrize("argument", ["out", "html", "json", "markdown", "badge"])
def test_output_file_that_is_the_model_or_the_data_is_an_error(
    argument: str, overwritten: str, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path(overwritten).write_text("kept")
    Path("link").symlink_to(overwritten)
    for inputs in (("code.py:make", "images.npz"), ("digits", "code.py", "images.npz")):
        for path in (overwritten, f"./{overwritten}", "link"):
            with pytest.raises(
                ValueError, match=f"{argument} must be another file than that of a model or"
            ):
                ResultOptions().check_output_files(inputs, **{argument: path})
    assert Path(overwritten).read_text() == "kept"
