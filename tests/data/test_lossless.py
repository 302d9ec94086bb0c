from pathlib import Path

import numpy as np
import pytest
import torch

from teka.data import blank_columns, lossless_selection
from teka.grid import Grid

EXTENTS = Path(__file__).with_name("column_extents.npz")  # made by write_column_extents.py
COUNTS = [("mnist", 1135, 854), ("fashion-mnist", 1000, 791)]


def images_from_columns(first: torch.Tensor, last: torch.Tensor, width: int) -> torch.Tensor:
    """Images of two channels, blank but for one faint pixel in the first column and one in the last, in other rows."""
    index = torch.arange(len(first))
    images = torch.zeros(len(first), 2, 5, width)
    images[index, 0, index % 5, first.long()] = 1 / 255
    images[index, 1, (index + 2) % 5, last.long()] = 1 / 255
    return images


def published_images(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    with np.load(EXTENTS, allow_pickle=False) as file:
        first, last, labels = (torch.from_numpy(file[f"{name}/{part}"]) for part in ("first", "last", "label"))
    return images_from_columns(first, last, width=32), labels.long()


def test_blank_columns_are_counted_on_each_side_and_lessened_by_one():
    first, last = torch.tensor([3, 0, 1, 12, 2]), torch.tensor([4, 12, 11, 12, 10])
    left, right = blank_columns(images_from_columns(first, last, width=13))
    assert left.tolist() == [2, 0, 0, 11, 1]
    assert right.tolist() == [7, 0, 0, 0, 1]


def test_an_image_by_hand():
    image = torch.tensor([[0, 0, 0, 0.5, 0, 0, 0, 0], [0, 0, 0.1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 0]])
    left, right = blank_columns(image[None, None])
    assert (left.item(), right.item()) == (1, 3)


def test_blank_rows_are_the_blank_columns_of_the_transposed_image():
    image = torch.zeros(1, 1, 7, 5)
    image[0, 0, 3:5, :] = 1
    above, below = blank_columns(image.transpose(2, 3))
    assert (above.item(), below.item()) == (2, 1)


def test_an_image_without_content_is_blank_from_both_sides():
    left, right = blank_columns(torch.zeros(1, 1, 3, 7))
    assert (left.item(), right.item()) == (6, 6)


def test_mirroring_swaps_left_and_right():
    images = (torch.rand(31, 2, 3, 11, generator=torch.Generator().manual_seed(0)) > 0.95).float()
    left, right = blank_columns(images)
    assert [side.tolist() for side in blank_columns(images.flip(3))] == [right.tolist(), left.tolist()]


@pytest.mark.parametrize(("name", "of_class", "selected"), COUNTS)
def test_the_selection_has_the_papers_counts(name: str, of_class: int, selected: int):
    images, labels = published_images(name)
    assert len(labels) == 10_000
    assert (labels == 1).sum() == of_class
    mask = lossless_selection(images, labels)
    assert mask.sum() == selected
    assert (labels[mask] == 1).all()


def test_without_the_one_subtracted_mnist_would_have_one_image_more():
    images, labels = published_images("mnist")
    filled = (images != 0).any(dim=2).any(dim=1).int()
    first, last = filled.argmax(dim=1), 31 - filled.flip(1).argmax(dim=1)
    assert ((labels == 1) & (first >= 8) & (31 - last >= 8)).sum() == 855


@pytest.mark.parametrize(("name", "of_class", "selected"), COUNTS)
def test_only_zeros_wrap_when_a_selected_image_is_rolled(name: str, of_class: int, selected: int):
    images, labels = published_images(name)
    chosen = images[lossless_selection(images, labels)]
    grid = Grid(tuple(chosen.shape[2:]))
    for shift in range(-8, 9):
        rolled = grid.roll(chosen, shift)
        entered = rolled[..., :shift] if shift > 0 else rolled[..., 32 + shift :]
        assert not entered.any()


def test_all_classes_together_are_the_classes_one_by_one():
    images, labels = published_images("fashion-mnist")
    one_by_one = torch.stack([lossless_selection(images, labels, class_index=index, margin=3) for index in range(10)])
    assert torch.equal(one_by_one.any(dim=0), lossless_selection(images, labels, class_index=None, margin=3))


@pytest.mark.parametrize("margin", [0, 1, 5, 9])
def test_a_margin_is_met_exactly_or_not_at_all(margin: int):
    first = torch.tensor([margin, margin + 1, margin + 1])
    last = 22 - torch.tensor([margin + 1, margin + 1, margin])
    mask = lossless_selection(images_from_columns(first, last, 23), torch.ones(3, dtype=torch.long), margin=margin)
    # A margin of 0 asks for no shift, which every image survives.
    assert mask.tolist() == ([True] * 3 if margin == 0 else [False, True, False])


def test_malformed_arguments_are_errors():
    images, labels = torch.zeros(3, 1, 5, 7), torch.ones(3, dtype=torch.long)
    with pytest.raises(ValueError, match=r"labels has shape \(2,\), expected \(3,\)"):
        lossless_selection(images, labels[:2])
    with pytest.raises(ValueError, match=r"images has shape \(3, 5, 7\)"):
        lossless_selection(images[:, 0], labels)
    with pytest.raises(ValueError, match="margin is -1"):
        lossless_selection(images, labels, margin=-1)
    with pytest.raises(ValueError, match="class_index is -1"):
        lossless_selection(images, labels, class_index=-1)
