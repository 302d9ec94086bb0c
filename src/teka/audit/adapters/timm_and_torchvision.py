"""Models of timm, and classifiers of torchvision, by name, with their trained weights."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from teka.audit.adapters.preprocessing import Preprocessing
from teka.audit.adapters.subject import Size, Subject, subject_of_module
from teka.data import Normalize
from teka.errors import require, wrong_value

_TENSORS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
_PRESET_FIELDS = ("resize_size", "crop_size", "mean", "std", "interpolation")


def load_timm(name: str, *, input_size: Size = None, device: torch.device | str | None = None) -> Subject:
    """A model of timm, as `timm.create_model` takes it, such as "resnet50.a1_in1k"; the weights are downloaded."""
    library: Any = require("timm", "this model needs", "timm")
    with tensors_only(f"timm:{name}", "a model of timm"):
        module = library.create_model(name, pretrained=True).eval()
    config = library.data.resolve_model_data_config(module)
    transform, size = read_data_config(config).resized_to(input_size)
    return subject_of_module(module, name, "timm", transform, size, device, num_classes=module.num_classes)


def load_torchvision(name: str, *, input_size: Size = None, device: torch.device | str | None = None) -> Subject:
    """A classifier of torchvision, as `torchvision.models.get_model` takes it, with its best weights, downloaded."""
    models: Any = require("torchvision.models", "this model needs", "torchvision")
    with tensors_only(f"torchvision:{name}", "a classifier of torchvision"):
        weights = models.get_model_weights(name).DEFAULT
        module = models.get_model(name, weights=weights).eval()
    transform, size = read_preset(weights.transforms()).resized_to(input_size)
    names = tuple(weights.meta["categories"])
    return subject_of_module(
        module, f"{name} ({weights.name})", "torchvision", transform, size, device, class_names=names
    )


@contextmanager
def tensors_only(model: str, kind: str) -> Iterator[None]:
    """Every `torch.load` within reads tensors only, whatever its caller asked for; what is raised is one line."""
    before = os.environ.get(_TENSORS_ONLY)
    os.environ[_TENSORS_ONLY] = "1"
    try:
        yield
    # What a library raises depends on what is missing, and where from.
    except Exception as error:
        reason = " ".join(str(error).split())
        raise wrong_value("model", model, f"{kind} with trained weights ({reason})") from error
    finally:
        if before is None:
            del os.environ[_TENSORS_ONLY]
        else:
            os.environ[_TENSORS_ONLY] = before


def read_data_config(config: dict[str, Any]) -> Preprocessing:
    """The evaluation preprocessing that timm makes of what `timm.data.resolve_model_data_config` gives.

    `crop_pct` is the share of the resized picture that is kept. Crop mode "border", which puts borders of the mean
    colour around pictures, is refused.

    Source: timm, data/transforms_factory.py, transforms_imagenet_eval.
    """
    channels, height, width = config["input_size"]
    share = config.get("crop_pct") or 0.875
    enlarged = (math.floor(height / share), math.floor(width / share))
    mode = config.get("crop_mode") or "center"
    if mode == "border" or (mode == "center" and enlarged[0] != enlarged[1]):
        raise wrong_value("crop_mode", f"{mode}, {height} × {width}", "'squash', or 'center' of a square")
    resize = enlarged[0] if mode == "center" else enlarged
    normalization = _normalization(config["mean"], config["std"])
    return Preprocessing(channels, resize, config["interpolation"], (height, width), normalization)


def read_preset(preset: Any) -> Preprocessing:
    """The preprocessing of an inference preset of torchvision's classifiers, as `weights.transforms()` gives it.

    Source: torchvision, transforms/_presets.py, ImageClassification.
    """
    missing = [field for field in _PRESET_FIELDS if not hasattr(preset, field)]
    if missing:
        raise wrong_value("model", type(preset).__name__, f"a classifier's preset; it has no {', '.join(missing)}")
    (shorter,), (side,) = preset.resize_size, preset.crop_size
    normalization = _normalization(preset.mean, preset.std)
    return Preprocessing(len(preset.mean), shorter, preset.interpolation.value, (side, side), normalization)


def _normalization(mean: Any, deviation: Any) -> Normalize:
    return Normalize(tuple(map(float, mean)), tuple(map(float, deviation)))
