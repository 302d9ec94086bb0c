import shutil

import pytest

from teka.training import restore


def test_a_restored_model_is_ready_to_evaluate(trained):
    assert not trained.model.training
    assert trained.name == "rotary, positive"


def test_an_unfinished_run_is_an_error(trained, tmp_path):
    shutil.copytree(trained.folder, tmp_path / "copy")
    (tmp_path / "copy" / "result.json").unlink()
    with pytest.raises(ValueError, match="finished"):
        restore(tmp_path / "copy")


def test_a_checkpoint_of_another_architecture_is_an_error(trained, trained_on_canvas, tmp_path):
    shutil.copytree(trained.folder, tmp_path / "copy")
    text = (tmp_path / "copy" / "run.json").read_text()
    (tmp_path / "copy" / "run.json").write_text(text.replace('"dim": 8', '"dim": 16'))
    with pytest.raises(ValueError, match="checkpoint"):
        restore(tmp_path / "copy")
