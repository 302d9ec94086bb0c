import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from teka.audit.presets import chaman2021


def corner_class(images: Tensor) -> Tensor:
    """Class 1 where the upper left quarter is brighter than the lower right one."""
    _, _, height, width = images.shape
    first = images[:, 0, : height // 2, : width // 2].sum((1, 2))
    second = images[:, 0, height // 2 :, width // 2 :].sum((1, 2))
    return torch.stack([second, first], dim=1)


def images_of(side: int, number: int = 7) -> Tensor:
    torch.manual_seed(0)
    return torch.rand(number, 1, side, side + 1) ** 4


@pytest.mark.parametrize(("side", "max_shift"), [(9, 3), (37, 32)])
def test_circular_consistency_is_that_of_the_authors_loop(side: int, max_shift: int):
    images = images_of(side)
    result = chaman2021(corner_class, images, batch_size=3, seed=4)
    np.random.seed(4)
    agree = 0
    for start in (0, 3, 6):
        batch = images[start : start + 3]
        first = np.random.randint(-max_shift, max_shift, 2)
        second = np.random.randint(-max_shift, max_shift, 2)
        answers = [
            corner_class(torch.roll(batch, shifts=(int(s[0]), int(s[1])), dims=(2, 3))).argmax(1)
            for s in (first, second)
        ]
        agree += int((answers[0] == answers[1]).sum())
    assert result.numbers["consistency of two shifts, circular"].value == pytest.approx(agree / 7)
    assert result.counts["largest shift"] == max_shift


def test_zero_padded_consistency_is_that_of_the_authors_slices():
    images, most = images_of(9), 3
    result = chaman2021(corner_class, images, batch_size=7, seed=5)
    np.random.seed(5)
    first, second = np.random.randint(-most, most, 2), np.random.randint(-most, most, 2)
    padded = functional.pad(images, (most,) * 4)
    answers = [
        corner_class(padded[:, :, s[0] + most : s[0] - most, s[1] + most : s[1] - most]).argmax(1)
        for s in (first, second)
    ]
    expected = float((answers[0] == answers[1]).double().mean())
    assert result.numbers["consistency of two shifts, zero-padded"].value == pytest.approx(expected)


def test_a_constant_agrees_with_itself():
    result = chaman2021(lambda images: images.new_tensor([[1.0, 0.0]]).expand(len(images), 2), images_of(9))
    assert [number.value for number in result.numbers.values()] == [1.0, 1.0]


def test_images_smaller_than_the_shift_are_refused():
    with pytest.raises(ValueError, match="at least 3 for preset 'chaman2021'"):
        chaman2021(corner_class, torch.zeros(2, 1, 2, 9))
