import numpy as np
import pytest
import torch
from torch import Tensor

from teka.audit.presets import zhang2019
from teka.audit.presets.zhang2019 import crop_at


def first_pixel_class(images: Tensor) -> Tensor:
    assert images.shape[2:] == (224, 224)
    lit = images[:, 0, 0, 0]
    return torch.stack([1 - lit, lit], dim=1)


def test_consistency_is_that_of_the_authors_loop():
    torch.manual_seed(0)
    images = (torch.rand(7, 1, 256, 256) > 0.5).float()
    result = zhang2019(first_pixel_class, images, batch_size=3, seed=4)
    np.random.seed(4)
    agree, seen = 0, 0
    for _ in range(5):
        for start in (0, 3, 6):
            batch = images[start : start + 3]
            first, second = np.random.randint(32, size=2), np.random.randint(32, size=2)
            answers = [
                first_pixel_class(batch[:, :, off[0] : off[0] + 224, off[1] : off[1] + 224]).argmax(1)
                for off in (first, second)
            ]
            agree += int((answers[0] == answers[1]).sum())
            seen += len(batch)
    assert result.numbers["consistency of two crops"].value == pytest.approx(agree / seen)
    assert 0 < agree < seen
    assert result.counts == {"images": 7, "passes": 5, "batch size": 3}


def test_a_crop_begins_at_its_place():
    images = torch.arange(256 * 256.0).reshape(1, 1, 256, 256)
    crop = crop_at(images, (31, 2))
    assert crop.shape == (1, 1, 224, 224)
    assert crop[0, 0, 0, 0] == 31 * 256 + 2


def test_images_of_another_size_are_refused():
    with pytest.raises(ValueError, match="256, 256"):
        zhang2019(first_pixel_class, torch.zeros(2, 1, 224, 224))
