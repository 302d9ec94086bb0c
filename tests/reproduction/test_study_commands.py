import shutil
from pathlib import Path

import pytest
import yaml

from reproduction.__main__ import run_command as main
from reproduction.horn2021 import paper_comparison
from reproduction.study.results import load_saved_results
from reproduction.study_commands import parse_selected_levels
from tests.reproduction.study.conftest import TINY

NAME = "squared-relu--seed-0"
FACTORS = {"kernel": {"softmax": {"kernel": "softmax"}, "squared relu": {"kernel": "squared_relu"}}}
MEASURE = {"images": 30, "shifts": [[0, 3]], "curve_points": 2}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Return the path of a study of two models that the command has trained."""
    path = tmp_path_factory.mktemp("studies") / "tiny.yaml"
    content = {"name": "tiny", "base": TINY["base"], "factors": FACTORS, "measure": MEASURE}
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    assert main(["study", str(path), "--processes", "1"]) == 0
    return path


def test_results_are_saved_next_to_the_study_file(study):
    folder = study.with_suffix("")
    results = load_saved_results(folder / "cells.jsonl.gz")
    assert results.keys() == {NAME, "softmax--seed-0"}
    assert (folder / "summary.md").is_file()
    assert results[NAME]["command"] == f"python -m reproduction study {study} --processes 1"


def test_option_summary_prints_the_tables_without_training(study, capsys):
    path = study.with_suffix("") / "cells.jsonl.gz"
    before = path.stat().st_mtime_ns
    assert main(["study", str(study), "--summary"]) == 0
    assert "| trained models | 2 of 2 |" in capsys.readouterr().out
    assert path.stat().st_mtime_ns == before


def test_option_only_trains_a_part_of_the_study(study, tmp_path):
    options = ["--only", "kernel=softmax", "--only", "seed=0", "--out", str(tmp_path)]
    assert main(["study", str(study), *options]) == 0
    assert load_saved_results(tmp_path / "cells.jsonl.gz").keys() == {"softmax--seed-0"}


def test_step_seconds_writes_a_file(study, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("reproduction.study.train_and_measure.SECONDS", 0.0)
    assert main(["study", str(study), "--step-seconds", "--out", str(tmp_path)]) == 0
    assert f"written: {tmp_path / 'step_seconds.json'}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "kernel"], "only kernel must be one of 'softmax', 'squared relu', got ''"),
        (["--only", "kernel=elu"], "got 'elu'"),
        (["--processes", "0"], "processes must be at least 1"),
        (["--processes", "two"], "got 'two'"),
        (["--colour", "red"], "--colour"),
    ],
)
def test_invalid_options_are_errors_of_one_line(study, fails, options, message):
    assert message in fails("study", study, *options)


def test_a_missing_file_is_an_error_of_one_line(fails, tmp_path):
    assert "a YAML file" in fails("study", tmp_path / "none.yaml")
    assert fails("study")


def test_parse_only_splits_levels():
    assert parse_selected_levels(["kernel=squared relu, softmax", "seed=0", "kernel=elu"]) == {
        "kernel": ["squared relu", "softmax", "elu"],
        "seed": ["0"],
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["figure2"], "target must be one of 'figure1', 'table1', got 'figure2'."),
        (["table1", "--scale", "huge"], "scale must be one of 'full', 'full-cpu', 'one-stem', "),
        (["figure1", "--only", "model=GPT"], "only model must be one of"),
        (["table1", "--summary"], "the folder of a study"),
    ],
)
def test_invalid_options_of_reproduce_are_errors_of_one_line(arguments, message, fails, tmp_path):
    assert message in fails("reproduce", *arguments, "--out", tmp_path / "none")


def test_reproduce_trains_a_scale(study, tmp_path, capsys, monkeypatch):
    data = {"mnist": {"data": "digits"}}
    models = {
        "Performer (absolute)": {"position": "absolute"},
        "Linformer": {"model": "linformer", "tokens": "image"},
    }
    content = {
        "name": "tiny",
        "base": {**TINY["base"], "stem": None},
        "factors": {"data": data, "model": models},
        "measure": {"mode": "lossless", "classes": [1]},
    }
    for name in ("stem", "periodic"):
        content["base"].pop(name)
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    for name in ("horn2021_table1.csv", "horn2021_figure1.csv"):
        shutil.copy(paper_comparison.FOLDER / name, tmp_path)
    monkeypatch.setattr(paper_comparison, "FOLDER", tmp_path)
    out = tmp_path / "out"
    assert main(["reproduce", "figure1", "--only", "data=mnist", "--out", str(out)]) == 0
    assert load_saved_results(out / "cells.jsonl.gz").keys() == {
        "mnist--performer-absolute--seed-0"
    }
    assert (out / "figure1.png").is_file()
    assert "| trained models | 1 of 2 |" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["bounded_rotary", "linear_positions"])
def test_a_study_with_a_script_is_not_trained_by_the_command(name, capsys):
    path = Path(__file__).parents[2] / "reproduction" / "studies" / f"{name}.yaml"
    assert main(["study", str(path), "--summary"]) == 2
    message = capsys.readouterr().err
    assert f"Run python -m reproduction.studies.{name}" in message
