import shutil

import pytest
import yaml

from teka.cli import main
from teka.cli.study import parse_only
from teka.files import read_json, write_json

pytestmark = pytest.mark.xdist_group("study command")
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
    "factors": {"kernel": {"softmax": {"kernel": "softmax"}, "squared relu": {"kernel": "squared_relu"}}},
    "measure": {"images": 30, "shifts": [[0, 3]], "curve_points": 2},
    "reference": {"kernel": "softmax"},
}
CELL = "squared-relu--seed-0"


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study of two cells, run from the command line."""
    path = tmp_path_factory.mktemp("studies") / "tiny.yaml"
    path.write_text(yaml.safe_dump(STUDY, sort_keys=False), encoding="utf-8")
    assert main(["study", str(path), "--processes", "2"]) == 0
    return path


def test_the_results_lie_beside_the_file_with_tables_and_pictures(study):
    folder = study.with_suffix("")
    assert {path.stem for path in (folder / "cells").glob("*.json")} == {CELL, "softmax--seed-0"}
    assert {"summary.md", "summary.csv", "summary.json"} <= {path.name for path in folder.iterdir()}
    assert list(folder.glob("*.png"))
    assert read_json(folder / "cells" / f"{CELL}.json")["command"] == f"teka study {study} --processes 2"


def test_the_summary_alone_trains_nothing_and_shows_the_table(study, capsys):
    before = {path: path.stat().st_mtime_ns for path in study.with_suffix("").rglob("cells/*.json")}
    assert main(["study", str(study), "--summary"]) == 0
    shown = capsys.readouterr().out
    assert "squared relu" in shown
    assert "2 of 2" in shown
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_steps_are_timed_and_the_tables_take_their_seconds(study, tmp_path, capsys):
    assert main(["study", str(study), "--step-seconds", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert f"written: {tmp_path / 'step_seconds.json'}" in shown
    assert "squared relu" not in shown.splitlines()[-1]  # no cell, no table
    shutil.copytree(study.with_suffix("") / "cells", tmp_path / "cells")
    assert main(["study", str(study), "--step-seconds", "--out", str(tmp_path)]) == 0
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
        pytest.param(["--only", "kernel"], "only is 'kernel', expected FACTOR=LEVEL", id="only without a level"),
        pytest.param(["--only", "kernel=elu"], "only kernel is 'elu'", id="an unknown level"),
        pytest.param(["--processes", "0"], "processes is 0, expected at least 1", id="no process"),
        pytest.param(
            ["--step-seconds", "--only", "kernel=softmax"], "expected nothing with --step-seconds", id="a part timed"
        ),
        pytest.param(["--repeat", "none"], "repeat is 'none'", id="an unknown cell"),
    ],
)
def test_wrong_options_are_an_error_of_one_line(study, fails, arguments, message):
    assert message in fails("study", study, *arguments)


def test_a_file_that_is_not_there_is_an_error_of_one_line(fails, tmp_path):
    assert "expected a YAML file" in fails("study", tmp_path / "none.yaml")


def test_levels_with_spaces_and_several_levels_are_understood():
    assert parse_only(["kernel=squared relu, softmax", "seed=0", "kernel=elu"]) == {
        "kernel": ["squared relu", "softmax", "elu"],
        "seed": ["0"],
    }
