import pickle

import pytest
import torch

from teka.training import Run
from teka.training.checkpoint import load_weights, read_weights


def model(**options):
    run = Run(dim=8, depth=2, heads=2, **options)
    return run.make_model(image_size=(8, 8), in_channels=1, num_classes=10)


def save(made, path):
    torch.save({"state_dict": {f"model.{name}": tensor for name, tensor in made.state_dict().items()}}, path)


def test_weights_are_read_back(tmp_path):
    made, other = model(), model()
    save(made, tmp_path / "it.ckpt")
    load_weights(other, tmp_path / "it.ckpt")
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in made.state_dict().items())


def test_a_checkpoint_of_another_architecture_names_what_differs_and_changes_nothing(tmp_path):
    save(model(position="absolute"), tmp_path / "it.ckpt")
    made = model(position="none")
    before = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    with pytest.raises(ValueError, match=r"absolute_position\.frequency"):
        load_weights(made, tmp_path / "it.ckpt")
    assert all(torch.equal(tensor, before[name]) for name, tensor in made.state_dict().items())


def test_a_missing_checkpoint_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="checkpoint"):
        read_weights(tmp_path / "none.ckpt")


@pytest.mark.parametrize("keep", [0, 10, 1000])
def test_a_truncated_checkpoint_is_an_error(tmp_path, keep):
    save(model(), tmp_path / "it.ckpt")
    content = (tmp_path / "it.ckpt").read_bytes()
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
