import importlib.util
from types import SimpleNamespace

import pytest

from teka.audit.adapters.torchvision_model import load_torchvision, read_preset

# As torchvision's ImageClassification keeps its settings.
PRESET = SimpleNamespace(
    crop_size=[224],
    resize_size=[232],
    mean=[0.485, 0.456, 0.406],
    std=[0.229, 0.224, 0.225],
    interpolation=SimpleNamespace(value="bicubic"),
)


def test_the_shorter_side_is_resized_and_the_middle_cropped():
    transform = read_preset(PRESET)
    assert (transform.resize, transform.crop, transform.resampling) == (232, (224, 224), "bicubic")
    assert transform.normalization is not None
    assert transform.normalization.mean == (0.485, 0.456, 0.406)


def test_a_preset_of_detection_is_refused():
    with pytest.raises(ValueError, match="it has no resize_size"):
        read_preset(SimpleNamespace())


def test_a_missing_library_or_model_is_said():
    missing = importlib.util.find_spec("torchvision") is None
    with pytest.raises(ImportError if missing else ValueError, match="torchvision"):
        load_torchvision("no_such_model")
