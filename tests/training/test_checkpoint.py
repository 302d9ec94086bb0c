import json
import pickle
import shutil

import pytest
import torch

from teka.training import Run, restore, train
from teka.training.checkpoint import REQUIRED_KEYS, find_checkpoint, load_weights, read_weights


def model(**options):
    run = Run.from_fields(dim=8, depth=2, heads=2, **options)
    return run.make_model(image_size=(8, 8), in_channels=1, num_classes=10)


def save(made, path):
    torch.save(
        {"state_dict": {f"model.{name}": tensor for name, tensor in made.state_dict().items()}},
        path,
    )


def test_weights_are_read_back(tmp_path):
    made, other = model(), model()
    save(made, tmp_path / "it.ckpt")
    load_weights(other, tmp_path / "it.ckpt")
    assert all(
        torch.equal(tensor, other.state_dict()[name]) for name, tensor in made.state_dict().items()
    )


def test_a_checkpoint_of_another_architecture_is_an_error_that_names_what_differs(tmp_path):
    for saved, current, difference in (
        (
            {"position": "absolute"},
            {"position": "none"},
            r"Unexpected.*absolute_position\.frequency",
        ),
        ({"position": "none"}, {"position": "absolute"}, r"Missing.*absolute_position\.frequency"),
        ({"mlp_ratio": 4.0}, {"mlp_ratio": 2.0}, r"size mismatch for blocks\.0\.mlp"),
    ):
        save(model(**saved), tmp_path / "it.ckpt")
        with pytest.raises(ValueError, match=rf"of this architecture .*{difference}.*it\.ckpt"):
            load_weights(model(**current), tmp_path / "it.ckpt")


def test_a_missing_checkpoint_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="checkpoint"):
        read_weights(tmp_path / "none.ckpt")


def test_a_truncated_checkpoint_is_an_error(tmp_path):
    save(model(), tmp_path / "it.ckpt")
    content = (tmp_path / "it.ckpt").read_bytes()
    for keep in (0, 10, 1000):
        (tmp_path / "it.ckpt").write_bytes(content[:keep])
        with pytest.raises(ValueError, match="checkpoint"):
            read_weights(tmp_path / "it.ckpt")


class Malicious:
    def __reduce__(self):
        return (print, ("unpickled",))


def test_nothing_but_plain_containers_is_unpickled(tmp_path, capsys):
    torch.save({"state_dict": {}, "extra": Malicious()}, tmp_path / "it.ckpt")
    with pytest.raises(ValueError, match="checkpoint"):
        read_weights(tmp_path / "it.ckpt")
    (tmp_path / "plain.ckpt").write_bytes(pickle.dumps(Malicious()))
    with pytest.raises(ValueError, match="checkpoint"):
        read_weights(tmp_path / "plain.ckpt")
    assert "unpickled" not in capsys.readouterr().out


@pytest.fixture
def unfinished(trained, tmp_path):
    """A copy of a run's folder without its result."""
    folder = tmp_path / "run"
    shutil.copytree(trained.folder, folder)
    (folder / "result.json").unlink()
    return folder


def test_a_checkpoint_without_a_part_is_an_error_that_names_the_file(unfinished, tiny):
    path = unfinished / "checkpoints" / "last.ckpt"
    whole = torch.load(path, weights_only=True)
    for part in REQUIRED_KEYS:
        torch.save({name: value for name, value in whole.items() if name != part}, path)
        with pytest.raises(ValueError, match=r"checkpoint must be .*got .*last\.ckpt"):
            find_checkpoint(unfinished, tiny)
    with pytest.raises(ValueError, match=r"checkpoint must be .*got .*last\.ckpt"):
        train(tiny, unfinished, resume=True)


@pytest.mark.parametrize("change", ["missing", "extra", "of another shape"])
def test_a_checkpoint_with_other_weights_is_an_error_that_names_the_file(unfinished, tiny, change):
    path = unfinished / "checkpoints" / "last.ckpt"
    content = torch.load(path, weights_only=True)
    weights = content["state_dict"]
    weight = weights.pop("model.head.weight")
    if change != "missing":
        weights["model.head.weight"] = weight if change == "extra" else weight[:, :-1]
    if change == "extra":
        weights["model.more"] = weight
    torch.save(content, path)
    with pytest.raises(ValueError, match=r"checkpoint must be .*got .*last\.ckpt"):
        train(tiny, unfinished, resume=True)


def test_an_edited_run_is_refused_with_what_differs(trained, unfinished, tiny):
    edited = tiny.replace(learning_rate=0.5)
    edited.save(unfinished)
    with pytest.raises(ValueError, match=r"learning_rate is 0\.002 there and 0\.5 here"):
        train(edited, unfinished, resume=True)
    shutil.copy(trained.folder / "result.json", unfinished)
    with pytest.raises(ValueError, match=r"learning_rate is 0\.002 there and 0\.5 here"):
        restore(unfinished)


def test_a_result_that_no_training_wrote_is_an_error(unfinished, tiny):
    for content in ({}, {"parameters": "many"}, {"parameters": 3, "epochs": None, "seconds": 1}):
        (unfinished / "result.json").write_text(json.dumps(content))
        with pytest.raises(
            ValueError, match=r"(parameters|epochs) of .*result\.json must be a number"
        ):
            train(tiny, unfinished, resume=True)
        with pytest.raises(
            ValueError, match=r"(parameters|epochs) of .*result\.json must be a number"
        ):
            restore(unfinished)


def test_a_run_of_an_older_teka_is_read_and_not_gone_on_with(trained, unfinished, tiny):
    for path in (unfinished / "checkpoints").iterdir():
        content = torch.load(path, weights_only=True)
        del content["callbacks"]["Checkpoints"]
        torch.save(content, path)
    with pytest.raises(ValueError, match="of an older version of teka cannot be resumed"):
        train(tiny, unfinished, resume=True)
    shutil.copy(trained.folder / "result.json", unfinished)
    state = restore(unfinished).model.state_dict()
    assert all(
        torch.equal(tensor, state[name]) for name, tensor in trained.model.state_dict().items()
    )
