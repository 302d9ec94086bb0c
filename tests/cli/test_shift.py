import json

import pytest

from teka.cli import main, shift


def read_reports(folder):
    return json.loads((folder / "report.json").read_text())["reports"]


def test_shift_writes_the_report_and_the_page(trained_folder, tmp_path, capsys):
    assert (
        main(["shift", str(trained_folder), "--max-shift", "2", "--out", str(tmp_path / "out")])
        == 0
    )
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"report.json", "report.html"}
    (report,) = read_reports(tmp_path / "out")
    assert report["provenance"]["command"].startswith("teka shift")
    assert "every shift" in capsys.readouterr().out


def test_a_canvas_allows_larger_shifts(trained_folder, tmp_path):
    arguments = [
        "shift",
        str(trained_folder),
        "--max-shift",
        "5",
        "--mode",
        "canvas",
        "--out",
        str(tmp_path),
    ]
    assert main(arguments) == 0
    (report,) = read_reports(tmp_path)
    assert report["metrics"][0]["movement"]["mode"] == "canvas"


def test_images_that_would_lose_something_are_an_error(trained_folder, tmp_path, fails):
    assert "shift" in fails(
        "shift", trained_folder, "--mode", "lossless", "--max-shift", "5", "--out", tmp_path
    )


def test_bad_options_of_shift_are_one_line(trained_folder, tmp_path, fails):
    assert "mode" in fails("shift", trained_folder, "--mode", "losless")
    assert "each folder once" in fails("shift", trained_folder, trained_folder)
    assert "run.json" in fails("shift", tmp_path)


@pytest.fixture(scope="module")
def demonstrated(few_digits, tmp_path_factory):
    """Run a demo of small models, first with one seed and then with two."""
    small = {
        "data": few_digits,
        "dim": 8,
        "heads": 1,
        "depth": 2,
        "train_size": 32,
        "batch_size": 32,
    }
    place = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patched:
        runs = [run.replace(**small) for run in shift.DEMO_RUNS]
        patched.setattr(shift, "DEMO_RUNS", runs[:1] + runs[-2:])
        arguments = ["demo", "--out", str(place), "--epochs", "1", "--seeds", "0"]
        assert main(arguments) == 0
        trained = {path: path.stat().st_mtime_ns for path in place.glob("*/result.json")}
        assert len(trained) == 3
        assert main([*arguments, "1"]) == 0
        assert len(list(place.glob("*/result.json"))) == 6
        assert {path: path.stat().st_mtime_ns for path in trained} == trained
    return place


def test_report_holds_every_model_and_every_shift(demonstrated):
    names = (
        "absolute, squared_relu",
        "rotary, squared_relu, polyphase",
        "rotary, squared_relu, strided",
    )
    reports = read_reports(demonstrated)
    assert [report["name"] for report in reports] == [
        f"{name}, seed {seed}" for name in names for seed in (0, 1)
    ]
    for report in reports:
        assert {"seed", "run", "epochs", "seconds", "parameters"} <= set(report["model"])
        assert len(report["metrics"][0]["shifts"]) == 17
    assert {"report.json", "report.html"} <= {path.name for path in demonstrated.iterdir()}


def test_exact_models_have_the_same_accuracy_at_every_shift(demonstrated):
    exact = [
        report["metrics"][0]
        for report in read_reports(demonstrated)
        if report["name"].startswith("rotary") and "strided" not in report["name"]
    ]
    assert len(exact) == 2
    for metrics in exact:
        (accuracy,) = set(metrics["curves"]["accuracy"]["values"])
        assert metrics["numbers"]["worst_shift_accuracy"]["value"] == accuracy


def test_bad_options_of_demo_are_one_line(tmp_path, fails):
    assert "seeds" in fails("demo", "--seeds", "1", "1", "--out", tmp_path)
    assert "seeds" in fails("demo", "--seeds", "x", "--out", tmp_path)
    (tmp_path / "file").write_text("")
    assert "out" in fails("demo", "--out", tmp_path / "file")
