import math

import numpy as np
import pytest
import torch
from PIL import Image

from teka.audit.adapters.resample import RESAMPLINGS, resample
from teka.data import resize_bilinear


def random_images(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("resampling", RESAMPLINGS)
@pytest.mark.parametrize("size", [(7, 23), (31, 5), (13, 17), (26, 34), (1, 1)])
def test_it_is_what_pillow_does_to_floating_point(resampling, size):
    image = random_images(13, 17)
    filter_ = Image.Resampling[resampling.upper()]
    # Pillow takes the width first, so its overshoot between the axes is not cut off: compare where none is.
    calm = 0.3 + 0.4 * image
    expected = np.array(Image.fromarray(calm.numpy()).resize((size[1], size[0]), filter_))
    torch.testing.assert_close(
        resample(calm[None, None], size, resampling)[0, 0], torch.from_numpy(expected), atol=2e-6, rtol=0
    )


def test_levels_are_within_one_of_bilinear_resizing_of_bytes():
    levels = (255 * random_images(2, 3, 29, 19)).round().to(torch.uint8)
    expected = resize_bilinear(levels, (11, 23)).float()
    assert (255 * resample(levels.float() / 255, (11, 23)) - expected).abs().max() <= 1


@pytest.mark.parametrize("resampling", RESAMPLINGS)
def test_a_constant_stays_and_nothing_leaves_the_unit_interval(resampling):
    constant = torch.full((1, 2, 11, 7), 0.375, dtype=torch.float64)
    torch.testing.assert_close(resample(constant, (5, 19), resampling), constant.new_full((1, 2, 5, 19), 0.375))
    edges = (random_images(1, 1, 23, 23) > 0.5).double()
    out = resample(edges, (31, 17), resampling)
    assert 0 <= out.min() <= out.max() <= 1


def test_shrinking_by_whole_factors_with_the_box_averages():
    images = random_images(2, 1, 15, 14).double()
    torch.testing.assert_close(resample(images, (5, 7), "box"), torch.nn.functional.avg_pool2d(images, (3, 2)))


def test_the_same_size_leaves_every_pixel():
    images = random_images(1, 1, 9, 5)
    assert all(torch.equal(resample(images, (9, 5), resampling), images) for resampling in RESAMPLINGS)


def test_it_has_gradients():
    images = random_images(1, 1, 5, 7).double().requires_grad_()
    resample(images, (3, 4), "bicubic").sum().backward()
    assert images.grad is not None
    assert math.isclose(float(images.grad.sum()), 12, abs_tol=1e-9)


def test_bad_input_is_named():
    images = random_images(1, 1, 5, 5)
    with pytest.raises(ValueError, match="did you mean 'bicubic'"):
        resample(images, 3, "bicubik")
    with pytest.raises(ValueError, match="floating point"):
        resample(images.to(torch.uint8), 3)
    with pytest.raises(ValueError, match="image_size"):
        resample(images, 0)
    with pytest.raises(ValueError, match=r"\(1, 5, 5\)"):
        resample(images[0], 3)
