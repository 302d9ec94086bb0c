import dataclasses
import importlib
import json

import pytest

from teka.cli import main

demo = importlib.import_module("teka.cli.demo")


@pytest.fixture
def tiny_demo(monkeypatch):
    """The demo with models that take a second, its way unchanged."""
    small = {"dim": 8, "heads": 2, "train_size": 64, "batch_size": 32}
    monkeypatch.setattr(demo, "RUNS", tuple(dataclasses.replace(run, **small) for run in demo.RUNS))


def test_the_demo_trains_three_models_and_reports_every_shift(tiny_demo, tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path), "--epochs", "1", "--seeds", "0", "1"]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert {"dataset", "command", "teka", "torch", "models"} <= set(report)
    kinds = [(model["position"], model["kernel"], model["backend"], model["seed"]) for model in report["models"]]
    assert kinds == [
        (position, kernel, backend, seed)
        for position, kernel, backend in (
            ("absolute", "squared_relu", "linear"),
            ("rotation", "squared_relu", "toeplitz"),
            ("rotation", "softmax", "dense"),
        )
        for seed in (0, 1)
    ]
    for model in report["models"]:
        assert {"name", "parameters", "epochs", "seconds", "worst_shift_accuracy"} <= set(model)
        for axis in ("dx", "dy"):
            assert list(model["accuracy_by_shift"][axis]) == [str(shift) for shift in range(-4, 5)]
    assert {"report.json", "shift_curve.png", "report.html"} <= {path.name for path in tmp_path.iterdir()}
    assert "two seeds" in capsys.readouterr().out.replace("2 seeds", "two seeds")


def test_the_exact_models_answer_the_same_at_every_shift(tiny_demo, tmp_path):
    main(["demo", "--out", str(tmp_path), "--epochs", "1"])
    models = json.loads((tmp_path / "report.json").read_text())["models"]
    exact = [model for model in models if model["position"] == "rotation"]
    assert len(exact) == 2
    for model in exact:
        assert len({value for axis in ("dx", "dy") for value in model["accuracy_by_shift"][axis].values()}) == 1
        assert model["worst_shift_accuracy"] == model["accuracy_by_shift"]["dx"]["0"]


def test_a_demo_run_again_keeps_what_was_trained(tiny_demo, tmp_path):
    main(["demo", "--out", str(tmp_path), "--epochs", "1"])
    trained = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/result.json")}
    main(["demo", "--out", str(tmp_path), "--epochs", "1"])
    assert len(trained) == 3
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/result.json")} == trained


def test_bad_options_are_one_line(tmp_path, fails):
    assert "seeds" in fails("demo", "--seeds", "1", "1", "--out", tmp_path)
    assert "seeds" in fails("demo", "--seeds", "x", "--out", tmp_path)
    (tmp_path / "file").write_text("")
    assert "out" in fails("demo", "--out", tmp_path / "file")
