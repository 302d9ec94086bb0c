from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch

from teka.data import Dataset, Split
from teka.data.dataset import draw_train_and_test_indices

LEVELS = Split(
    torch.arange(0, 250, 50, dtype=torch.uint8)[:, None, None, None].expand(5, 1, 2, 3),
    torch.arange(5),
)


def make_split(num_images: int = 5, channels: int = 2, height: int = 3, width: int = 7) -> Split:
    return Split(torch.rand(num_images, channels, height, width), torch.arange(num_images))


def make_dataset(**parts: Split) -> Dataset:
    splits = {"train": make_split(5), "validation": make_split(0), "test": make_split(3)} | parts
    return Dataset("made up", splits["train"], splits["validation"], splits["test"], 5)


def test_splits_and_datasets_are_frozen():
    with pytest.raises(FrozenInstanceError):
        make_split().images = torch.zeros(1)  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        make_dataset().name = "other"  # type: ignore[misc]


def test_a_malformed_split_is_an_error():
    for images, labels, message in [
        (
            torch.zeros(5, 3, 7),
            torch.arange(5),
            r"images must have shape \(batch, channels.*got \(5, 3, 7\)",
        ),
        (torch.zeros(5, 2, 3, 7), torch.arange(4), r"labels must have shape \(5,\).*got \(4,\)"),
        (torch.zeros(5, 2, 3, 7), torch.zeros(5, 1).long(), r"labels must have .*got \(5, 1\)"),
        (torch.zeros(5, 2, 3, 7).int(), torch.arange(5), r"images must be .*got torch\.int32"),
        (torch.zeros(5, 2, 3, 7), torch.zeros(5), r"labels must be .*got torch\.float32"),
        (torch.zeros(5, 2, 3, 7), torch.zeros(5).bool(), r"labels must be .*got torch\.bool"),
        (torch.full((5, 2, 3, 7), 1.5), torch.arange(5), "intensities from 0 to 1"),
        (torch.full((5, 2, 3, 7), -0.5), torch.arange(5), "intensities from 0 to 1"),
        (torch.full((5, 2, 3, 7), torch.nan), torch.arange(5), "intensities from 0 to 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            Split(images, labels)


def test_a_split_of_another_size_is_an_error_with_its_name():
    for part in ["validation", "test"]:
        for other in (
            make_split(channels=3),
            make_split(height=7, width=3),
            make_split(0, width=8),
        ):
            with pytest.raises(
                ValueError, match=rf"{part}\.images must have shape \(batch, 2, 3, 7\)"
            ):
                make_dataset(**{part: other})


def test_a_label_without_a_class_is_an_error_with_the_split():
    for part in ["train", "validation", "test"]:
        for label in [-1, 5]:
            split = Split(torch.zeros(2, 2, 3, 7), torch.tensor([0, label]))
            with pytest.raises(
                ValueError, match=rf"{part}\.labels must be classes from 0 to 4, got .*{label}"
            ):
                make_dataset(**{part: split})


def test_images_of_bytes_are_an_error_for_training():
    split = Split(torch.zeros(5, 2, 3, 7).byte(), torch.arange(5))
    with pytest.raises(ValueError, match=r"train\.images\.dtype must be .*got torch\.uint8"):
        make_dataset(train=split)


def test_indexing_a_split_returns_images_and_labels():
    split = make_split()
    for index in (3, -1, slice(1, 4), [4, 0], torch.tensor([2, 2])):
        images, labels = split[index]
        assert torch.equal(images, split.images[index])
        assert torch.equal(labels, split.labels[index])
    with pytest.raises(IndexError):
        split[5]


def test_a_split_works_with_a_data_loader():
    split = make_split()
    loader = torch.utils.data.DataLoader(split, batch_size=2)
    assert torch.equal(torch.cat([images for images, _ in loader]), split.images)
    assert torch.cat([labels for _, labels in loader]).tolist() == list(range(5))


def test_take_keeps_images_with_their_labels_in_order():
    for split in (LEVELS, LEVELS.to_intensities()):
        taken = split.take(torch.tensor([3, 0, 4]))
        assert taken.labels.tolist() == [3, 0, 4]
        assert torch.equal(taken.images, split.images[[3, 0, 4]])
        assert len(taken) == 3


def test_intensities_are_levels_over_255_in_new_memory():
    before = LEVELS.images.clone()
    split = LEVELS.to_intensities()
    assert split.images.dtype == torch.float32
    assert torch.equal(split.images, before.float() / 255)
    assert torch.equal(split.labels, LEVELS.labels)
    split.images.zero_()
    assert torch.equal(LEVELS.images, before)


def test_test_images_are_the_last_fifth_of_a_fixed_order():
    for num_images in [5, 9, 23]:
        train, test = draw_train_and_test_indices(num_images)
        assert len(test) == num_images // 5
        assert [*train.tolist(), *test.tolist()] == np.random.default_rng(0).permutation(
            num_images
        ).tolist()


def test_too_few_images_are_an_error():
    with pytest.raises(ValueError, match=r"the number of images must be at least 5, got 4"):
        draw_train_and_test_indices(4)
