import importlib.util
import os
from types import SimpleNamespace

import pytest
import torch

from teka.audit.adapters.timm_and_torchvision import (
    load_timm,
    load_torchvision,
    read_data_config,
    read_preset,
    tensors_only,
)
from teka.data import Normalize

# As timm's resolve_model_data_config gives it for resnet50.tv_in1k.
RESNET50 = {
    "input_size": (3, 224, 224),
    "interpolation": "bilinear",
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
    "crop_pct": 0.875,
    "crop_mode": "center",
}
# As torchvision's ImageClassification keeps its settings.
PRESET = SimpleNamespace(
    crop_size=[224],
    resize_size=[232],
    mean=[0.485, 0.456, 0.406],
    std=[0.229, 0.224, 0.225],
    interpolation=SimpleNamespace(value="bicubic"),
)


class Object:
    pass


def test_timm_enlarges_the_shorter_side_by_the_share_that_is_kept():
    transform = read_data_config(RESNET50)
    assert (transform.resize, transform.crop, transform.resampling) == (256, (224, 224), "bilinear")
    assert transform.normalization == Normalize(RESNET50["mean"], RESNET50["std"])
    odd = read_data_config({**RESNET50, "crop_pct": 0.95, "interpolation": "bicubic"})
    assert (odd.resize, odd.resampling) == (235, "bicubic")
    assert read_data_config({**RESNET50, "crop_pct": None}).resize == 256
    squashed = read_data_config({**RESNET50, "input_size": (3, 160, 96), "crop_pct": 1.0, "crop_mode": "squash"})
    assert (squashed.resize, squashed.crop) == ((160, 96), (160, 96))


@pytest.mark.parametrize("changes", [{"crop_mode": "border"}, {"input_size": (3, 160, 96)}])
def test_settings_of_timm_that_would_be_read_wrongly_are_refused(changes):
    with pytest.raises(ValueError, match="crop_mode"):
        read_data_config({**RESNET50, **changes})


def test_torchvision_resizes_the_shorter_side_and_crops_the_middle():
    transform = read_preset(PRESET)
    assert (transform.resize, transform.crop, transform.resampling) == (232, (224, 224), "bicubic")
    assert transform.normalization == Normalize(RESNET50["mean"], RESNET50["std"])
    with pytest.raises(ValueError, match="it has no resize_size"):
        read_preset(SimpleNamespace())


@pytest.mark.parametrize(("package", "load"), [("timm", load_timm), ("torchvision", load_torchvision)])
def test_a_missing_library_or_model_is_said(package, load):
    missing = importlib.util.find_spec(package) is None
    expected = f"pip install {package}" if missing else "no_such_model"
    with pytest.raises(ImportError if missing else ValueError, match=expected):
        load("no_such_model")


@pytest.mark.parametrize("before", [None, "0"])
def test_objects_cannot_be_unpickled_whatever_a_library_asks_for(tmp_path, monkeypatch, before):
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    monkeypatch.delenv(name, raising=False)
    if before is not None:
        monkeypatch.setenv(name, before)
    torch.save({"weights": torch.ones(2)}, tmp_path / "tensors.pt")
    torch.save({"object": Object()}, tmp_path / "objects.pt")
    with tensors_only("timm:a", "a model"):
        assert torch.load(tmp_path / "tensors.pt", weights_only=False)["weights"].sum() == 2
    with (
        pytest.raises(ValueError, match=r"model is 'timm:a', expected a model .*[Ww]eights"),
        tensors_only("timm:a", "a model"),
    ):
        torch.load(tmp_path / "objects.pt", weights_only=False)
    assert os.environ.get(name) == before
    assert isinstance(torch.load(tmp_path / "objects.pt", weights_only=False)["object"], Object)
