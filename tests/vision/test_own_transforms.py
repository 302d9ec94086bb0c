"""Preprocessing of audits, compared with the transforms of the libraries.

These tests need torchvision and timm: `make test-vision` creates an environment with them.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from teka.audit.adapters import Preprocessing
from teka.audit.adapters.preprocessing import RESAMPLINGS
from teka.audit.adapters.timm_torchvision import (
    load_timm,
    load_torchvision,
    preprocessing_from_data_config,
    preprocessing_from_preset,
)
from teka.audit.adapters.transformers_model import preprocessing_from_processor

# Imported by name, because the type checker runs without them.
timm: Any = import_module("timm")
models: Any = import_module("torchvision.models")
SIZES = np.random.default_rng(0).integers(40, 400, (50, 2)).tolist()
RESNET18 = "resnet18.a1_in1k"  # resized to 235, with a crop of 224 that begins at 5.5


def random_picture(height: int, width: int) -> Image.Image:
    return Image.fromarray(
        np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    )


def to_levels(picture: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None]


def assert_equals_library(
    preprocessing: Preprocessing,
    library_transform: Callable[[Image.Image], Any],
    sizes: list[list[int]] = SIZES,
) -> None:
    """Assert that values differ from those of the library by at most 1/100 of a level."""
    deviation = torch.tensor(
        preprocessing.normalization.deviation if preprocessing.normalization else (1.0,)
    )[:, None, None]
    for size in sizes:
        picture = random_picture(*size)
        result, expected = (
            preprocessing.normalize(preprocessing.resize_images(to_levels(picture)))[0],
            torch.as_tensor(library_transform(picture)),
        )
        assert result.shape == expected.shape, size
        assert ((result - expected).abs() * 255 * deviation).max() < 0.01, size


@pytest.mark.parametrize("mode", ["center", "squash"])
@pytest.mark.parametrize("resampling", RESAMPLINGS)
def test_timm_transform_with_every_resampling(resampling, mode):
    known = timm.data.resolve_data_config(
        pretrained_cfg=timm.get_pretrained_cfg(RESNET18).to_dict()
    )
    config = {**known, "interpolation": resampling, "crop_mode": mode}
    assert_equals_library(
        preprocessing_from_data_config(config), timm.data.create_transform(**config)
    )


def test_every_config_of_a_pretrained_timm_model():
    configs = {}
    for name in timm.list_pretrained():
        config = timm.data.resolve_data_config(
            pretrained_cfg=timm.get_pretrained_cfg(name).to_dict()
        )
        if config["crop_mode"] != "border":  # which is not supported
            configs[str(config)] = config
    assert len(configs) > 100
    for config in configs.values():
        assert_equals_library(
            preprocessing_from_data_config(config), timm.data.create_transform(**config), SIZES[:2]
        )


def test_every_preset_of_a_torchvision_classifier():
    weights = [
        weight
        for name in models.list_models(module=models)
        for weight in models.get_model_weights(name)
    ]
    presets = {str(preset): preset for preset in (weight.transforms() for weight in weights)}
    assert len(presets) > 20
    for preset in presets.values():
        assert_equals_library(preprocessing_from_preset(preset), preset, SIZES[::10])
    for name in ("resnet50", "swin_b"):
        preset = models.get_model_weights(name).DEFAULT.transforms()
        assert_equals_library(preprocessing_from_preset(preset), preset)


@pytest.mark.parametrize(
    "kind", ["ViTImageProcessor", "BitImageProcessor", "ConvNextImageProcessor"]
)
@pytest.mark.parametrize(
    ("backend", "resampling"),
    [
        *(("Pil", name) for name in RESAMPLINGS),
        *(("", name) for name in ("nearest", "bilinear", "bicubic")),
    ],
)
def test_transformers_processors_with_pillow_and_torchvision(kind, backend, resampling):
    numbers = {"size": {"shortest_edge": 96}} if kind == "ConvNextImageProcessor" else {}
    processor = getattr(transformers, kind + backend)(
        resample=Image.Resampling[resampling.upper()], **numbers
    )

    def library_transform(levels: Any) -> Any:
        return processor(np.array(levels), input_data_format="channels_last")["pixel_values"][0]

    assert_equals_library(preprocessing_from_processor(processor, 3, kind), library_transform)


def test_loaded_timm_and_torchvision_models_receive_equal_inputs(monkeypatch):
    create_model, get_model = timm.create_model, models.get_model
    # Random weights are enough and need no download.
    monkeypatch.setattr(
        timm, "create_model", lambda name, pretrained: create_model(name, pretrained=False)
    )
    monkeypatch.setattr(models, "get_model", lambda name, weights: get_model(name, weights=None))
    subjects = load_timm(RESNET18), load_torchvision("resnet18")
    config = timm.data.resolve_data_config(
        pretrained_cfg=timm.get_pretrained_cfg(RESNET18).to_dict()
    )
    library_transforms = (
        timm.data.create_transform(**config),
        models.get_model_weights("resnet18").DEFAULT.transforms(),
    )
    picture = random_picture(300, 427)
    for subject, library_transform in zip(subjects, library_transforms, strict=True):
        assert subject.module is not None
        with torch.inference_mode():
            result = subject.function(subject.transform.resize_images(to_levels(picture)))
            expected = subject.module(library_transform(picture)[None])
        torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-4)
