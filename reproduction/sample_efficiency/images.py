"""Images of the study of sample efficiency: few training images, and moved test images."""

import functools
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor
from torch.nn.functional import pad

from teka.data import Dataset, RandomShift, Split, load
from teka.data.dataset import SPLITS

CANVAS = 32
TEST_SEED = 0  # the same movements for all models and seeds


def draw_balanced_subset(
    labels: Int[Tensor, " images"], size: int, seed: int
) -> Int[Tensor, " chosen"]:
    """Draw the same number of images of each class at random, and return their indices.

    With the same seed, a larger subset contains the smaller ones.
    """
    num_classes = len(labels.unique())
    order = torch.randperm(len(labels), generator=Generator().manual_seed(seed))
    return torch.cat(
        [order[labels[order] == label][: size // num_classes] for label in range(num_classes)]
    )


def make_random_movement(margin: int) -> RandomShift:
    """Return a transform that moves images to random positions without cutting anything off.

    Args:
        margin: Blank pixels around the images. Without a margin, images move circularly.
    """
    return RandomShift(margin) if margin else RandomShift(CANVAS // 2, mode="circular")


@functools.lru_cache(maxsize=1)
def load_centered_on_canvas(data: str, image_size: int, data_dir: str | None) -> Dataset:
    """Load a data set of images in the middle of a blank canvas of 32 × 32 pixels.

    There is no validation split.
    """
    dataset = load(data, data_dir=data_dir, image_size=image_size, validation_size=0)
    margin = (CANVAS - image_size) // 2
    splits = {}
    for name in SPLITS:
        split = getattr(dataset, name)
        splits[name] = Split(pad(split.images, (margin,) * 4), split.labels)
    return replace(dataset, **splits)


def move_test_images(
    images: Float[Tensor, "images channels 32 32"], margin: int
) -> Float[Tensor, "images channels 32 32"]:
    """Move every test image to a random position, which is the same for all models."""
    return make_random_movement(margin)(images, Generator().manual_seed(TEST_SEED))
