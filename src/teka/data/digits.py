"""Scikit-learn's digits: 1,797 real 8×8 images that come inside that package, so that no download is needed."""

from collections.abc import Sequence

import numpy as np
import torch

from teka.data.levels import Levels
from teka.data.sizes import height_and_width
from teka.memory import check_memory

NUM_TRAIN = 1437
SPLIT_SEED = 0
_SIDE = 8
_HIGHEST = 16


def read_digits(canvas_size: int | Sequence[int] = 16) -> tuple[Levels, Levels]:
    """Training and test images of the digits, each in the middle of a canvas of background 0.

    The first 1,437 of `numpy.random.default_rng(0).permutation(1797)` are for training, the other 360 for test,
    whatever the canvas. Where the blank margin is odd, the smaller half lies above and to the left.

    Args:
        canvas_size: Size of the canvas in pixels, one side or (height, width), each at least 8.

    Returns:
        Training and test images with levels 0 … 16, shapes (1437, 1, H, W) and (360, 1, H, W).

    Raises:
        ImportError: scikit-learn is not installed.
        ValueError: A canvas smaller than the images.

    Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI repository (1998), test part.
    """
    height, width = height_and_width("canvas_size", canvas_size, smallest=_SIDE)
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("the digits come inside scikit-learn, which is missing: pip install teka[train]") from error
    pixels, classes = load_digits(return_X_y=True)
    check_memory("image_size", canvas_size, 4 * len(pixels) * height * width, "images")
    canvas = torch.zeros(len(pixels), 1, height, width, dtype=torch.uint8)
    top, left = (height - _SIDE) // 2, (width - _SIDE) // 2
    digits = torch.from_numpy(np.asarray(pixels, dtype=np.uint8)).reshape(-1, 1, _SIDE, _SIDE)
    canvas[:, :, top : top + _SIDE, left : left + _SIDE] = digits
    published = Levels(canvas, torch.from_numpy(np.asarray(classes, dtype=np.int64)), _HIGHEST)
    order = torch.from_numpy(np.random.default_rng(SPLIT_SEED).permutation(len(published)))
    return published.take(order[:NUM_TRAIN]), published.take(order[NUM_TRAIN:])
