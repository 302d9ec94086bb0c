import json
import pickle
import shutil

import pytest
import torch

from teka.training import Run, restore, train
from teka.training.checkpoint import (
    REQUIRED_KEYS,
    find_resume_checkpoint,
    load_weights,
    read_weights,
)


def make_model(**options):
    run = Run.from_fields(dim=8, depth=2, heads=2, **options)
    return run.make_model(image_size=(8, 8), in_channels=1, num_classes=10)


def save_checkpoint(made, path):
    torch.save(
        {"state_dict": {f"model.{name}": tensor for name, tensor in made.state_dict().items()}},
        path,
    )


def test_load_weights_restores_the_saved_weights(tmp_path):
    made, other = make_model(), make_model()
    save_checkpoint(made, tmp_path / "model.ckpt")
    load_weights(other, tmp_path / "model.ckpt")
    assert all(
        torch.equal(tensor, other.state_dict()[name]) for name, tensor in made.state_dict().items()
    )


def test_checkpoint_of_another_architecture_is_an_error_with_the_difference(tmp_path):
    for saved, current, difference in (
        (
            {"position": "absolute"},
            {"position": "none"},
            r"a file for this model, got .*absolute_position\.frequency is unknown",
        ),
        (
            {"position": "none"},
            {"position": "absolute"},
            r"a file for this model, got .*absolute_position\.frequency is missing",
        ),
        (
            {"mlp_ratio": 4.0},
            {"mlp_ratio": 2.0},
            r"blocks\.0\.mlp.* must have shape .*, as in this model",
        ),
    ):
        save_checkpoint(make_model(**saved), tmp_path / "model.ckpt")
        with pytest.raises(ValueError, match=difference):
            load_weights(make_model(**current), tmp_path / "model.ckpt")


def test_a_missing_checkpoint_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="checkpoint"):
        read_weights(tmp_path / "none.ckpt")


def test_a_truncated_checkpoint_is_an_error(tmp_path):
    save_checkpoint(make_model(), tmp_path / "model.ckpt")
    content = (tmp_path / "model.ckpt").read_bytes()
    for keep in (0, 10, 1000):
        (tmp_path / "model.ckpt").write_bytes(content[:keep])
        with pytest.raises(ValueError, match="checkpoint"):
            read_weights(tmp_path / "model.ckpt")


class Malicious:
    def __reduce__(self):
        return (print, ("unpickled",))


def test_pickled_code_in_a_checkpoint_is_not_executed(tmp_path, capsys):
    torch.save({"state_dict": {}, "extra": Malicious()}, tmp_path / "model.ckpt")
    with pytest.raises(ValueError, match="checkpoint"):
        read_weights(tmp_path / "model.ckpt")
    (tmp_path / "plain.ckpt").write_bytes(pickle.dumps(Malicious()))
    with pytest.raises(ValueError, match="checkpoint"):
        read_weights(tmp_path / "plain.ckpt")
    assert "unpickled" not in capsys.readouterr().out


@pytest.fixture
def unfinished_folder(trained, tmp_path):
    """Return a copy of the folder of a run without its result."""
    folder = tmp_path / "run"
    shutil.copytree(trained.folder, folder)
    (folder / "result.json").unlink()
    return folder


def test_checkpoint_without_a_required_key_is_an_error_with_its_path(unfinished_folder, tiny):
    path = unfinished_folder / "checkpoints" / "last.ckpt"
    whole = torch.load(path, weights_only=True)
    for part in REQUIRED_KEYS:
        torch.save({name: value for name, value in whole.items() if name != part}, path)
        with pytest.raises(ValueError, match=r"checkpoint must be .*got .*last\.ckpt"):
            find_resume_checkpoint(unfinished_folder, tiny)
    with pytest.raises(ValueError, match=r"checkpoint must be .*got .*last\.ckpt"):
        train(tiny, unfinished_folder, resume=True)


@pytest.mark.parametrize("change", ["missing", "extra", "of another shape"])
def test_checkpoint_with_other_weights_is_an_error_with_its_path(unfinished_folder, tiny, change):
    path = unfinished_folder / "checkpoints" / "last.ckpt"
    content = torch.load(path, weights_only=True)
    weights = content["state_dict"]
    weight = weights.pop("model.head.weight")
    if change != "missing":
        weights["model.head.weight"] = weight if change == "extra" else weight[:, :-1]
    if change == "extra":
        weights["model.more"] = weight
    torch.save(content, path)
    with pytest.raises(ValueError, match=r"checkpoint must be .*got .*last\.ckpt"):
        train(tiny, unfinished_folder, resume=True)


def test_edited_run_is_an_error_with_the_changed_field(trained, unfinished_folder, tiny):
    edited = tiny.replace(learning_rate=0.5)
    edited.save(unfinished_folder)
    with pytest.raises(ValueError, match=r"learning_rate is 0\.002 there and 0\.5 here"):
        train(edited, unfinished_folder, resume=True)
    shutil.copy(trained.folder / "result.json", unfinished_folder)
    with pytest.raises(ValueError, match=r"learning_rate is 0\.002 there and 0\.5 here"):
        restore(unfinished_folder)


def test_malformed_result_is_an_error(unfinished_folder, tiny):
    for content in ({}, {"parameters": "many"}, {"parameters": 3, "epochs": None, "seconds": 1}):
        (unfinished_folder / "result.json").write_text(json.dumps(content))
        with pytest.raises(
            ValueError, match=r"(parameters|epochs) of .*result\.json must be a number"
        ):
            train(tiny, unfinished_folder, resume=True)
        with pytest.raises(
            ValueError, match=r"(parameters|epochs) of .*result\.json must be a number"
        ):
            restore(unfinished_folder)


def test_run_of_an_older_version_is_restored_but_cannot_be_resumed(
    trained, unfinished_folder, tiny
):
    for path in (unfinished_folder / "checkpoints").iterdir():
        content = torch.load(path, weights_only=True)
        del content["callbacks"]["Checkpoints"]
        torch.save(content, path)
    with pytest.raises(ValueError, match="of an older version of teka cannot be resumed"):
        train(tiny, unfinished_folder, resume=True)
    shutil.copy(trained.folder / "result.json", unfinished_folder)
    state = restore(unfinished_folder).model.state_dict()
    assert all(
        torch.equal(tensor, state[name]) for name, tensor in trained.model.state_dict().items()
    )
