import json
import re
import shutil

import pytest
import torch

from teka.audit import axis_shifts
from teka.cli import main, shift
from teka.models import Performer
from teka.training import restore


def read_reports(folder):
    return json.loads((folder / "report.json").read_text())["reports"]


def accuracy_at(report, shift):
    (metrics,) = report["metrics"]
    index = [tuple(steps) for steps in metrics["shifts"]].index(shift)
    return metrics["curves"]["accuracy"]["values"][index]


def test_shift_saves_the_report_and_the_page(trained_folder, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["shift", str(trained_folder), "--max-shift", "2", "--out", str(out)]) == 0
    assert {path.name for path in out.iterdir()} == {"report.json", "report.html"}
    page = (out / "report.html").read_text(encoding="utf-8")
    assert re.search(r"Shift audit on \d+ test images of .*few.npz<", page)
    (report,) = read_reports(out)
    trained = restore(trained_folder)
    assert report["name"] == trained.name
    assert report["provenance"]["command"].startswith("teka shift")
    shifts = [tuple(steps) for steps in report["metrics"][0]["shifts"]]
    assert len(shifts) == 9
    assert set(shifts) == set(axis_shifts(2))
    assert report["metrics"][0]["num_images"] == len(trained.dataset.test)


def test_the_printed_result_is_short(trained_folder, tmp_path, capsys):
    copy = shutil.copytree(trained_folder, tmp_path / "copy")
    assert main(["shift", str(trained_folder), str(copy), "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert all(head in out for head in ("unshifted", "every shift", "consistency"))
    assert "95 % interval" in " ".join(out.split())
    assert " minus " not in out
    assert len(out.splitlines()) < 40
    (caveat, *_) = read_reports(tmp_path / "out")[0]["caveats"]
    assert caveat["message"] in " ".join(out.split())  # such as the reason of "invalid"


def test_accuracy_is_that_of_the_shifted_images(trained_folder, tmp_path):
    options = ["--mode", "circular", "--max-shift", "2", "--out", str(tmp_path)]
    assert main(["shift", str(trained_folder), *options]) == 0
    trained = restore(trained_folder)
    test = trained.dataset.test.to_intensities()
    with torch.inference_mode():
        logits = trained.model(torch.roll(test.images, (0, 2), dims=(2, 3)))
    accuracy = (logits.argmax(dim=1) == test.labels).double().mean().item()
    assert accuracy_at(read_reports(tmp_path)[0], (0, 2)) == pytest.approx(accuracy)


def test_shifts_fill_with_background_by_default(trained_folder, tmp_path):
    assert main(["shift", str(trained_folder), "--max-shift", "6", "--out", str(tmp_path)]) == 0
    trained = restore(trained_folder)
    test = trained.dataset.test.to_intensities()
    shifted = torch.zeros_like(test.images)
    shifted[..., 6:] = test.images[..., :-6]
    with torch.inference_mode():
        accuracy = (trained.model(shifted).argmax(dim=1) == test.labels).double().mean().item()
    assert accuracy_at(read_reports(tmp_path)[0], (0, 6)) == pytest.approx(accuracy)


def test_a_canvas_allows_larger_shifts(trained_folder, tmp_path):
    options = ["--max-shift", "5", "--mode", "canvas", "--out", str(tmp_path)]
    assert main(["shift", str(trained_folder), *options]) == 0
    (report,) = read_reports(tmp_path)
    movement = report["metrics"][0]["movement"]
    assert (movement["mode"], movement["canvas_size"]) == ("canvas", [26, 26])


def test_mode_crop_moves_a_window_of_the_image(trained_folder, tmp_path):
    options = ["--max-shift", "2", "--mode", "crop", "--out", str(tmp_path)]
    assert main(["shift", str(trained_folder), *options]) == 0
    trained = restore(trained_folder)
    assert isinstance(trained.model, Performer)
    trained.model.resize(12)
    test = trained.dataset.test.to_intensities()
    with torch.inference_mode():
        logits = trained.model(test.images[..., 2:-2, :-4])
    accuracy = (logits.argmax(dim=1) == test.labels).double().mean().item()
    assert accuracy_at(read_reports(tmp_path)[0], (0, 2)) == pytest.approx(accuracy)


def test_runs_of_one_model_are_named_by_their_folders(trained_folder, tmp_path):
    copy = shutil.copytree(trained_folder, tmp_path / "copy")
    runs = [str(trained_folder), str(copy)]
    options = ["--max-shift", "1", "--out", str(tmp_path / "out")]
    assert main(["shift", *runs, *options]) == 0
    assert [report["name"] for report in read_reports(tmp_path / "out")] == runs


def test_runs_on_different_data_are_an_error(trained_folder, trained, tmp_path, fails):
    error = fails("shift", trained_folder, trained.folder, "--out", tmp_path)
    assert "runs must be runs with the same data set and image size" in error


def test_lossless_shifts_without_a_margin_are_an_error(trained_folder, tmp_path, fails):
    assert "images have a smaller margin around their content" in fails(
        "shift", trained_folder, "--mode", "lossless", "--max-shift", "5", "--out", tmp_path
    )


def test_bad_shift_options_are_errors_of_one_line(trained_folder, tmp_path, fails):
    assert "mode" in fails("shift", trained_folder, "--mode", "losless")
    assert "different folders" in fails("shift", trained_folder, trained_folder)
    assert "run.json" in fails("shift", tmp_path, "--out", tmp_path / "shift")
    assert not (tmp_path / "shift").exists()


@pytest.fixture(scope="module")
def demo_folder(few_digits, tmp_path_factory):
    """Return the folder of a demo of small models, run first with one seed and then with two."""
    small = {
        "data": few_digits,
        "dim": 8,
        "heads": 1,
        "depth": 2,
        "train_size": 32,
        "batch_size": 32,
    }
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patched:
        runs = [run.replace(**small) for run in shift.DEMO_RUNS]
        patched.setattr(shift, "DEMO_RUNS", runs[:1] + runs[-2:])
        arguments = ["demo", "--out", str(folder), "--epochs", "1", "--seeds", "0"]
        assert main(arguments) == 0
        trained = {path: path.stat().st_mtime_ns for path in folder.glob("*/result.json")}
        assert len(trained) == 3
        assert main([*arguments, "1"]) == 0
        assert len(list(folder.glob("*/result.json"))) == 6
        assert {path: path.stat().st_mtime_ns for path in trained} == trained
    return folder


def test_demo_report_has_every_model_and_every_shift(demo_folder):
    names = (
        "absolute, squared_relu",
        "rotary, squared_relu, polyphase",
        "rotary, squared_relu, strided",
    )
    reports = read_reports(demo_folder)
    assert [report["name"] for report in reports] == [
        f"{name}, seed {seed}" for name in names for seed in (0, 1)
    ]
    for report in reports:
        assert {"seed", "run", "epochs", "seconds", "parameters"} <= set(report["model"])
        assert len(report["metrics"][0]["shifts"]) == 17
    assert {"report.json", "report.html"} <= {path.name for path in demo_folder.iterdir()}


def test_exact_models_have_the_same_accuracy_at_every_shift(demo_folder):
    exact = [
        report["metrics"][0]
        for report in read_reports(demo_folder)
        if report["name"].startswith("rotary") and "strided" not in report["name"]
    ]
    assert len(exact) == 2
    for metrics in exact:
        (accuracy,) = set(metrics["curves"]["accuracy"]["values"])
        assert metrics["numbers"]["worst_shift_accuracy"]["value"] == accuracy


def test_bad_demo_options_are_errors_of_one_line(tmp_path, fails):
    assert "seeds" in fails("demo", "--seeds", "1", "1", "--out", tmp_path)
    assert "seeds" in fails("demo", "--seeds", "x", "--out", tmp_path)
    assert "epochs" in fails("demo", "--epochs", "0", "--out", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    assert "out" in fails("demo", "--out", tmp_path / "file")
