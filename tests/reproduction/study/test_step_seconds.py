import json
import os

import pytest
import torch

from reproduction.study import read_study
from reproduction.study.report.results import read_study_results
from reproduction.study.report.tables import study_notes
from reproduction.study.run_cell import load_cell_data
from reproduction.study.run_study import Progress
from reproduction.study.step_seconds import StepTimer, measure_step_seconds, read_step_seconds


def test_every_model_is_timed_as_often_with_the_threads_of_a_cell_and_the_tables_take_these_seconds(
    finished, tiny_study, tmp_path
):
    (tmp_path / "cells").symlink_to(finished / "cells")
    stages, before = [], torch.get_num_threads()
    path = measure_step_seconds(
        read_study(tiny_study),
        tmp_path,
        processes=os.cpu_count() or 1,
        command="teka study",
        progress=stages.append,
    )
    content = json.loads(path.read_text(encoding="utf-8"))
    assert [model["labels"] for model in content["models"]] == [
        {"kernel": "softmax", "position": "none"},
        {"kernel": "squared relu", "position": "none"},
        {"kernel": "squared relu", "position": "absolute"},
    ]
    assert all(
        0 < model["lowest"] <= model["seconds"] <= model["highest"] for model in content["models"]
    )
    assert (content["threads"], content["command"]) == (1, "teka study")
    assert torch.get_num_threads() == before
    total = 3 * (1 + content["rounds"])
    assert stages[0] == Progress("timing", 0, total, None)
    assert [stage.done for stage in stages] == list(range(total + 1))
    seconds = {tuple(model["labels"].values()): model["seconds"] for model in content["models"]}
    for result in read_study_results(tmp_path).results:
        assert result.process_seconds == pytest.approx(
            result.steps * seconds[tuple(result.labels.values())]
        )


def test_a_timed_step_is_a_step_of_training(tiny_study, monkeypatch):
    study = read_study(tiny_study)
    cell = study.make_cell({"kernel": "squared relu", "position": "absolute"}, 0)
    torch.manual_seed(0)
    timer = StepTimer(cell, load_cell_data(cell.run, None))
    assert timer.model.training
    assert len(timer.images) == cell.run.batch_size
    norms, clip = [], torch.nn.utils.clip_grad_norm_
    monkeypatch.setattr(
        torch.nn.utils, "clip_grad_norm_", lambda *given: norms.append(clip(*given))
    )
    before = [parameter.detach().clone() for parameter in timer.model.parameters()]
    assert timer.take(3) > 0
    assert len(norms) == 3
    assert all(
        not torch.equal(*pair) for pair in zip(before, timer.model.parameters(), strict=True)
    )


def test_no_process_is_an_error(tiny_study, tmp_path):
    with pytest.raises(ValueError, match=r"processes must be at least 1.*got 0"):
        measure_step_seconds(read_study(tiny_study), tmp_path / "out", processes=0)
    assert not (tmp_path / "out").exists()


def write_seconds(folder, seconds):
    models = [
        {"labels": {"data": "mnist", "kernel": kernel, "position": "rotation"}, "seconds": each}
        for kernel, each in seconds.items()
    ]
    content = {"rounds": 9, "hardware": "two cores", "date": "2021-02-16", "models": models}
    (folder / "step_seconds.json").write_text(json.dumps(content), encoding="utf-8")


def test_a_cell_takes_its_steps_times_the_seconds_of_one(study_folder, study_cell):
    folder = study_folder(
        study_cell(), study_cell(kernel="taylor 2"), study_cell(kernel="taylor 2", seed=1)
    )
    write_seconds(folder, {"softmax": 0.02, "taylor 2": 0.05})
    study = read_study_results(folder)
    assert {(one.labels["kernel"], one.seed): one.process_seconds for one in study.results} == {
        ("softmax", 0): pytest.approx(12.5),
        ("taylor 2", 0): pytest.approx(31.25),
        ("taylor 2", 1): pytest.approx(31.25),
    }
    for one in study.results:
        assert one.learning_curve[-1].process_seconds == one.process_seconds
        assert one.learning_curve[0].process_seconds == pytest.approx(
            one.process_seconds * 78 / 625
        )
    (note,) = [note for note in study_notes(study, {}) if note.startswith("CPU seconds")]
    assert note == (
        "CPU seconds: steps times those of one step, the median of 9 rounds in which every model was timed in turn, "
        "on two cores, 2021-02-16."
    )


def test_where_a_model_was_not_timed_every_cell_keeps_the_seconds_of_its_training(
    study_folder, study_cell
):
    cells = [study_cell(), study_cell(kernel="taylor 2")]
    folder = study_folder(*cells)
    write_seconds(folder, {"softmax": 0.02})
    study = read_study_results(folder)
    assert [one.process_seconds for one in study.results] == [
        cell["process_seconds"] for cell in cells
    ]
    (note,) = [note for note in study_notes(study, {}) if note.startswith("CPU seconds")]
    assert "of each cell's own training" in note


def test_a_diverged_cell_needs_no_seconds(study_folder, study_cell, failed_cell):
    folder = study_folder(study_cell(), failed_cell(kernel="taylor 2"))
    write_seconds(folder, {"softmax": 0.02})
    study = read_study_results(folder)
    assert study.timing is not None
    assert len(study.failed) == 1


def test_a_file_that_is_not_what_it_should_be_is_named(study_folder, study_cell):
    folder = study_folder(study_cell())
    assert read_step_seconds(folder) is None
    write_seconds(folder, {"softmax": -1})
    with pytest.raises(
        ValueError, match=r"step_seconds\.json: step_seconds\.models\[0\]\.seconds must be .*got -1"
    ):
        read_study_results(folder)
