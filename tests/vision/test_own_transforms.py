"""What audits do to pictures is, to the level, what the libraries' own transforms do.

These tests need torchvision and timm: `make test-vision` makes an environment that has them.
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

# Imported by name: where types are checked, they are not installed.
timm: Any = import_module("timm")
models: Any = import_module("torchvision.models")
SIZES = np.random.default_rng(0).integers(40, 400, (50, 2)).tolist()
RESNET18 = "resnet18.a1_in1k"  # 235 → 224, the crop that begins at 5.5


def picture_of(height: int, width: int) -> Image.Image:
    return Image.fromarray(
        np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    )


def levels_of(picture: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None]


def expect_equal(
    read: Preprocessing, own: Callable[[Image.Image], Any], sizes: list[list[int]] = SIZES
) -> None:
    """All values differ from those of the library by at most a hundredth of a level."""
    deviation = torch.tensor(read.normalization.deviation if read.normalization else (1.0,))[
        :, None, None
    ]
    for size in sizes:
        picture = picture_of(*size)
        came, expected = (
            read.normalize(read.resize_images(levels_of(picture)))[0],
            torch.as_tensor(own(picture)),
        )
        assert came.shape == expected.shape, size
        assert ((came - expected).abs() * 255 * deviation).max() < 0.01, size


@pytest.mark.parametrize("mode", ["center", "squash"])
@pytest.mark.parametrize("resampling", RESAMPLINGS)
def test_timm_with_each_kernel(resampling, mode):
    known = timm.data.resolve_data_config(
        pretrained_cfg=timm.get_pretrained_cfg(RESNET18).to_dict()
    )
    config = {**known, "interpolation": resampling, "crop_mode": mode}
    expect_equal(preprocessing_from_data_config(config), timm.data.create_transform(**config))


def test_every_configuration_that_timm_ships_a_model_with():
    configs = {}
    for name in timm.list_pretrained():
        config = timm.data.resolve_data_config(
            pretrained_cfg=timm.get_pretrained_cfg(name).to_dict()
        )
        if config["crop_mode"] != "border":  # which is refused
            configs[str(config)] = config
    assert len(configs) > 100
    for config in configs.values():
        expect_equal(
            preprocessing_from_data_config(config), timm.data.create_transform(**config), SIZES[:2]
        )


def test_every_preset_of_torchvisions_classifiers():
    weights = [
        one for name in models.list_models(module=models) for one in models.get_model_weights(name)
    ]
    presets = {str(preset): preset for preset in (one.transforms() for one in weights)}
    assert len(presets) > 20
    for preset in presets.values():
        expect_equal(preprocessing_from_preset(preset), preset, SIZES[::10])
    for name in ("resnet50", "swin_b"):
        preset = models.get_model_weights(name).DEFAULT.transforms()
        expect_equal(preprocessing_from_preset(preset), preset)


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
def test_transformers_by_pillow_and_by_torchvision(kind, backend, resampling):
    numbers = {"size": {"shortest_edge": 96}} if kind == "ConvNextImageProcessor" else {}
    processor = getattr(transformers, kind + backend)(
        resample=Image.Resampling[resampling.upper()], **numbers
    )

    def own(levels: Any) -> Any:
        return processor(np.array(levels), input_data_format="channels_last")["pixel_values"][0]

    expect_equal(preprocessing_from_processor(processor, 3, kind), own)


def test_models_of_timm_and_torchvision_are_asked_what_they_would_be_asked(monkeypatch):
    create_model, get_model = timm.create_model, models.get_model
    # Weights are downloaded; untrained ones answer as definitely.
    monkeypatch.setattr(
        timm, "create_model", lambda name, pretrained: create_model(name, pretrained=False)
    )
    monkeypatch.setattr(models, "get_model", lambda name, weights: get_model(name, weights=None))
    subjects = load_timm(RESNET18), load_torchvision("resnet18")
    config = timm.data.resolve_data_config(
        pretrained_cfg=timm.get_pretrained_cfg(RESNET18).to_dict()
    )
    owns = (
        timm.data.create_transform(**config),
        models.get_model_weights("resnet18").DEFAULT.transforms(),
    )
    picture = picture_of(300, 427)
    for subject, own in zip(subjects, owns, strict=True):
        assert subject.module is not None
        with torch.inference_mode():
            came = subject.function(subject.transform.resize_images(levels_of(picture)))
            expected = subject.module(own(picture)[None])
        torch.testing.assert_close(came, expected, atol=1e-4, rtol=1e-4)
