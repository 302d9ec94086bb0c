import importlib
import json

import pytest

from teka.cli import main

pytestmark = pytest.mark.xdist_group("demo")
demo = importlib.import_module("teka.cli.demo")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A demo with models that take a second, its way unchanged, run with one seed and then with two."""
    small = {"dim": 8, "heads": 1, "depth": 2, "train_size": 64, "batch_size": 32}
    place = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(demo, "RUNS", tuple(run.replace(**small) for run in demo.RUNS))
        arguments = ["demo", "--out", str(place), "--epochs", "1", "--seeds", "0"]
        assert main(arguments) == 0
        trained = {path: path.stat().st_mtime_ns for path in place.glob("*/result.json")}
        assert len(trained) == 3
        assert main([*arguments, "1"]) == 0
        assert len(list(place.glob("*/result.json"))) == 6
        assert {path: path.stat().st_mtime_ns for path in trained} == trained
    return place


def test_the_report_holds_three_models_and_every_shift(folder):
    report = json.loads((folder / "report.json").read_text())
    assert {"dataset", "command", "teka", "torch", "models"} <= set(report)
    kinds = [(model["position"], model["kernel"], model["backend"], model["seed"]) for model in report["models"]]
    assert kinds == [
        (position, kernel, backend, seed)
        for position, kernel, backend in (
            ("absolute", "squared_relu", "linear"),
            ("rotary", "squared_relu", "linear"),
            ("rotary", "softmax", "dense"),
        )
        for seed in (0, 1)
    ]
    for model in report["models"]:
        assert {"name", "parameters", "epochs", "seconds", "worst_shift_accuracy"} <= set(model)
        for axis in ("dx", "dy"):
            assert list(model["accuracy_by_shift"][axis]) == [str(shift) for shift in range(-4, 5)]


def test_the_curve_and_the_page_are_written(folder):
    assert {"report.json", "shift_curve.png", "report.html"} <= {path.name for path in folder.iterdir()}
    assert "2 seeds" in (folder / "report.html").read_text()


def test_the_exact_models_answer_the_same_at_every_shift(folder):
    models = json.loads((folder / "report.json").read_text())["models"]
    exact = [model for model in models if model["position"] == "rotary"]
    assert len(exact) == 4
    for model in exact:
        assert len({value for axis in ("dx", "dy") for value in model["accuracy_by_shift"][axis].values()}) == 1
        assert model["worst_shift_accuracy"] == model["accuracy_by_shift"]["dx"]["0"]


def test_bad_options_are_one_line(tmp_path, fails):
    assert "seeds" in fails("demo", "--seeds", "1", "1", "--out", tmp_path)
    assert "seeds" in fails("demo", "--seeds", "x", "--out", tmp_path)
    (tmp_path / "file").write_text("")
    assert "out" in fails("demo", "--out", tmp_path / "file")
