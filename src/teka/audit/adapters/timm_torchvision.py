"""Loaders of timm and torchvision models, with the preprocessing that their weights need."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from teka.audit.adapters.loaded_model import (
    DEFAULT_LOAD_OPTIONS,
    LoadedModel,
    LoadOptions,
    loaded_model_from_module,
    safe_loading,
)
from teka.audit.adapters.preprocessing import Preprocessing
from teka.audit.adapters.verify_transform import verify_against_library
from teka.data import Normalize
from teka.errors import require, wrong_argument

# Kind of output by the class of torchvision's preset. Other presets belong to classifiers.
_PRESET_OUTPUTS = {"SemanticSegmentation": "segmentation", "ObjectDetection": "boxes"}


def load_timm(name: str, load_options: LoadOptions = DEFAULT_LOAD_OPTIONS) -> LoadedModel:
    """Load a timm model and its image transform by name, such as "resnet50.a1_in1k".

    The pretrained weights are downloaded, unless `load_options` has other weights.
    """
    timm = require("timm", "this model needs", "timm")
    name = name.removeprefix("timm:")
    label = f"timm:{name}"
    with safe_loading(label, "a timm model"), load_options.fixed_seed():
        module = timm.create_model(
            name, pretrained=load_options.weights is None, **load_options.num_classes_argument
        )
    module = load_options.load_weights(module.eval())
    config = timm.data.resolve_model_data_config(module)
    own = _to_array_transform(timm.data.create_transform(**config))
    transform = verify_against_library(
        own, preprocessing_from_data_config(config), label, "its transform"
    )
    # Models without a classifier, such as self-supervised ones, have 0 classes and return features.
    return loaded_model_from_module(
        module,
        name,
        "timm",
        transform,
        load_options,
        output="auto" if module.num_classes else "features",
        num_classes=module.num_classes or None,
    )


def load_torchvision(name: str, load_options: LoadOptions = DEFAULT_LOAD_OPTIONS) -> LoadedModel:
    """Load a torchvision model by name, with the image transform of its best weights.

    The best weights are downloaded, unless `load_options` has other weights.
    """
    models = require("torchvision.models", "this model needs", "torchvision")
    name = name.removeprefix("torchvision:")
    label = f"torchvision:{name}"
    is_pretrained = load_options.weights is None
    with safe_loading(label, "a torchvision model"), load_options.fixed_seed():
        weights = models.get_model_weights(name).DEFAULT
        preset = weights.transforms()
        output = _PRESET_OUTPUTS.get(type(preset).__name__, "auto")
        arguments = load_options.num_classes_argument
        if output != "auto" and not is_pretrained:
            # Without this, pretrained weights of the backbone would be downloaded.
            arguments = {**arguments, "weights_backbone": None}
        module = models.get_model(name, weights=weights if is_pretrained else None, **arguments)
        settings = preprocessing_from_preset(preset)
    module = load_options.load_weights(module.eval())
    transform = verify_against_library(_to_array_transform(preset), settings, label, "its preset")
    class_names = tuple(weights.meta["categories"])
    num_classes = load_options.num_classes or len(class_names)
    return loaded_model_from_module(
        module,
        f"{name} ({weights.name})" if is_pretrained else name,
        "torchvision",
        transform,
        load_options,
        output=output,
        takes_lists=output == "boxes",
        num_classes=num_classes,
        class_names=class_names if num_classes == len(class_names) else None,
    )


def _to_array_transform(transform: Callable[[Any], Tensor]) -> Callable[[np.ndarray], Tensor]:
    """Return a function that applies a transform of Pillow images to uint8 arrays (H, W, C)."""
    from PIL import Image

    def transform_array(levels: np.ndarray) -> Tensor:
        return transform(Image.fromarray(levels[..., 0] if levels.shape[2] == 1 else levels))

    return transform_array


def preprocessing_from_data_config(config: dict[str, Any]) -> Preprocessing:
    """Convert the data config of a timm model to an equivalent `Preprocessing`.

    Raises:
        ValueError: The config crops with a border or from a rectangular resize.
    """
    channels, height, width = config["input_size"]
    share = config.get("crop_pct") or 0.875
    enlarged = (math.floor(height / share), math.floor(width / share))
    mode = config.get("crop_mode") or "center"
    if mode == "border" or (mode == "center" and enlarged[0] != enlarged[1]):
        raise wrong_argument(
            "crop_mode", f"{mode}, {height} × {width}", "'squash', or 'center' of a square"
        )
    return Preprocessing(
        channels,
        enlarged[0] if mode == "center" else enlarged,
        config["interpolation"],
        (height, width),
        Normalize(tuple(config["mean"]), tuple(config["std"])),
        library="torchvision",
    )


def preprocessing_from_preset(preset: Any) -> Preprocessing:
    """Convert a torchvision preset, such as `weights.transforms()`, to a `Preprocessing`.

    Presets of segmentation models do not crop, and those of detectors leave images unchanged.
    """
    if type(preset).__name__ == "ObjectDetection":
        return Preprocessing(3)
    (shorter,), crop_size = preset.resize_size, getattr(preset, "crop_size", None)
    return Preprocessing(
        len(preset.mean),
        shorter,
        preset.interpolation.value,
        (crop_size[0], crop_size[0]) if crop_size else None,
        Normalize(tuple(preset.mean), tuple(preset.std)),
        library="torchvision",
    )
