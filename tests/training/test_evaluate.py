import json

import pytest
import torch

from teka.training import evaluate


def test_the_evaluation_counts_every_test_image_and_is_written(trained):
    evaluation = evaluate(trained, batch_size=100, command="teka evaluate")
    test = trained.dataset.test
    with torch.inference_mode():
        right = int((trained.model(test.images).argmax(dim=1) == test.labels).sum())
    assert evaluation.test_images == len(test) == 360
    assert evaluation.accuracy == right / 360
    assert evaluation.interval[0] < evaluation.accuracy < evaluation.interval[1]
    assert sum(map(sum, evaluation.confusion)) == 360
    saved = json.loads((trained.folder / "evaluation.json").read_text())
    assert saved["accuracy"] == evaluation.accuracy
    assert saved["command"] == "teka evaluate"


def test_a_batch_without_images_is_an_error(trained):
    with pytest.raises(ValueError, match="batch_size"):
        evaluate(trained, batch_size=0)
