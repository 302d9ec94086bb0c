"""Models of timm by name."""

import math
from dataclasses import replace
from typing import Any

import torch

from teka.audit.adapters.preprocessing import Preprocessing
from teka.audit.adapters.require import require
from teka.audit.adapters.subject import Subject, subject_of_module
from teka.audit.adapters.tensors_only import tensors_only
from teka.checks import height_and_width
from teka.data import Normalize
from teka.errors import wrong_value

KIND = "timm"


def load_timm(
    name: str, *, input_size: int | tuple[int, int] | None = None, device: torch.device | str | None = None
) -> Subject:
    """A model of timm with its trained weights, which are downloaded if they are not there yet.

    Args:
        name: As `timm.create_model` takes it, such as "resnet50.a1_in1k".
        input_size: Size to which images are resized, for models that take any; by default the one of its weights.
        device: Where it runs; None is the CPU.

    Raises:
        ImportError: timm is not installed.
        ValueError: No such model, no trained weights, or weights that cannot be read without unpickling objects.
    """
    library: Any = require("timm", "timm")
    with tensors_only():
        try:
            module = library.create_model(name, pretrained=True).eval()
        # What the library raises depends on what is missing, and where from.
        except Exception as error:
            reason = " ".join(str(error).split())
            raise wrong_value("model", f"timm:{name}", f"a model of timm with trained weights ({reason})") from error
    transform = read_data_config(library.data.resolve_model_data_config(module))
    size = transform.crop
    if input_size is not None:
        size = height_and_width("input_size", input_size)
        transform = replace(transform, resize=size, crop=None)
    return subject_of_module(
        module,
        name=name,
        kind=KIND,
        transform=transform,
        input_size=size,
        device=device,
        num_classes=module.num_classes,
    )


def read_data_config(config: dict[str, Any]) -> Preprocessing:
    """The evaluation preprocessing that timm makes of a model's data settings.

    Args:
        config: What `timm.data.resolve_model_data_config` gives: input_size (C, H, W), interpolation, mean, std,
            crop_pct (the share of the resized picture that is kept) and crop_mode.

    Raises:
        ValueError: Crop mode "border", which puts borders of the mean colour around pictures.

    Source: timm, data/transforms_factory.py, transforms_imagenet_eval.
    """
    channels, height, width = config["input_size"]
    share = config.get("crop_pct") or 0.875
    enlarged = (math.floor(height / share), math.floor(width / share))
    mode = config.get("crop_mode") or "center"
    if mode == "border" or (mode == "center" and enlarged[0] != enlarged[1]):
        raise wrong_value("crop_mode", f"{mode}, {height} × {width}", "'squash', or 'center' of a square")
    return Preprocessing(
        channels,
        enlarged[0] if mode == "center" else enlarged,
        config["interpolation"],
        (height, width),
        Normalize(tuple(map(float, config["mean"])), tuple(map(float, config["std"]))),
    )
