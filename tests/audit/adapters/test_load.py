import importlib.util
import os
import shutil
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from teka.audit.adapters import LOADERS, LoadedModel, Loader, LoadOptions, load
from teka.audit.adapters.loaded_model import safe_loading
from teka.audit.adapters.programs import load_from_python_file
from teka.audit.adapters.timm_torchvision import (
    load_timm,
    load_torchvision,
    preprocessing_from_data_config,
    preprocessing_from_preset,
)
from teka.data import Normalize
from tests.raising import raises_for

SOURCE = """
import torch
from torch import nn
from beside import WIDTH
from teka.audit.adapters import Preprocessing, LoadedModel

def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(6, WIDTH)).train()

def function():
    return lambda images: images.sum(dim=(2, 3))

def subject():
    return LoadedModel("mine", "factory", lambda images: images, transform=Preprocessing(1, (3, 3)))

def number():
    return 7

def fails():
    raise KeyError("weights")
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.py").write_text("WIDTH = 4\n")
    (tmp_path / "mine.py").write_text(SOURCE)
    yield tmp_path / "mine.py"
    sys.modules.pop("beside", None)


def test_load_chooses_the_loader_by_the_model_name(vit_folder, file):
    shutil.copytree(vit_folder, file.parent / "vit")
    kinds = [load(spec).kind for spec in ("vit", "transformers:vit", "mine.py:network")]
    assert kinds == ["transformers", "transformers", "factory"]


def test_additional_loader_comes_first_and_num_classes_is_checked(file):
    seven_classes = LoadedModel("seven", "mine", lambda images: images, num_classes=7)
    loader = Loader("a number", str.isdigit, lambda spec, load_options: seven_classes)
    assert load("7", LoadOptions(num_classes=7), loaders=[loader]) is seven_classes
    with pytest.raises(ValueError, match=r"a model of 4 classes, .*It has 7"):
        load("7", LoadOptions(num_classes=4), loaders=[loader])
    with pytest.raises(ValueError, match=r"a model of 4 classes, .*It has an unknown number"):
        load("mine.py:function", LoadOptions(num_classes=4))
    with pytest.raises(ValueError, match=r"one of: a number [|]") as error:
        load("seven", loaders=[loader])
    assert all(loader.form in str(error.value) for loader in LOADERS)


def test_unavailable_device_is_an_error_of_one_line(file):
    for device in ("warp", "cuda:99", "meta"):
        with pytest.raises(ValueError, match=rf"device must be .*got '{device}'") as error:
            load("mine.py:function", LoadOptions(device=device))
        assert "\n" not in str(error.value)


def test_missing_path_is_an_error_that_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("./run", "../run", f"{tmp_path}/run", "~/no run", "runs/mnist/best", "run/"):
        with raises_for(path, ValueError, match=r"or a path that exists, got '.*run"):
            load(path)
    for path in ("net.onnx", "net.pt2", "net.pt", "folder/net.safetensors"):
        with raises_for(path, ValueError, match=r"or a path that exists, got '.*net"):
            load(path)
    with pytest.raises(ValueError, match="an existing file, got"):
        load("a/b/module.py:make")


def test_file_of_weights_without_a_model_is_an_error(tmp_path):
    torch.save({"weights": torch.ones(1)}, tmp_path / "model.pt")
    with pytest.raises(ValueError, match="A file of weights does not contain the architecture"):
        load(str(tmp_path / "model.pt"))


def test_factory_can_return_a_module(file):
    old_value = list(sys.path)
    subject = load_from_python_file(f"{file}:network", LoadOptions(input_size=(2, 3)))
    assert sys.path == old_value
    assert subject.name == "mine:network"
    assert isinstance(subject.module, nn.Sequential)
    assert subject.module.training
    assert (subject.input_size, subject.in_channels) == ((2, 3), None)
    answer = subject.function(torch.rand(5, 1, 2, 3))
    assert isinstance(answer, torch.Tensor)
    assert tuple(answer.shape) == (5, 4)


def test_module_of_a_factory_gets_the_channels_of_its_first_convolution(tmp_path):
    source = "from torch import nn\ndef net():\n    return nn.Conv2d({channels}, 6, 3).eval()"
    for channels, expected in ((1, 1), (3, 3), (6, None)):
        file = tmp_path / f"net_{channels}.py"
        file.write_text(source.format(channels=channels))
        assert load_from_python_file(f"{file}:net").in_channels == expected


def test_factory_can_return_a_callable_or_a_loaded_model(file):
    assert load_from_python_file(f"{file}:function").module is None
    options = LoadOptions(mean=(0.5,) * 3, deviation=(0.25,) * 3, blue_first=True)
    images = torch.rand(2, 3, 4, 4)
    expected = load_from_python_file(f"{file}:function").function((images.flip(1) - 0.5) / 0.25)
    output = load_from_python_file(f"{file}:function", options).function(images)
    torch.testing.assert_close(output, expected, rtol=0, atol=0)
    subject = load_from_python_file(f"{file}:subject")
    assert (subject.name, subject.transform.resize) == ("mine", (3, 3))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("number", "not int"),
        ("fails", "raised KeyError"),
        ("netwrok", "must be one of .*'network'.*Did you mean 'network'"),
        ("", "path/module.py:function"),
    ],
)
def test_factory_without_a_model_is_an_error(file, name, message):
    with pytest.raises(ValueError, match=message):
        load_from_python_file(f"{file}:{name}")


def test_missing_or_failing_factory_file_is_an_error(tmp_path):
    (tmp_path / "bad.py").write_text("import no_such_package_as_this")
    with pytest.raises(ValueError, match="raised ModuleNotFoundError"):
        load_from_python_file(f"{tmp_path / 'bad.py'}:model")
    with pytest.raises(ValueError, match="an existing file"):
        load_from_python_file(f"{tmp_path / 'absent.py'}:model")


# The result of timm's resolve_model_data_config for resnet50.tv_in1k.
RESNET50 = {
    "input_size": (3, 224, 224),
    "interpolation": "bilinear",
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
    "crop_pct": 0.875,
    "crop_mode": "center",
}
# The attributes of torchvision's ImageClassification.
PRESET = SimpleNamespace(
    crop_size=[224],
    resize_size=[232],
    mean=[0.485, 0.456, 0.406],
    std=[0.229, 0.224, 0.225],
    interpolation=SimpleNamespace(value="bicubic"),
)


class Object:
    pass


def test_timm_resizes_the_shorter_side_to_the_crop_divided_by_crop_pct():
    transform = preprocessing_from_data_config(RESNET50)
    assert (transform.resize, transform.crop, transform.resampling) == (256, (224, 224), "bilinear")
    assert transform.normalization == Normalize(RESNET50["mean"], RESNET50["std"])
    odd = preprocessing_from_data_config({**RESNET50, "crop_pct": 0.95, "interpolation": "bicubic"})
    assert (odd.resize, odd.resampling) == (235, "bicubic")
    assert preprocessing_from_data_config({**RESNET50, "crop_pct": None}).resize == 256
    squashed = preprocessing_from_data_config(
        {**RESNET50, "input_size": (3, 160, 96), "crop_pct": 1.0, "crop_mode": "squash"}
    )
    assert (squashed.resize, squashed.crop) == ((160, 96), (160, 96))


@pytest.mark.parametrize("changes", [{"crop_mode": "border"}, {"input_size": (3, 160, 96)}])
def test_unsupported_timm_config_is_an_error(changes):
    with pytest.raises(ValueError, match="crop_mode"):
        preprocessing_from_data_config({**RESNET50, **changes})


def test_torchvision_resizes_the_shorter_side_and_crops_the_center():
    transform = preprocessing_from_preset(PRESET)
    assert (transform.resize, transform.crop, transform.resampling) == (232, (224, 224), "bicubic")
    assert transform.normalization == Normalize(RESNET50["mean"], RESNET50["std"])


@pytest.mark.parametrize(
    ("package", "load"), [("timm", load_timm), ("torchvision", load_torchvision)]
)
def test_missing_library_or_model_is_an_error(package, load):
    missing = importlib.util.find_spec(package) is None
    expected = f"pip install '{package}'" if missing else "no_such_model"
    with pytest.raises(ImportError if missing else ValueError, match=expected):
        load("no_such_model")


@pytest.mark.parametrize("old_value", [None, "0"])
def test_load_safely_refuses_pickled_objects(tmp_path, monkeypatch, old_value):
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    monkeypatch.delenv(name, raising=False)
    if old_value is not None:
        monkeypatch.setenv(name, old_value)
    torch.save({"weights": torch.ones(2)}, tmp_path / "tensors.pt")
    torch.save({"object": Object()}, tmp_path / "objects.pt")
    with safe_loading("timm:a", "a model"):
        assert torch.load(tmp_path / "tensors.pt", weights_only=False)["weights"].sum() == 2
    with (
        pytest.raises(ValueError, match=r"model must be a model .*[Ww]eights.*got 'timm:a'"),
        safe_loading("timm:a", "a model"),
    ):
        torch.load(tmp_path / "objects.pt", weights_only=False)
    assert os.environ.get(name) == old_value
    assert isinstance(torch.load(tmp_path / "objects.pt", weights_only=False)["object"], Object)
