import csv
import io
import json
import sys
from pathlib import Path

import pytest

from reproduction.study.report import write
from reproduction.study.report.write import write_study
from teka.reporting.tables import WIDTH

REFERENCE = {"kernel": "softmax"}
TABLES = {"summary.md", "summary.csv", "summary.json"}
SHARED = {"accuracy.png", "shifts.png"}


@pytest.fixture
def without_pictures(monkeypatch):
    """Write the tables alone; to draw the pictures takes a second."""
    monkeypatch.setattr(write, "_pictures", lambda matrix, reference: {})


def names(folder):
    return {path.name for path in folder.iterdir()} - {"cells"}


def test_tables_and_pictures_are_written_and_nothing_else(study_folder, study_cells):
    folder = study_folder(*study_cells(data=("mnist",), kernels=("softmax", "constant")))
    written = write_study(folder, reference=REFERENCE)
    curves = {"learning_curves_rotation.png", "learning_curves_none.png"}
    assert names(folder) == TABLES | SHARED | curves | {"heat_map.png"}
    assert {path.name for path in written.files} == names(folder)
    assert all(
        path.read_bytes().startswith(b"\x89PNG") for path in written.files if path.suffix == ".png"
    )
    assert "softmax × rotation" in written.terminal


@pytest.mark.usefixtures("without_pictures")
def test_every_table_fits_a_terminal_of_120_columns(study_folder, study_cell, failed_cell):
    cells = [
        study_cell("mnist", kernel, seed=seed)
        for kernel in ("softmax", "constant")
        for seed in range(3)
    ]
    folder = study_folder(*cells[1:], failed_cell("mnist", "softmax", seed=0))
    for reference in ({}, REFERENCE, {"kernel": "not there yet"}):
        text = write_study(folder, reference=reference).terminal
        assert max(map(len, text.splitlines())) <= WIDTH, reference
        assert "diverged (1 of 3)" in text, reference
        assert "5 of 6 cells finished, 1 diverged." in text, reference


@pytest.mark.usefixtures("without_pictures")
def test_markdown_has_as_many_cells_in_every_row(study_folder, study_cell):
    folder = study_folder(study_cell(labels={"data": "mnist", "kernel": "a | b", "position": "c"}))
    write_study(folder, reference=REFERENCE)
    text = (folder / "summary.md").read_text(encoding="utf-8")
    blocks = [block for block in text.split("\n\n") if block.startswith("|")]
    assert len(blocks) == 3
    for block in blocks:
        assert len({line.replace("\\|", "").count("|") for line in block.splitlines()}) == 1
    assert "a \\| b" in text


def test_a_single_factor_has_a_simple_table_and_dots(study_folder, study_cell):
    folder = study_folder(*[study_cell(labels={"variant": name}) for name in ("one", "two")])
    write_study(str(folder), reference={"variant": "one"})
    assert names(folder) == TABLES | SHARED | {"learning_curves.png"}


@pytest.mark.usefixtures("without_pictures")
def test_csv_and_json_hold_the_same_numbers(study_folder, study_cells, failed_cell):
    cells = [
        *study_cells(data=("mnist",), kernels=("softmax", "taylor 2")),
        failed_cell("mnist", "constant", "none"),
    ]
    folder = study_folder(*cells)
    write_study(folder, reference=REFERENCE, planned=19)
    rows = list(csv.DictReader(io.StringIO((folder / "summary.csv").read_text(encoding="utf-8"))))
    content = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert content["cells"] == {"planned": 19, "finished": 12, "diverged": 1, "missing": 6}
    assert len(rows) == len(content["groups"]) == 5
    for row, group in zip(rows, content["groups"], strict=True):
        assert row == {key: "" if group[key] is None else str(group[key]) for key in row}
        assert len(group["seeds"]) == group["finished"]
    assert rows[-1]["diverged"] == "1"
    assert rows[-1]["accuracy"] == ""


def test_a_study_of_failed_cells_has_tables_alone(study_folder, failed_cell):
    folder = study_folder(failed_cell(seed=0), failed_cell(seed=1))
    write_study(folder, reference=REFERENCE)
    assert names(folder) == TABLES
    assert "diverged (2 of 2)" in (folder / "summary.md").read_text(encoding="utf-8")


def test_a_study_without_its_reference_yet_is_written(study_folder, study_cell):
    folder = study_folder(study_cell(kernel="taylor 2"))
    assert len(write_study(folder, reference=REFERENCE, planned=7).files) == 3 + 4


@pytest.mark.parametrize(
    "reference", [{"kernels": "softmax"}, REFERENCE], ids=["unknown-factor", "broken-cell"]
)
def test_nothing_is_written_from_what_is_wrong(study_folder, study_cell, reference):
    folder = study_folder(
        study_cell(), study_cell(seed=1, accuracy=0.5 if "kernels" in reference else 95.3)
    )
    with pytest.raises(ValueError, match="must be"):
        write_study(folder, reference=reference)
    assert names(folder) == set()


@pytest.mark.usefixtures("without_pictures")
def test_a_failure_leaves_the_old_files_whole(study_folder, study_cell, monkeypatch):
    folder = study_folder(study_cell(labels={"variant": "one"}))
    write_study(folder, reference={})
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    def fail(path, target):
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_study(folder, reference={})
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_a_missing_package_names_the_extra_that_brings_it(study_folder, study_cell, monkeypatch):
    folder = study_folder(study_cell())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"matplotlib.*pip install teka\[report\]"):
        write_study(folder, reference={})
    assert names(folder) == set()
