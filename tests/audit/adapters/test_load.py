import shutil

import pytest
import torch

from teka.audit.adapters import FORMS, load
from teka.models import ModelConfig, save


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_form_is_told_by_its_look(vit_folder, here):
    shutil.copytree(vit_folder, here / "vit")
    (here / "mine.py").write_text("import torch\n\ndef make():\n    return torch.nn.Flatten().eval()\n")
    config = ModelConfig("resnet18", (8, 8), 1, 3)
    save(config.make_model(), here / "digits", config)
    kinds = {spec: load(spec).kind for spec in ("digits", "./digits", "vit", "transformers:vit", "mine.py:make")}
    assert list(kinds.values()) == ["teka model file", "teka model file", "transformers", "transformers", "factory"]
    assert load("digits").num_classes == 10
    assert load("./digits").num_classes == 3


def test_the_number_of_classes_is_held():
    assert load("digits", num_classes=10).num_classes == 10
    with pytest.raises(ValueError, match="a model of 4 classes, as the data have; it has 10"):
        load("digits", num_classes=4)


@pytest.mark.parametrize("size", [16, (16, 16)])
def test_the_size_that_a_model_was_made_for_may_be_said(size):
    assert load("digits", input_size=size).input_size == (16, 16)


def test_another_size_is_refused():
    with pytest.raises(ValueError, match=r"input_size is 20, expected \(16, 16\)"):
        load("digits", input_size=20)


def test_an_impossible_device_is_one_line():
    for device in ("warp", "cuda:99"):
        with pytest.raises(ValueError, match=f"device is '{device}'") as caught:
            load("digits", device=device)
        assert "\n" not in str(caught.value)


def test_a_file_of_weights_alone_is_refused_and_not_opened(here):
    torch.save({"weights": torch.ones(1)}, here / "model.pt")
    with pytest.raises(ValueError, match="a file of weights alone"):
        load("model.pt")


def test_anything_else_gets_the_list_of_forms():
    with pytest.raises(ValueError, match="one of") as caught:
        load("dgits")
    assert all(form in str(caught.value) for form in FORMS)
