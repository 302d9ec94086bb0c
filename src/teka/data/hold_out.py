"""A test part for images that come without one."""

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from teka.errors import wrong_value

TEST_SHARE = 5
TEST_SEED = 0


def hold_out_test(num_images: int) -> tuple[Int[Tensor, " train"], Int[Tensor, " test"]]:
    """Indices of the images for training and of those for test, the same for every call.

    The last fifth, rounded down, of `numpy.random.default_rng(0).permutation(N)` is for test. The seed is that of this
    split alone: no option of a run changes it. With another number of images it is another split.

    Args:
        num_images: Number of images N, at least five.

    Raises:
        ValueError: Fewer images.
    """
    if num_images < TEST_SHARE:
        raise wrong_value("images", f"{num_images} in all", f"at least {TEST_SHARE}, a fifth of them for test")
    order = torch.from_numpy(np.random.default_rng(TEST_SEED).permutation(num_images))
    num_train = num_images - num_images // TEST_SHARE
    return order[:num_train], order[num_train:]
