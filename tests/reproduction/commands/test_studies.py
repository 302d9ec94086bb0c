import shutil

import pytest
import yaml

from reproduction.__main__ import run as main
from reproduction.commands import parse_only
from reproduction.horn2021 import read_reproduction
from reproduction.study import step_seconds
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
        == f"python -m reproduction study {study} --processes 1"
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
