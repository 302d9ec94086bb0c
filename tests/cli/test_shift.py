import json

import pytest

from teka.cli import main, shift


def test_shift_writes_the_report_the_curve_and_the_page(trained_folder, tmp_path, capsys):
    assert (
        main(["shift", str(trained_folder), "--max-shift", "2", "--out", str(tmp_path / "out")])
        == 0
    )
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "report.json",
        "shift_curve.png",
        "report.html",
    }
    assert json.loads((tmp_path / "out" / "report.json").read_text())["command"].startswith(
        "teka shift"
    )
    assert "worst" in capsys.readouterr().out


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
    assert json.loads((tmp_path / "report.json").read_text())["mode"] == "canvas"


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
        patched.setattr(shift, "DEMO_RUNS", tuple(run.replace(**small) for run in shift.DEMO_RUNS))
        arguments = ["demo", "--out", str(place), "--epochs", "1", "--seeds", "0"]
        assert main(arguments) == 0
        trained = {path: path.stat().st_mtime_ns for path in place.glob("*/result.json")}
        assert len(trained) == 5
        assert main([*arguments, "1"]) == 0
        assert len(list(place.glob("*/result.json"))) == 10
        assert {path: path.stat().st_mtime_ns for path in trained} == trained
    return place


def test_the_report_holds_five_models_and_every_shift(demonstrated):
    report = json.loads((demonstrated / "report.json").read_text())
    assert {"dataset", "command", "teka", "torch", "models"} <= set(report)
    assert [(model["name"], model["backend"], model["seed"]) for model in report["models"]] == [
        (name, backend, seed)
        for name, backend in (
            ("absolute, squared_relu", "linear"),
            ("rotary, squared_relu", "linear"),
            ("rotary, softmax", "dense"),
            ("rotary, squared_relu, polyphase", "linear"),
            ("rotary, squared_relu, strided", "linear"),
        )
        for seed in (0, 1)
    ]
    for model in report["models"]:
        assert {"name", "parameters", "epochs", "seconds", "worst_shift_accuracy"} <= set(model)
        for axis in ("dx", "dy"):
            assert list(model["accuracy_by_shift"][axis]) == [str(shift) for shift in range(-4, 5)]


def test_the_curve_and_the_page_are_written(demonstrated):
    assert {"report.json", "shift_curve.png", "report.html"} <= {
        path.name for path in demonstrated.iterdir()
    }
    assert "2 seeds" in (demonstrated / "report.html").read_text()


def test_the_exact_models_answer_the_same_at_every_shift(demonstrated):
    models = json.loads((demonstrated / "report.json").read_text())["models"]
    exact = [
        model
        for model in models
        if model["position"] == "rotary" and model["sampling"] != "strided"
    ]
    assert len(exact) == 6
    for model in exact:
        assert (
            len(
                {
                    value
                    for axis in ("dx", "dy")
                    for value in model["accuracy_by_shift"][axis].values()
                }
            )
            == 1
        )
        assert model["worst_shift_accuracy"] == model["accuracy_by_shift"]["dx"]["0"]


def test_bad_options_of_demo_are_one_line(tmp_path, fails):
    assert "seeds" in fails("demo", "--seeds", "1", "1", "--out", tmp_path)
    assert "seeds" in fails("demo", "--seeds", "x", "--out", tmp_path)
    (tmp_path / "file").write_text("")
    assert "out" in fails("demo", "--out", tmp_path / "file")
