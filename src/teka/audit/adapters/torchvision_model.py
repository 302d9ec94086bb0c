"""Classifiers of torchvision by name."""

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

KIND = "torchvision"


def load_torchvision(
    name: str, *, input_size: int | tuple[int, int] | None = None, device: torch.device | str | None = None
) -> Subject:
    """A classifier of torchvision with its best trained weights, which are downloaded if they are not there yet.

    Args:
        name: As `torchvision.models.get_model` takes it, such as "resnet50".
        input_size: Size to which images are resized, for models that take any; by default the one of its weights.
        device: Where it runs; None is the CPU.

    Raises:
        ImportError: torchvision is not installed.
        ValueError: No such model, no classifier, or weights that cannot be read without unpickling objects.
    """
    models: Any = require("torchvision.models", "torchvision")
    with tensors_only():
        try:
            weights = models.get_model_weights(name).DEFAULT
            module = models.get_model(name, weights=weights).eval()
        # What the library raises depends on what is missing, and where from.
        except Exception as error:
            reason = " ".join(str(error).split())
            expected = f"a classifier of torchvision with trained weights ({reason})"
            raise wrong_value("model", f"torchvision:{name}", expected) from error
    transform = read_preset(weights.transforms())
    size = transform.crop
    if input_size is not None:
        size = height_and_width("input_size", input_size)
        transform = replace(transform, resize=size, crop=None)
    names = tuple(weights.meta["categories"])
    return subject_of_module(
        module,
        name=f"{name} ({weights.name})",
        kind=KIND,
        transform=transform,
        input_size=size,
        device=device,
        class_names=names,
        num_classes=len(names),
    )


def read_preset(preset: Any) -> Preprocessing:
    """The preprocessing of an inference preset of torchvision's classifiers.

    Args:
        preset: What `weights.transforms()` gives: resize_size (the new shorter side), crop_size, mean, std and
            interpolation.

    Raises:
        ValueError: A preset of something else than classification of pictures.

    Source: torchvision, transforms/_presets.py, ImageClassification.
    """
    missing = [
        field for field in ("resize_size", "crop_size", "mean", "std", "interpolation") if not hasattr(preset, field)
    ]
    if missing:
        raise wrong_value("model", type(preset).__name__, f"a classifier's preset; it has no {', '.join(missing)}")
    (shorter,), (side,) = preset.resize_size, preset.crop_size
    return Preprocessing(
        len(preset.mean),
        shorter,
        preset.interpolation.value,
        (side, side),
        Normalize(tuple(map(float, preset.mean)), tuple(map(float, preset.std))),
    )
