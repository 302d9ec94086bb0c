import pytest
import torch
from torch import Tensor

from teka.audit.presets import PresetResult, horn2021


def bars(column: int, number: int) -> Tensor:
    """Images of 32 × 32 with one lit column."""
    images = torch.zeros(number, 1, 32, 32)
    images[:, :, 4:28, column] = 1.0
    return images


def left_half(images: Tensor) -> Tensor:
    """Class 1 where the left half is brighter."""
    left, right = images[:, 0, :, :16].sum((1, 2)), images[:, 0, :, 16:].sum((1, 2))
    return torch.stack([right, left], dim=1)


def data() -> tuple[Tensor, Tensor]:
    # A column at 8 has 8 blank ones before it, of which 7 count; at 9 all 8 count.
    images = torch.cat([bars(8, 3), bars(9, 5), bars(15, 4), bars(22, 2), bars(23, 7)])
    labels = torch.tensor([1] * 12 + [0] * 9)
    return images, labels


def test_the_selection_counts_a_margin_of_eight_but_one_columns():
    result = horn2021(left_half, *data())
    assert result.counts == {"images, class 1": 9, "images, all classes": 11}


def test_the_accuracy_by_shift_is_the_hand_computed_one():
    result = horn2021(left_half, *data())
    ones = result.metrics["class 1"]
    assert ones.shifts == tuple((0, step) for step in range(-8, 9))
    # A bar at 9 leaves the left half at shifts from 7 on, one at 15 at shifts from 1 on.
    expected = [((9 + step < 16) * 5 + (15 + step < 16) * 4) / 9 for step in range(-8, 9)]
    assert ones.curves["accuracy"].values == pytest.approx(expected)
    assert result.numbers["mean accuracy, class 1"].value == pytest.approx(sum(expected) / 17)
    assert result.numbers["minimum accuracy, class 1"].value == 0.0


def test_the_result_comes_back_from_its_dictionary():
    result = horn2021(left_half, *data())
    assert PresetResult.from_dict(result.to_dict()) == result


def test_images_of_another_size_are_refused():
    with pytest.raises(ValueError, match=r"images has shape \(2, 1, 28, 28\), expected \(images, channels, 32, 32\)"):
        horn2021(left_half, torch.zeros(2, 1, 28, 28), torch.ones(2, dtype=torch.int64))


def test_labels_are_asked_for():
    with pytest.raises(ValueError, match="labels is None"):
        horn2021(left_half, bars(15, 2), None)


def test_a_set_without_such_ones_is_refused():
    with pytest.raises(ValueError, match="none of class 1 with margins of 8 columns"):
        horn2021(left_half, bars(15, 2), torch.zeros(2, dtype=torch.int64))
