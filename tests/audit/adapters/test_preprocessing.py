import math

import numpy as np
import pytest
import torch
from PIL import Image

from teka.audit.adapters import Preprocessing
from teka.audit.adapters.preprocessing import (
    RESAMPLINGS,
    ROUNDING_RULES,
    convert_channels,
    crop_center,
    resize,
)
from teka.data import Normalize, resize_bilinear


def random_images(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(5))


def test_resize_to_one_number_sets_the_shorter_side():
    transform = Preprocessing(resize=7)
    for size, placed in (((19, 13), (10, 7)), ((13, 19), (7, 10)), ((11, 11), (7, 7))):
        assert transform.resized_size(size) == placed, size
        assert tuple(transform.resize_images(random_images(2, 1, *size)).shape[2:]) == placed, size


def test_resize_and_crop_are_applied_and_described():
    transform = Preprocessing(3, 12, "bicubic", (5, 7))
    placed = transform.resize_images(random_images(2, 1, 19, 13))
    assert tuple(placed.shape) == (2, 3, 5, 7)
    assert (
        transform.describe((19, 13)) == "resized to 17 × 12 (bicubic), cropped to the middle 5 × 7"
    )
    assert Preprocessing(1, (5, 7)).describe((5, 7)) == ""
    assert (
        transform.describe(None)
        == "resized to a shorter side of 12 (bicubic), cropped to the middle 5 × 7"
    )
    assert Preprocessing(1, (5, 7)).describe(None) == "resized to 5 × 7 (bilinear)"
    assert Preprocessing(1).describe(None) == ""


def test_center_crop_starts_where_the_library_rounds_half_a_pixel():
    starts = {
        name: [library.start(margin / 2) for margin in (11, 13, -11, -13)]
        for name, library in ROUNDING_RULES.items()
    }
    assert starts["transformers"] == [5, 6, -6, -7]
    assert starts["transformers with torchvision"] == [5, 6, -5, -6]
    assert starts["torchvision"] == [6, 6, -5, -6]


def test_crop_center_pads_missing_pixels_with_zero():
    images = torch.arange(7 * 6.0).reshape(1, 1, 7, 6) + 1
    torch.testing.assert_close(crop_center(images, (4, 3), math.floor), images[:, :, 1:5, 1:4])
    out = crop_center(images, (4, 9), math.floor)
    torch.testing.assert_close(out[..., 2:8], images[:, :, 1:5])
    assert out[..., :2].eq(0).all()
    assert out[..., 8:].eq(0).all()


@pytest.mark.parametrize("resampling", RESAMPLINGS)
def test_resize_of_uint8_images_equals_pillow(resampling):
    levels = torch.from_numpy(
        np.random.default_rng(3).integers(0, 256, (2, 3, 29, 19), dtype=np.uint8)
    )
    placed = Preprocessing(3, (11, 23), resampling).resize_images(levels)
    picture = Image.fromarray(levels[1].permute(1, 2, 0).numpy())
    expected = np.array(picture.resize((23, 11), Image.Resampling[resampling.upper()]))
    assert np.array_equal((255 * placed[1]).round().permute(1, 2, 0).numpy(), expected)
    gray = Preprocessing(1).resize_images(levels)[1, 0]
    assert np.array_equal((255 * gray).round().numpy(), np.array(picture.convert("L")))


def test_convert_channels_uses_the_luminance():
    gray = random_images(2, 1, 3, 5)
    torch.testing.assert_close(convert_channels(convert_channels(gray, 3), 1), gray)
    primary = torch.eye(3)[:, :, None, None]
    assert convert_channels(primary, 1).flatten().tolist() == pytest.approx(
        [0.299, 0.587, 0.114], abs=1e-5
    )
    with pytest.raises(ValueError, match=r"channels of the images must be .*got 2"):
        convert_channels(random_images(1, 2, 3, 3), 3)


def test_normalization_with_blue_first_reverses_the_channels():
    transform = Preprocessing(
        3, normalization=Normalize((0.1, 0.2, 0.3), (1.0, 2.0, 4.0)), blue_first=True
    )
    images = random_images(2, 3, 3, 5)
    expected = torch.stack(
        [images[:, 2] - 0.1, (images[:, 1] - 0.2) / 2, (images[:, 0] - 0.3) / 4], dim=1
    )
    torch.testing.assert_close(transform.normalize(images), expected)
    with pytest.raises(ValueError, match=r"\(images, 3"):
        transform.normalize(images[:, :1])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("resize", 0),
        ("resize", (3, -1)),
        ("crop", (0, 2)),
        ("resampling", "cubic"),
        ("in_channels", 0),
        ("library", 0),
    ],
)
def test_invalid_preprocessing_is_an_error(field, value, unchecked_annotations):
    with pytest.raises(ValueError, match=field):
        Preprocessing(**{field: value})


@pytest.mark.parametrize("resampling", RESAMPLINGS)
@pytest.mark.parametrize("size", [(7, 23), (31, 5), (13, 17), (26, 34), (1, 1)])
def test_resize_of_float_images_equals_pillow(resampling, size):
    image = random_images(13, 17)
    filter_ = Image.Resampling[resampling.upper()]
    # Pillow does not clip overshoot between the two axes, so the values stay away from 0 and 1.
    without_overshoot = 0.3 + 0.4 * image
    expected = np.array(
        Image.fromarray(without_overshoot.numpy()).resize((size[1], size[0]), filter_)
    )
    torch.testing.assert_close(
        resize(without_overshoot[None, None], size, resampling)[0, 0],
        torch.from_numpy(expected),
        atol=2e-6,
        rtol=0,
    )


def test_resize_is_within_one_level_of_resize_bilinear():
    levels = (255 * random_images(2, 3, 29, 19)).round().to(torch.uint8)
    expected = resize_bilinear(levels, (11, 23)).float()
    assert (255 * resize(levels.float() / 255, (11, 23), "bilinear") - expected).abs().max() <= 1


@pytest.mark.parametrize("resampling", RESAMPLINGS)
def test_resize_keeps_constants_and_the_unit_interval(resampling):
    constant = torch.full((1, 2, 11, 7), 0.375, dtype=torch.float64)
    torch.testing.assert_close(
        resize(constant, (5, 19), resampling), constant.new_full((1, 2, 5, 19), 0.375)
    )
    edges = (random_images(1, 1, 23, 23) > 0.5).double()
    out = resize(edges, (31, 17), resampling)
    assert 0 <= out.min() <= out.max() <= 1


def test_box_resize_by_an_integer_factor_averages():
    images = random_images(2, 1, 15, 14).double()
    torch.testing.assert_close(
        resize(images, (5, 7), "box"), torch.nn.functional.avg_pool2d(images, (3, 2))
    )


def test_resize_to_the_same_size_changes_no_pixel():
    images = random_images(1, 1, 9, 5)
    assert all(
        torch.equal(resize(images, (9, 5), resampling), images) for resampling in RESAMPLINGS
    )


@pytest.mark.parametrize("factor", [0, 1])
def test_resize_has_gradients_for_black_and_random_images(factor: int):
    images = (factor * random_images(1, 1, 5, 7).double()).requires_grad_()
    resize(images, (3, 4), "bicubic").sum().backward()
    assert images.grad is not None
    assert math.isclose(float(images.grad.sum()), 12, abs_tol=1e-9)
