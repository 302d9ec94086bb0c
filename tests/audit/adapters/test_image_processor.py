import json

import numpy as np
import pytest
import torch
import transformers
from tests.audit.adapters.tiny_vit import quiet

from teka.audit.adapters.image_processor import STEPS, read_processor, read_processor_file
from teka.data import Normalize

PROCESSORS = {
    "vit": lambda: transformers.ViTImageProcessor(size={"height": 23, "width": 19}),
    "vit without rescaling": lambda: transformers.ViTImageProcessor(do_rescale=False, size={"height": 9, "width": 9}),
    "vit without normalisation": lambda: transformers.ViTImageProcessor(do_normalize=False),
    "vit without resizing": lambda: transformers.ViTImageProcessor(do_resize=False),
    "vit nearest": lambda: transformers.ViTImageProcessor(resample=0, size={"height": 23, "width": 19}),
    "clip": lambda: transformers.CLIPImageProcessor(size={"shortest_edge": 31}, crop_size={"height": 17, "width": 23}),
    "clip crop beyond the edge": lambda: transformers.CLIPImageProcessor(
        size={"shortest_edge": 31}, crop_size={"height": 40, "width": 23}
    ),
    "convnext cropped": lambda: transformers.ConvNextImageProcessor(size={"shortest_edge": 32}),
    "convnext warped": lambda: transformers.ConvNextImageProcessor(size={"shortest_edge": 384}),
    "levit": lambda: transformers.LevitImageProcessor(
        size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}
    ),
    "deit": lambda: transformers.DeiTImageProcessor(),
    "mobilevit": lambda: transformers.MobileViTImageProcessor(
        size={"shortest_edge": 31}, crop_size={"height": 29, "width": 29}
    ),
    "efficientnet": lambda: transformers.EfficientNetImageProcessor(size={"height": 31, "width": 31}),
    "efficientnet with offset": lambda: transformers.EfficientNetImageProcessor(rescale_offset=True, include_top=False),
}


def smooth_picture(height: int = 47, width: int = 61) -> np.ndarray:
    rows, columns = np.mgrid[:height, :width] / 30
    channels = [128 + 100 * np.sin(3 * rows + channel) * np.cos(2 * columns) for channel in range(3)]
    return np.rint(np.stack(channels, axis=-1)).astype(np.uint8)


@pytest.mark.parametrize("name", PROCESSORS)
def test_what_is_read_of_the_settings_is_what_the_processor_does(name):
    with quiet():
        processor = PROCESSORS[name]()
    settings = {**{step: getattr(processor, step, None) for step in STEPS}, **processor.to_dict()}
    transform = read_processor(settings, 3, "it")
    levels = smooth_picture()
    expected = torch.from_numpy(np.ascontiguousarray(processor(levels)["pixel_values"][0], dtype=np.float32))
    picture = torch.from_numpy(levels).permute(2, 0, 1)[None].float() / 255
    came = transform.normalize(transform.place(picture))[0]
    assert came.shape == expected.shape
    deviation = 1 if transform.normalization is None else min(transform.normalization.deviation)
    # The processor rounds to whole levels after each axis.
    assert 255 * deviation * (came - expected).abs().max() <= 1.6


def test_a_file_of_the_hubs_older_form_is_read():
    settings = {"do_normalize": True, "do_resize": True, "image_mean": [0.5], "image_std": [0.25], "size": 224}
    transform = read_processor(settings, 3, "it")
    assert transform.resize == (224, 224)
    assert transform.resampling == "bilinear"
    assert transform.normalization == Normalize((0.5,) * 3, (0.25,) * 3)


def test_levels_that_are_not_rescaled_are_levels_to_the_model():
    settings = {"do_rescale": False, "do_normalize": True, "image_mean": [51.0], "image_std": [102.0]}
    images = torch.tensor([0.0, 0.2, 1.0]).reshape(1, 1, 1, 3)
    came = read_processor(settings, 1, "it").normalize(images)
    torch.testing.assert_close(came.flatten(), torch.tensor([-0.5, 0.0, 2.0]))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"size": {"longest_edge": 9}}, "size is"),
        ({"size": 9, "resample": 7}, "resample is 7"),
        ({"size": 9, "do_pad": True}, "do_pad"),
        ({"size": 9, "image_mean": [0.1, 0.2], "image_std": [1, 1]}, "image_mean"),
        ({"size": 9, "image_mean": [0.1], "image_std": [0]}, "deviation"),
        ({"size": 9, "rescale_factor": 0}, "zero"),
        ({"do_resize": True}, "size"),
    ],
)
def test_settings_that_are_not_known_are_an_error_that_names_their_source(settings, said):
    with pytest.raises(ValueError, match=f"it cannot be read as preprocessing: .*{said}"):
        read_processor(settings, 3, "it")


def test_the_file_is_found_or_not(tmp_path):
    assert read_processor_file(tmp_path, 3) is None
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": 7}))
    found = read_processor_file(tmp_path, 1)
    assert found is not None
    assert found.resize == (7, 7)
    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        read_processor_file(tmp_path, 1)
