import pytest
import torch

from teka.data import Normalize

IMAGES = torch.rand(11, 3, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * torch.tensor(
    [1.0, 0.3, 0.1], dtype=torch.float64
).view(3, 1, 1)


def test_every_channel_of_its_own_images_has_mean_0_and_mean_square_1():
    normalised = Normalize.of(IMAGES)(IMAGES)
    torch.testing.assert_close(normalised.mean(dim=(0, 2, 3)), torch.zeros(3).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(normalised.square().mean(dim=(0, 2, 3)), torch.ones(3).double(), atol=1e-12, rtol=0)


def test_it_is_the_same_line_for_every_pixel_of_a_channel():
    normalize = Normalize(mean=(0.5, 0.25, 0.0), deviation=(0.5, 2.0, 1.0))
    found = normalize(IMAGES)
    torch.testing.assert_close(found[:, 0], 2 * IMAGES[:, 0] - 1)
    torch.testing.assert_close(found[:, 1], IMAGES[:, 1] / 2 - 0.125)
    torch.testing.assert_close(found[:, 2], IMAGES[:, 2])


def test_other_images_do_not_matter():
    normalize = Normalize.of(IMAGES)
    assert torch.equal(normalize(IMAGES)[3:5], normalize(IMAGES[3:5]))
    assert normalize(IMAGES[:0]).shape == (0, 3, 5, 7)


def test_the_type_and_the_argument_stay():
    images = IMAGES.float()
    before = images.clone()
    assert Normalize.of(images)(images).dtype == torch.float32
    assert torch.equal(images, before)


@pytest.mark.parametrize(
    ("mean", "deviation", "message"),
    [
        ((0.0, 0.0), (1.0,), "deviation is"),
        ((), (), "deviation is"),
        ((0.0,), (0.0,), "deviation is"),
        ((0.0,), (float("inf"),), "deviation is"),
        ((float("nan"),), (1.0,), "mean is"),
    ],
)
def test_malformed_numbers_are_an_error(mean: tuple, deviation: tuple, message: str):
    with pytest.raises(ValueError, match=message):
        Normalize(mean, deviation)


def test_malformed_images_are_an_error():
    with pytest.raises(ValueError, match=r"images has shape \(11, 2, 5, 7\), expected \(images, 3, height, width\)"):
        Normalize.of(IMAGES)(IMAGES[:, :2])
    with pytest.raises(ValueError, match=r"images\.dtype is torch\.uint8"):
        Normalize.of(IMAGES)(IMAGES.byte())
    with pytest.raises(ValueError, match=r"images\.dtype is torch\.uint8"):
        Normalize.of(IMAGES.byte())
    with pytest.raises(ValueError, match=r"images has shape \(0, 3, 5, 7\)"):
        Normalize.of(IMAGES[:0])
    with pytest.raises(ValueError, match="deviation is"):
        Normalize.of(torch.ones(2, 1, 3, 5))
