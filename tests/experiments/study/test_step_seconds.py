import json
import os

import pytest
import torch

from teka.experiments.study import Progress, measure_step_seconds, read_study
from teka.experiments.study.report.results import read_study_results
from teka.experiments.study.run_cell import load_cell_data
from teka.experiments.study.step_seconds import STEPS, WARMUP, StepTimer

pytestmark = pytest.mark.xdist_group("study")


def test_every_model_is_timed_as_often_with_the_threads_of_a_cell(tiny_study, tmp_path):
    stages, before = [], torch.get_num_threads()
    path = measure_step_seconds(
        read_study(tiny_study), tmp_path, processes=os.cpu_count() or 1, command="teka study", progress=stages.append
    )
    content = json.loads(path.read_text(encoding="utf-8"))
    assert [model["labels"] for model in content["models"]] == [
        {"kernel": "softmax", "position": "none"},
        {"kernel": "squared relu", "position": "none"},
        {"kernel": "squared relu", "position": "absolute"},
    ]
    assert all(0 < model["lowest"] <= model["seconds"] <= model["highest"] for model in content["models"])
    assert (content["threads"], content["command"]) == (1, "teka study")
    assert torch.get_num_threads() == before
    total = 3 * (1 + content["rounds"])
    assert stages[0] == Progress("timing", 0, total, None)
    assert [stage.done for stage in stages] == list(range(total + 1))


def test_a_timed_step_is_a_step_of_training(tiny_study, monkeypatch):
    study = read_study(tiny_study)
    cell = study.make_cell({"kernel": "squared relu", "position": "absolute"}, 0)
    torch.manual_seed(0)
    timer = StepTimer(cell, load_cell_data(cell.run, None))
    assert timer.model.training
    assert len(timer.images) == cell.run.batch_size
    norms, clip = [], torch.nn.utils.clip_grad_norm_
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *given: norms.append(clip(*given)))
    before = [parameter.detach().clone() for parameter in timer.model.parameters()]
    timer.warm_up()
    timer.measure()
    assert len(norms) == WARMUP + STEPS
    assert len(timer.seconds) == 1
    assert all(not torch.equal(*pair) for pair in zip(before, timer.model.parameters(), strict=True))


def test_the_tables_take_these_seconds(finished, tiny_study, tmp_path):
    (tmp_path / "cells").symlink_to(finished / "cells")
    path = measure_step_seconds(read_study(tiny_study), tmp_path)
    seconds = {
        tuple(model["labels"].values()): model["seconds"]
        for model in json.loads(path.read_text(encoding="utf-8"))["models"]
    }
    for result in read_study_results(tmp_path).results:
        assert result.process_seconds == pytest.approx(result.steps * seconds[tuple(result.labels.values())])


def test_no_process_is_an_error(tiny_study, tmp_path):
    with pytest.raises(ValueError, match="processes is 0, expected at least 1"):
        measure_step_seconds(read_study(tiny_study), tmp_path / "out", processes=0)
    assert not (tmp_path / "out").exists()
