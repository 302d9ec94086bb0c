from typing import Any

import torch

from teka.models import load, read_config
from teka.training import evaluate
from teka.training.export import export


def test_an_exported_model_is_the_runs_with_what_is_known_of_it(trained, tmp_path):
    evaluation = evaluate(trained)
    folder = export(trained, tmp_path / "model")
    images = trained.dataset.test.images[:5]
    assert torch.equal(load(folder)(images), trained.model(images))
    config = read_config(folder)
    facts: Any = config.facts
    assert config.class_names == tuple("0123456789")
    assert config.pictures == {"fit": "ink", "canvas": [8, 8], "box": [8, 8], "stroke": 0.0}
    assert facts["run"]["seed"] == trained.run.seed
    assert facts["run"]["betas"] == list(trained.run.betas)
    assert "data_dir" not in facts["run"]
    assert facts["training"]["validation_accuracy"] == trained.result["validation_accuracy"]
    assert facts["evaluation"]["accuracy"] == evaluation.accuracy
