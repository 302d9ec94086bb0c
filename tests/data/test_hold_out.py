import numpy as np
import pytest
import torch

from teka.data.hold_out import hold_out_test


@pytest.mark.parametrize("num_images", [5, 9, 23, 1797])
def test_the_parts_hold_every_image_once_and_a_fifth_is_for_test(num_images: int):
    train, test = hold_out_test(num_images)
    assert torch.equal(torch.cat([train, test]).sort().values, torch.arange(num_images))
    assert len(test) == num_images // 5


def test_the_split_is_the_documented_one_and_stays():
    order = np.random.default_rng(0).permutation(23).tolist()
    train, test = hold_out_test(23)
    assert train.tolist() == order[:19]
    assert test.tolist() == order[19:]


def test_too_few_images_are_an_error():
    with pytest.raises(ValueError, match="images is '4 in all', expected at least 5"):
        hold_out_test(4)
