import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate

from teka.data import resize_bilinear

SIZES = [(28, 32, 32, 32), (28, 28, 32, 32), (28, 28, 14, 14), (7, 11, 13, 5), (5, 3, 2, 17), (31, 29, 1, 1)]


def make_images(height: int, width: int, channels: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(height * 100 + width)
    return torch.randint(0, 256, (19, channels, height, width), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize(("height", "width", "new_height", "new_width"), SIZES)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_pixel_is_pillows(height: int, width: int, new_height: int, new_width: int, channels: int):
    images = make_images(height, width, channels)
    planes = [Image.fromarray(plane) for plane in images.flatten(0, 1).numpy()]
    # Two calls, because the order of the axes depends on the version of Pillow.
    narrowed = [plane.resize((new_width, height), Image.Resampling.BILINEAR) for plane in planes]
    resized = [plane.resize((new_width, new_height), Image.Resampling.BILINEAR) for plane in narrowed]
    expected = torch.from_numpy(np.stack([np.asarray(plane) for plane in resized])).unflatten(0, (19, channels))
    assert torch.equal(resize_bilinear(images, (new_height, new_width)), expected)


def test_enlarging_is_one_call_of_pillow():
    images = make_images(28, 28)
    resized = [Image.fromarray(image).resize((32, 32), Image.Resampling.BILINEAR) for image in images[:, 0].numpy()]
    assert torch.equal(resize_bilinear(images, 32)[:, 0], torch.from_numpy(np.stack([np.asarray(i) for i in resized])))


def test_it_is_the_bilinear_filter_to_the_rounding_of_both_axes():
    images = make_images(7, 11)
    exact = interpolate(images.double(), size=(13, 17), mode="bilinear", align_corners=False, antialias=True)
    assert (resize_bilinear(images, (13, 17)).double() - exact).abs().max() <= 1


@pytest.mark.parametrize("level", [0, 1, 254, 255])
def test_a_constant_image_stays_constant(level: int):
    images = torch.full((2, 3, 5, 7), level, dtype=torch.uint8)
    assert torch.equal(resize_bilinear(images, (11, 4)), torch.full((2, 3, 11, 4), level, dtype=torch.uint8))


def test_more_planes_than_are_taken_at_once_change_nothing():
    images = make_images(7, 11).repeat(60, 2, 1, 1)
    expected = resize_bilinear(make_images(7, 11), (3, 5)).repeat(60, 2, 1, 1)
    assert torch.equal(resize_bilinear(images, (3, 5)), expected)


def test_the_same_size_changes_nothing():
    images = make_images(7, 11)
    assert torch.equal(resize_bilinear(images, (7, 11)), images)


def test_one_int_is_a_square():
    images = make_images(7, 11)
    assert torch.equal(resize_bilinear(images, 13), resize_bilinear(images, (13, 13)))


def test_an_image_does_not_depend_on_the_others():
    images = make_images(7, 11)
    together = resize_bilinear(images, (13, 17))
    assert torch.equal(together, torch.cat([resize_bilinear(image[None], (13, 17)) for image in images]))


def test_no_images_stay_no_images():
    assert resize_bilinear(torch.zeros(0, 1, 7, 11, dtype=torch.uint8), (13, 17)).shape == (0, 1, 13, 17)


@pytest.mark.parametrize("image_size", [0, -1, (5, 0), (5,), (5, 5, 5)])
def test_a_size_that_is_none_is_an_error(image_size: int | tuple[int, ...]):
    with pytest.raises(ValueError, match="image_size is"):
        resize_bilinear(make_images(7, 11), image_size)


def test_images_of_another_rank_or_type_are_an_error():
    with pytest.raises(ValueError, match=r"images has shape \(1, 7, 11\)"):
        resize_bilinear(make_images(7, 11)[0], 13)
    with pytest.raises(ValueError, match=r"images\.dtype is torch\.float32, expected torch\.uint8"):
        resize_bilinear(make_images(7, 11).float(), 13)
