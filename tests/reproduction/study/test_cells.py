import gzip
import shutil

import pytest

from reproduction.study import pack_cells, read_cells
from reproduction.study.cells import find_cell, load_cells
from teka.files import read_json, write_json
from tests.reproduction.conftest import failed_cell, saved_cell

CELLS = {
    ("mnist", "softmax", 0): saved_cell(0.9),
    ("mnist", "relu", 0): saved_cell(0.8),
    ("mnist", "relu", 1): failed_cell(),
}


def contents(folder):
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_read_cells_has_a_row_for_each_saved_cell_in_the_order_of_the_study(save_study):
    cells = read_cells(*save_study(CELLS))
    assert cells.index.names == ["data", "kernel", "seed"]
    assert list(cells.index) == list(CELLS)
    assert cells.accuracy.tolist()[:2] == [0.9, 0.8]
    assert cells.unshifted_accuracy.tolist()[:2] == [0.9, 0.8]
    assert cells.failed.tolist()[2] == "the loss is nan at step 17"
    assert cells.loc["mnist", "relu", 1][["accuracy", "steps", "process_seconds"]].isna().all()


def test_temporary_files_are_ignored(save_study):
    study, folder = save_study(CELLS)
    (folder / "cells" / ".cell.json").write_text("{")
    assert len(read_cells(study, folder)) == 3


def test_a_folder_without_cells_is_an_error(save_study, tmp_path):
    study, _ = save_study(CELLS)
    with pytest.raises(ValueError, match="folder must be the folder of a study, with saved cells"):
        read_cells(study, tmp_path)


def test_cpu_seconds_are_steps_times_the_seconds_of_one(save_study):
    study, folder = save_study(CELLS)
    models = [{"labels": {"data": "mnist", "kernel": "softmax"}, "seconds": 0.02}]
    write_json(folder / "step_seconds.json", {"models": models})
    cells = read_cells(study, folder)
    assert cells.process_seconds.iloc[0] == 2.0
    curve = cells.learning_curve.iloc[0]
    assert [point["process_seconds"] for point in curve] == [1.0, 2.0]
    assert cells.process_seconds.iloc[1:].isna().all()  # these models were not timed


def test_packed_cells_are_read_as_before(save_study):
    study, folder = save_study(CELLS)
    before, loose = read_cells(study, folder), load_cells(folder / "cells")
    assert pack_cells(folder) == [folder / "cells.jsonl.gz"]
    assert set(contents(folder)) == {"cells.jsonl.gz"}
    assert load_cells(folder / "cells") == loose
    assert read_cells(study, folder).equals(before)
    name = "mnist--relu--seed-0"
    assert find_cell(folder / "cells", name) == loose[name]
    assert find_cell(folder / "cells", "none") is None


def test_the_same_cells_give_the_same_bytes_and_later_cells_are_added(save_study, tmp_path):
    _, folder = save_study(CELLS)
    later = shutil.copytree(folder, tmp_path / "later")
    pack_cells(folder)
    whole = contents(folder)
    pack_cells(folder)
    assert contents(folder) == whole
    path = later / "cells" / "mnist--relu--seed-0.json"
    path.rename(tmp_path / path.name)
    pack_cells(later)
    (tmp_path / path.name).rename(path)
    pack_cells(later)
    assert contents(later) == whole


def test_a_loose_cell_replaces_a_packed_one(save_study):
    study, folder = save_study(CELLS)
    path = folder / "cells" / "mnist--relu--seed-0.json"
    content = read_json(path)
    pack_cells(folder)
    write_json(path, {**content, "accuracy": 0.75})
    assert read_cells(study, folder).accuracy.iloc[1] == 0.75


def test_damaged_packed_cells_are_errors(save_study):
    study, folder = save_study(CELLS)
    pack_cells(folder)
    path = folder / "cells.jsonl.gz"
    whole = path.read_bytes()
    for damaged in (whole[:-9], b"{}", gzip.compress(b"[1]\n"), gzip.compress(b"{}\n")):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"cells\.jsonl\.gz must be a file of packed cells"):
            read_cells(study, folder)
