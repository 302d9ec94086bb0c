import shutil
from typing import Any

import joblib
import pytest
import torch

from reproduction.study import read_results_table, read_study
from reproduction.study.step_seconds import measure_step_seconds
from teka.files import read_json


def test_every_model_is_timed_and_the_tables_use_the_seconds(
    finished, tiny_study, tmp_path, monkeypatch
):
    monkeypatch.setattr("reproduction.study.step_seconds.SECONDS", 0.0)
    shutil.copy(finished / "cells.jsonl.gz", tmp_path)
    study, threads = read_study(tiny_study), []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    path = measure_step_seconds(study, tmp_path, processes=2, command="study tiny.yaml")
    content: Any = read_json(path)
    assert [model["labels"] for model in content["models"]] == [
        {"kernel": "softmax", "position": "none"},
        {"kernel": "squared relu", "position": "none"},
        {"kernel": "squared relu", "position": "absolute"},
    ]
    for model in content["models"]:
        assert model["seconds"] > 0
    assert content["command"] == "study tiny.yaml"
    assert threads == [max(1, joblib.cpu_count() // 2)]
    seconds = {tuple(model["labels"].values()): model["seconds"] for model in content["models"]}
    results = read_results_table(study, tmp_path)
    expected = [steps * seconds[index[:-1]] for index, steps in results.steps.items()]
    assert results.process_seconds.tolist() == pytest.approx(expected)
