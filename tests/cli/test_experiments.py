import json
import shutil

import pytest
import yaml

from teka.cli import experiments, main
from teka.cli.experiments import parse_only
from teka.experiments.reproduce import read_reproduction
from teka.experiments.study import step_seconds
from teka.files import read_json, write_json

STUDY = {
    "name": "tiny",
    "base": {
        "data": "digits",
        "image_size": 8,
        "train_size": 48,
        "validation_size": 20,
        "stem": "convolution",
        "periodic": True,
        "dim": 8,
        "heads": 2,
        "batch_size": 16,
        "epochs": 1,
    },
    "factors": {
        "kernel": {"softmax": {"kernel": "softmax"}, "squared relu": {"kernel": "squared_relu"}}
    },
    "measure": {"images": 30, "shifts": [[0, 3]], "curve_points": 2},
    "reference": {"kernel": "softmax"},
}
CELL = "squared-relu--seed-0"


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
    """A demo with models and data that take a second, its way unchanged, run with one seed and then with two."""
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
        patched.setattr(
            experiments, "DEMO_RUNS", tuple(run.replace(**small) for run in experiments.DEMO_RUNS)
        )
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


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study of two cells, run from the command line."""
    path = tmp_path_factory.mktemp("studies") / "tiny.yaml"
    path.write_text(yaml.safe_dump(STUDY, sort_keys=False), encoding="utf-8")
    assert main(["study", str(path), "--processes", "1"]) == 0
    return path


def test_the_results_lie_beside_the_file_with_tables_and_pictures(study):
    folder = study.with_suffix("")
    assert {path.stem for path in (folder / "cells").glob("*.json")} == {CELL, "softmax--seed-0"}
    assert {"summary.md", "summary.csv", "summary.json"} <= {path.name for path in folder.iterdir()}
    assert list(folder.glob("*.png"))
    assert (
        read_json(folder / "cells" / f"{CELL}.json")["command"]
        == f"teka study {study} --processes 1"
    )


def test_the_summary_alone_trains_nothing_and_shows_the_table(study, capsys):
    before = {path: path.stat().st_mtime_ns for path in study.with_suffix("").rglob("cells/*.json")}
    assert main(["study", str(study), "--summary"]) == 0
    shown = capsys.readouterr().out
    assert "squared relu" in shown
    assert "2 of 2" in shown
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_steps_are_timed_and_the_tables_take_their_seconds(study, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(step_seconds, "ROUNDS", 1)
    command = ["study", str(study), "--step-seconds", "--processes", "1", "--out", str(tmp_path)]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert f"written: {tmp_path / 'step_seconds.json'}" in shown
    assert "squared relu" not in shown.splitlines()[-1]  # no cell, no table
    shutil.copytree(study.with_suffix("") / "cells", tmp_path / "cells")
    assert main(command) == 0
    assert "every model was timed in turn" in " ".join(capsys.readouterr().out.split())
    assert "every model was timed in turn" in (tmp_path / "summary.md").read_text(encoding="utf-8")


def test_repeating_a_cell_says_that_the_numbers_are_the_same(study, capsys):
    assert main(["study", str(study), "--repeat", CELL]) == 0
    assert capsys.readouterr().out.endswith("the same numbers\n")


def test_repeating_a_cell_whose_file_was_changed_is_an_error(study, fails, tmp_path):
    content = read_json(study.with_suffix("") / "cells" / f"{CELL}.json")
    (tmp_path / "cells").mkdir()
    write_json(tmp_path / "cells" / f"{CELL}.json", {**content, "accuracy": 0.1234})
    error = fails("study", study, "--out", tmp_path, "--repeat", CELL)
    assert "the numbers differ" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(
            ["--only", "kernel"],
            "only must be FACTOR=LEVEL or FACTOR=LEVEL,LEVEL, got 'kernel'",
            id="only without a level",
        ),
        pytest.param(["--only", "kernel=elu"], "got 'elu'", id="an unknown level"),
        pytest.param(
            ["--processes", "0"], "processes must be at least 1 and at most", id="no process"
        ),
        pytest.param(
            ["--step-seconds", "--only", "kernel=softmax"],
            "nothing with --step-seconds",
            id="a part timed",
        ),
        pytest.param(["--repeat", "none"], "got 'none'", id="an unknown cell"),
    ],
)
def test_wrong_options_are_an_error_of_one_line(study, fails, arguments, message):
    assert message in fails("study", study, *arguments)


def test_a_file_that_is_not_there_is_an_error_of_one_line(fails, tmp_path):
    assert "a YAML file" in fails("study", tmp_path / "none.yaml")


def test_levels_with_spaces_and_several_levels_are_understood():
    assert parse_only(["kernel=squared relu, softmax", "seed=0", "kernel=elu"]) == {
        "kernel": ["squared relu", "softmax", "elu"],
        "seed": ["0"],
    }


def test_the_list_names_every_model_data_set_and_seed(capsys):
    assert main(["reproduce", "table1", "--list"]) == 0
    shown = capsys.readouterr().out
    study = read_reproduction("small")
    for name in (*study.factors["data"], *study.factors["model"], *map(str, study.seeds)):
        assert name in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(
            ["figure2"],
            "target must be one of 'figure1', 'table1', got 'figure2'. Did you mean 'figure1'?",
            id="an unknown target",
        ),
        pytest.param(
            ["table1", "--scale", "huge"],
            "scale must be one of 'full', 'full-cpu', 'one-stem', 'small', got 'huge'.",
            id="an unknown scale",
        ),
        pytest.param(
            ["figure1", "--only", "model=AlexNet"],
            "only model of figure1 must be one of 'Performer (absolute)', ",
            id="no Performer",
        ),
        pytest.param(
            ["table1", "--only", "model"],
            "only must be FACTOR=LEVEL or FACTOR=LEVEL,LEVEL, got 'model'.",
            id="no level",
        ),
        pytest.param(["table1", "--summary"], "a study's folder", id="nothing trained yet"),
    ],
)
def test_bad_input_of_reproduce_is_one_line_and_exit_code_2(arguments, message, capsys, tmp_path):
    assert main(["reproduce", *arguments, "--out", str(tmp_path / "none")]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert len(shown.err.strip().splitlines()) == 1
    assert shown.out == ""


def test_bench_prints_the_table_and_writes_its_files(tmp_path, capsys):
    size = ["--lengths", "16", "9", "--dim", "8", "--heads", "2", "--repeats", "1", "--warmup", "0"]
    assert (
        main(["bench", *size, "--layers", "squared_relu", "softmax", "--out", str(tmp_path)]) == 0
    )
    assert {path.name for path in tmp_path.iterdir()} == {"bench.json", "bench.png"}
    content = json.loads((tmp_path / "bench.json").read_text())
    assert content["command"].startswith("teka bench")
    assert content["settings"]["lengths"] == [9, 16]
    assert content["settings"]["layers"] == ["four_gemms", "squared_relu", "softmax"]
    printed = capsys.readouterr().out
    assert "squared_relu" in printed
    assert "Measured " in printed


def test_bad_options_of_bench_are_one_line(tmp_path, fails):
    assert "layers" in fails("bench", "--layers", "squared_rel", "--out", tmp_path)
    assert "lengths must be the cells of a square grid" in fails(
        "bench", "--lengths", "17", "--out", tmp_path
    )
    assert "direction" in fails("bench", "--direction", "sideways", "--out", tmp_path)
    assert "got 'half'" in fails("bench", "--precision", "half", "--out", tmp_path)


def test_approximate_prints_its_tables_and_writes_its_files(tmp_path, capsys, fails):
    some = [
        "--dim",
        "4",
        "--tokens",
        "9",
        "--sizes",
        "0.5",
        "--radii",
        "1",
        "--num-features",
        "4",
        "8",
    ]
    line = ["approximate", *some, "--kernels", "positive", "--draws", "2", "--out", str(tmp_path)]
    assert main(line) == 0
    assert "positive, fixed_norm" in capsys.readouterr().out
    content = json.loads((tmp_path / "approximation.json").read_text())
    assert content["command"].startswith("teka approximate --dim 4")
    assert "got 'softmax'" in fails("approximate", "--kernels", "softmax", "--out", tmp_path)
