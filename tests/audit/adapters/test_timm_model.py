import importlib.util

import pytest

from teka.audit.adapters.timm_model import load_timm, read_data_config
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


def test_the_shorter_side_is_enlarged_by_the_share_that_is_kept():
    transform = read_data_config(RESNET50)
    assert (transform.resize, transform.crop, transform.resampling) == (256, (224, 224), "bilinear")
    assert transform.normalization == Normalize(RESNET50["mean"], RESNET50["std"])
    odd = read_data_config({**RESNET50, "crop_pct": 0.95, "interpolation": "bicubic"})
    assert (odd.resize, odd.resampling) == (235, "bicubic")
    assert read_data_config({**RESNET50, "crop_pct": None}).resize == 256


def test_squashing_does_not_keep_the_shape():
    squashed = read_data_config({**RESNET50, "input_size": (3, 160, 96), "crop_pct": 1.0, "crop_mode": "squash"})
    assert (squashed.resize, squashed.crop) == ((160, 96), (160, 96))


@pytest.mark.parametrize("changes", [{"crop_mode": "border"}, {"input_size": (3, 160, 96)}])
def test_what_would_be_read_wrongly_is_refused(changes):
    with pytest.raises(ValueError, match="crop_mode"):
        read_data_config({**RESNET50, **changes})


@pytest.mark.parametrize("name", ["no_such_model_as_this"])
def test_a_missing_library_or_model_is_said(name):
    missing = importlib.util.find_spec("timm") is None
    with pytest.raises(ImportError if missing else ValueError, match="pip install timm" if missing else name):
        load_timm(name)
