import json
import shutil
from typing import Any

import pytest
import torch
from PIL import Image

from teka.models import load, read_config
from teka.training import evaluate, export, restore, train


def test_a_restored_model_is_ready_to_evaluate(trained):
    assert not trained.model.training
    assert trained.name == "rotary, positive"


def test_an_unfinished_run_is_an_error(trained, tmp_path):
    shutil.copytree(trained.folder, tmp_path / "copy")
    (tmp_path / "copy" / "result.json").unlink()
    with pytest.raises(ValueError, match="finished"):
        restore(tmp_path / "copy")


def test_a_checkpoint_of_another_architecture_is_an_error(trained, run_with_margins, tmp_path):
    shutil.copytree(trained.folder, tmp_path / "copy")
    text = (tmp_path / "copy" / "run.json").read_text()
    (tmp_path / "copy" / "run.json").write_text(text.replace('"dim": 8', '"dim": 16'))
    with pytest.raises(ValueError, match="checkpoint"):
        restore(tmp_path / "copy")


def test_evaluate_counts_every_test_image_and_saves_the_result(trained):
    counts: list[tuple[int, int]] = []
    shown = {"progress": lambda done, total: counts.append((done, total))}
    evaluation = evaluate(trained, batch_size=100, command="teka evaluate", **shown)
    assert counts == [(100, 360), (200, 360), (300, 360), (360, 360)]
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


def test_batch_size_of_0_is_an_error(trained):
    with pytest.raises(ValueError, match="batch_size"):
        evaluate(trained, batch_size=0)


def test_class_names_are_read_from_moved_data(tiny, tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "old" / "pets" / name).mkdir(parents=True)
        for number in range(10):
            Image.new("L", (8, 8), 20 * number).save(
                tmp_path / "old" / "pets" / name / f"{number}.png"
            )
    own = {
        "data": "pets",
        "data_dir": str(tmp_path / "old"),
        "train_size": None,
        "validation_size": None,
    }
    train(tiny.replace(**own, epochs=1), tmp_path / "run")
    moved = (tmp_path / "old").rename(tmp_path / "new")
    trained = restore(tmp_path / "run", data_dir=str(moved))
    assert read_config(export(trained, tmp_path / "model")).class_names == ("cat", "dog")


def test_export_saves_the_model_with_the_facts_of_its_run(trained, tmp_path):
    evaluation = evaluate(trained)
    folder = export(trained, tmp_path / "model")
    images = trained.dataset.test.images[:5]
    torch.testing.assert_close(load(folder)(images), trained.model(images))
    config = read_config(folder)
    facts: Any = config.facts
    assert config.class_names == tuple("0123456789")
    assert config.pictures == {"fit": "ink", "canvas": [8, 8], "box": [8, 8], "stroke": 0.0}
    assert facts["run"]["seed"] == trained.run.seed
    assert facts["run"]["betas"] == list(trained.run.betas)
    assert "data_dir" not in facts["run"]
    assert facts["training"]["validation_accuracy"] == trained.result["validation_accuracy"]
    assert facts["evaluation"]["accuracy"] == evaluation.accuracy
