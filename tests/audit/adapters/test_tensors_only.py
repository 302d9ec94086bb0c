import os

import pytest
import torch

from teka.audit.adapters.tensors_only import tensors_only


class Object:
    pass


def test_objects_cannot_be_unpickled_whatever_a_library_asks_for(tmp_path):
    torch.save({"weights": torch.ones(2)}, tmp_path / "tensors.pt")
    torch.save({"object": Object()}, tmp_path / "objects.pt")
    with tensors_only():
        assert torch.load(tmp_path / "tensors.pt", weights_only=False)["weights"].sum() == 2
        with pytest.raises(Exception, match=r"[Ww]eights"):
            torch.load(tmp_path / "objects.pt", weights_only=False)
    assert isinstance(torch.load(tmp_path / "objects.pt", weights_only=False)["object"], Object)


@pytest.mark.parametrize("before", [None, "0"])
def test_the_environment_is_left_as_it_was(monkeypatch, before):
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    monkeypatch.delenv(name, raising=False)
    if before is not None:
        monkeypatch.setenv(name, before)
    with pytest.raises(KeyError), tensors_only():
        raise KeyError
    assert os.environ.get(name) == before
