import gzip
import json
import re
import shutil

import pytest

from reproduction.study import pack_study, read_study, run_study
from reproduction.study.cells import (
    CellResult,
    FailedCell,
    claimed,
    decode_cell,
    find_cell,
    list_cells,
)
from reproduction.study.report.results import read_study_results
from teka.codec import encode

REQUIRED = (
    "labels", "seed", "run", "parameters", "backend", "forward_flops", "training_flops", "steps", "process_seconds",
    "learning_curve", "test_images", "accuracy", "shifts", "shifted_images", "accuracy_by_shift", "minimum_accuracy",
    "worst_shift_accuracy", "teka", "torch", "hardware", "date",
)  # fmt: skip


def read(content):
    return decode_cell(json.loads(json.dumps(content)), "cell.json")


def read_finished(content) -> CellResult:
    cell = read(content)
    assert isinstance(cell, CellResult)
    return cell


def test_a_finished_cell_is_read_and_written_as_it_was(study_cell):
    cell = read_finished(study_cell("mnist", "softmax", "absolute", seed=2))
    assert cell.labels == {"data": "mnist", "kernel": "softmax", "position": "absolute"}
    assert (cell.seed, cell.batch_size, cell.steps, cell.backend) == (2, 64, 625, "dense")
    assert list(cell.by_shift()) == [(0, 0), (0, 3), (-3, 0), (5, -2)]
    assert cell.unshifted_accuracy == cell.accuracy
    assert read({**encode(cell), "of a later teka": 1}) == cell
    assert cell.learning_curve[-1].accuracy == cell.accuracy
    assert cell.learning_curve[-1].process_seconds == pytest.approx(cell.process_seconds)


def test_a_cell_that_diverged_needs_no_measured_fields(failed_cell):
    cell = read(failed_cell("mnist", "taylor 2", seed=1))
    assert isinstance(cell, FailedCell)
    assert (cell.seed, cell.failed) == (1, "the loss is nan at step 17")


def test_errors_that_were_not_measured_are_none(study_cell):
    cell = read_finished(study_cell(equivariance_error=None, noise_floor=None))
    assert cell.equivariance_error is None
    assert cell.noise_floor is None


def test_a_missing_key_is_named(study_cell):
    for key in REQUIRED:
        content = study_cell()
        del content[key]
        with pytest.raises(ValueError, match=rf"^cell\.json: cell\.{key} is missing$"):
            read(content)


POINT = {"step": 5, "process_seconds": 1.0, "accuracy": 0.5, "loss": 1.0}


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("labels", {}, "the level of one factor or more"),
        ("labels", {"data": 7}, "a string"),
        ("run", {"batch_size": -1}, "at least 1"),
        ("accuracy", 95.3, "a number from 0 to 1"),
        ("process_seconds", -1.0, "a finite number"),
        ("learning_curve", [], "one point or more"),
        ("learning_curve", [POINT, POINT], "steps that increase"),
        (
            "learning_curve",
            [POINT, {**POINT, "step": 7, "process_seconds": 0.5}],
            "process_seconds that never fall",
        ),
        ("shifts", [[0, 0.5]], "a whole number"),
        ("shifts", [[0, 0]], "a list of 1, one for each shift"),
        ("accuracy_by_shift", [0.5, 0.5, 0.5, 2.0], "a number from 0 to 1"),
    ],
)
def test_a_wrong_value_is_named(study_cell, key, value, expected):
    with pytest.raises(ValueError, match=rf"cell\.json: .*{re.escape(expected)}"):
        read({**study_cell(), key: value})


@pytest.fixture
def curve(study_cell):
    points = zip((3, 7, 11), (1.0, 2.0, 5.0), (0.2, 0.6, 0.9), (2.0, 1.0, 0.5), strict=True)
    names = ("step", "process_seconds", "accuracy", "loss")
    return read(
        {
            **study_cell(),
            "learning_curve": [dict(zip(names, point, strict=True)) for point in points],
        }
    )


def test_the_curve_has_its_points_is_linear_between_them_and_nothing_outside(curve):
    assert [curve.at("accuracy", step) for step in (3, 7, 11)] == [0.2, 0.6, 0.9]
    assert [curve.at("accuracy", seconds, "process_seconds") for seconds in (1.0, 2.0, 5.0)] == [
        0.2,
        0.6,
        0.9,
    ]
    assert curve.at("accuracy", 4) == pytest.approx(0.3)
    assert curve.at("process_seconds", 8) == pytest.approx(2.75)
    assert curve.at("accuracy", 4.0, "process_seconds") == pytest.approx(0.8)
    assert {
        curve.at("accuracy", 2),
        curve.at("accuracy", 12),
        curve.at("accuracy", 0.9, "process_seconds"),
    } == {None}


