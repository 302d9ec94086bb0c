import torch

from teka.data.levels import Levels

LEVELS = Levels(torch.arange(5, dtype=torch.uint8)[:, None, None, None].expand(5, 1, 2, 3), torch.arange(5), 4)


def test_taking_keeps_images_with_their_labels_in_the_order_asked_for():
    taken = LEVELS.take(torch.tensor([3, 0, 4]))
    assert taken.labels.tolist() == [3, 0, 4]
    assert taken.images[:, 0, 1, 2].tolist() == [3, 0, 4]
    assert len(taken) == 3


def test_intensities_are_levels_over_the_highest():
    split = LEVELS.to_split()
    assert split.images.dtype == torch.float32
    assert split.images[:, 0, 0, 0].tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert torch.equal(split.labels, LEVELS.labels)


def test_making_intensities_leaves_the_levels_alone():
    before = LEVELS.images.clone()
    LEVELS.to_split().images.zero_()
    assert torch.equal(LEVELS.images, before)
