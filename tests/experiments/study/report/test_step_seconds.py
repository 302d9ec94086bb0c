import json

import pytest

from teka.experiments.study.report.results import read_study_results
from teka.experiments.study.report.step_seconds import read_step_seconds
from teka.experiments.study.report.table import study_notes


def write_seconds(folder, seconds):
    models = [
        {"labels": {"data": "mnist", "kernel": kernel, "position": "rotation"}, "seconds": each}
        for kernel, each in seconds.items()
    ]
    content = {"rounds": 9, "hardware": "two cores", "date": "2021-02-16", "models": models}
    (folder / "step_seconds.json").write_text(json.dumps(content), encoding="utf-8")


def test_a_cell_takes_its_steps_times_the_seconds_of_one(study_folder, study_cell):
    folder = study_folder(study_cell(), study_cell(kernel="taylor 2"), study_cell(kernel="taylor 2", seed=1))
    write_seconds(folder, {"softmax": 0.02, "taylor 2": 0.05})
    study = read_study_results(folder)
    assert {(one.labels["kernel"], one.seed): one.process_seconds for one in study.results} == {
        ("softmax", 0): pytest.approx(12.5),
        ("taylor 2", 0): pytest.approx(31.25),
        ("taylor 2", 1): pytest.approx(31.25),
    }
    for one in study.results:
        assert one.learning_curve.process_seconds[-1] == one.process_seconds
        assert one.learning_curve.process_seconds[0] == pytest.approx(one.process_seconds * 78 / 625)
    (note,) = [note for note in study_notes(study, {}) if note.startswith("CPU seconds")]
    assert note == (
        "CPU seconds: steps times those of one step, the median of 9 rounds in which every model was timed in turn, "
        "on two cores, 2021-02-16."
    )


def test_where_a_model_was_not_timed_every_cell_keeps_the_seconds_of_its_training(study_folder, study_cell):
    cells = [study_cell(), study_cell(kernel="taylor 2")]
    folder = study_folder(*cells)
    write_seconds(folder, {"softmax": 0.02})
    study = read_study_results(folder)
    assert [one.process_seconds for one in study.results] == [cell["process_seconds"] for cell in cells]
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
    with pytest.raises(ValueError, match=r"step_seconds\.json: models\[0\]\.seconds is -1"):
        read_study_results(folder)
