import re
import sys
from pathlib import Path

import pytest

from teka.training.report.write import write


def test_both_files_are_written_and_nothing_else(run_folder):
    written = write(run_folder)
    assert written == (run_folder / "shift_curve.png", run_folder / "report.html")
    assert {path.name for path in run_folder.iterdir()} == {
        "report.json",
        "examples.npz",
        "shift_curve.png",
        "report.html",
    }
    assert written.shift_curve.read_bytes().startswith(b"\x89PNG")
    assert "What the models saw" in written.page.read_text(encoding="utf-8")


def test_a_folder_may_be_a_text_and_written_twice(run_folder):
    assert write(str(run_folder)) == write(run_folder)


def test_examples_are_optional(run_folder):
    (run_folder / "examples.npz").unlink()
    assert "What the models saw" not in write(run_folder).page.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["report.json", "examples.npz"])
def test_nothing_is_written_from_broken_results(run_folder, name):
    (run_folder / name).write_text("broken")
    with pytest.raises(ValueError, match=re.escape(name)):
        write(run_folder)
    assert {path.name for path in run_folder.iterdir()} == {"report.json", "examples.npz"}


def test_a_folder_without_results_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"missing.report\.json is missing"):
        write(tmp_path / "missing")


def test_a_failure_leaves_the_old_files_whole_and_no_temporary_ones(run_folder, monkeypatch):
    before = {path: path.read_bytes() for path in (*write(run_folder), *run_folder.iterdir())}
    (run_folder / "examples.npz").unlink()
    del before[run_folder / "examples.npz"]

    def fail(path, target):
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write(run_folder)
    assert {path: path.read_bytes() for path in run_folder.iterdir()} == before


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_a_missing_package_names_the_extra_that_brings_it(run_folder, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"{package}.*pip install teka\[report\]"):
        write(run_folder)
    assert {path.name for path in run_folder.iterdir()} == {"report.json", "examples.npz"}
