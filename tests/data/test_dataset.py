from dataclasses import FrozenInstanceError

import pytest
import torch

from teka.data import Dataset, Split


def make_split(num_images: int = 5, channels: int = 2, height: int = 3, width: int = 7) -> Split:
    return Split(torch.rand(num_images, channels, height, width), torch.arange(num_images))


def make_dataset(**parts: Split) -> Dataset:
    splits = {"train": make_split(5), "validation": make_split(0), "test": make_split(3)} | parts
    return Dataset("made up", splits["train"], splits["validation"], splits["test"], 5, (3, 7), 2)


def test_the_length_of_a_split_is_its_number_of_images():
    assert [len(make_split(number)) for number in (0, 1, 5)] == [0, 1, 5]


def test_a_dataset_may_have_no_validation_images():
    assert len(make_dataset().validation) == 0


def test_splits_and_datasets_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        make_split().images = torch.zeros(1)  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        make_dataset().name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(5, 3, 7), torch.arange(5), r"images has shape \(5, 3, 7\), expected \(images, channels"),
        (torch.zeros(5, 2, 3, 7), torch.arange(4), r"labels has shape \(4,\), expected \(5,\)"),
        (torch.zeros(5, 2, 3, 7), torch.zeros(5, 1).long(), r"labels has shape \(5, 1\)"),
        (torch.zeros(5, 2, 3, 7).byte(), torch.arange(5), r"images\.dtype is torch\.uint8"),
        (torch.zeros(5, 2, 3, 7), torch.zeros(5), r"labels\.dtype is torch\.float32"),
        (torch.zeros(5, 2, 3, 7), torch.zeros(5).bool(), r"labels\.dtype is torch\.bool"),
        (torch.full((5, 2, 3, 7), 1.5), torch.arange(5), "intensities from 0 to 1"),
        (torch.full((5, 2, 3, 7), -0.5), torch.arange(5), "intensities from 0 to 1"),
        (torch.full((5, 2, 3, 7), torch.nan), torch.arange(5), "intensities from 0 to 1"),
    ],
)
def test_a_malformed_split_is_an_error(images: torch.Tensor, labels: torch.Tensor, message: str):
    with pytest.raises(ValueError, match=message):
        Split(images, labels)


@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_a_part_of_another_size_is_an_error_that_names_it(part: str):
    for other in (make_split(channels=3), make_split(height=7, width=3), make_split(0, width=8)):
        with pytest.raises(ValueError, match=rf"{part}\.images has shape .* expected \(images, 2, 3, 7\)"):
            make_dataset(**{part: other})


@pytest.mark.parametrize("part", ["train", "validation", "test"])
@pytest.mark.parametrize("label", [-1, 5])
def test_a_label_that_is_no_class_is_an_error_that_names_the_part(part: str, label: int):
    split = Split(torch.zeros(2, 2, 3, 7), torch.tensor([0, label]))
    with pytest.raises(ValueError, match=rf"{part}\.labels is .*{label}.*classes from 0 to 4"):
        make_dataset(**{part: split})