def test_points_at_the_same_time_are_no_division_by_zero(study_cell):
    points = [
        {"step": s, "process_seconds": t, "accuracy": s / 10, "loss": 1}
        for s, t in ((1, 1), (2, 1), (3, 2))
    ]
    cell = read_finished({**study_cell(), "learning_curve": points})
    assert cell.at("accuracy", 1.0, "process_seconds") == 0.1
    assert cell.at("accuracy", 1.5, "process_seconds") == pytest.approx(0.25)


def files_of(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_packed_cells_are_read_as_the_loose_ones_were(study_folder, study_cells, failed_cell):
    folder = study_folder(*study_cells(data=("mnist",)), failed_cell("digits"))
    before = list(list_cells(folder / "cells"))
    loose = read_study_results(folder)
    assert pack_study(folder) == [folder / "cells.jsonl.gz"]
    assert set(files_of(folder)) == {"cells.jsonl.gz"}
    assert [cell[:2] for cell in list_cells(folder / "cells")] == [cell[:2] for cell in before]
    assert vars(read_study_results(folder)) == vars(loose)
    assert find_cell(folder / "cells", "000") == before[0][1]
    assert find_cell(folder / "cells", "none") is None


def test_the_same_cells_give_the_same_bytes_and_later_ones_are_added(
    study_folder, study_cells, tmp_path
):
    folder = study_folder(*study_cells())
    later = shutil.copytree(folder, tmp_path / "later")
    pack_study(folder)
    whole = files_of(folder)
    pack_study(folder)
    assert files_of(folder) == whole
    kept = tmp_path / "010.json"
    (later / "cells" / kept.name).rename(kept)
    pack_study(later)
    kept.rename(later / "cells" / kept.name)
    assert len(read_study_results(later).cells) == len(study_cells())
    pack_study(later)
    assert files_of(later) == whole


def test_a_loose_cell_goes_before_a_packed_one(study_folder, study_cell):
    folder = study_folder(study_cell(accuracy=0.5))
    loose = (folder / "cells" / "000.json").read_text(encoding="utf-8")
    pack_study(folder)
    (folder / "cells" / "000.json").write_text(
        loose.replace('"accuracy": 0.5,', '"accuracy": 0.75,', 1)
    )
    (cell,) = read_study_results(folder).results
    assert 0.75 in (cell.accuracy, cell.learning_curve[0].accuracy)


def test_a_packed_study_is_done(finished, tiny_study, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "packed")
    assert {path.name for path in pack_study(folder)} == {"cells.jsonl.gz", "tuning.jsonl.gz"}
    before, stages = files_of(folder), []
    run_study(read_study(tiny_study), folder, progress=stages.append)
    assert [(stage.stage, stage.done, stage.total) for stage in stages] == [
        ("tuning", 4, 4),
        ("cells", 6, 6),
    ]
    assert files_of(folder) == before


def test_what_cannot_be_packed_or_read_is_an_error(study_folder, study_cell, tmp_path):
    with pytest.raises(ValueError, match="a study's folder, with one cell or more in cells"):
        pack_study(tmp_path)
    folder = study_folder(study_cell())
    with (
        claimed(folder / "cells", "packing"),
        pytest.raises(ValueError, match="packed by another command"),
    ):
        pack_study(folder)
    pack_study(folder)
    whole = (folder / "cells.jsonl.gz").read_bytes()
    for damaged in (whole[:-9], b"{}", gzip.compress(b"[1]\n"), gzip.compress(b"{}\n")):
        (folder / "cells.jsonl.gz").write_bytes(damaged)
        with pytest.raises(
            ValueError, match=r"cells\.jsonl\.gz is .*, expected the packed cells of a study"
        ):
            read_study_results(folder)
    (folder / "cells.jsonl.gz").write_bytes(gzip.compress(b'{"name": "one"}\n'))
    with pytest.raises(ValueError, match=r"cells\.jsonl\.gz: one: cell\.labels is missing"):
        read_study_results(folder)
