import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from teka.audit.protocols import (
    ProtocolResult,
    compare_random_positions,
    run_chaman2021,
    run_horn2021,
    run_zhang2019,
)
from teka.audit.settings import AuditSettings
from teka.codec import decode, encode


def bars(column: int, number: int) -> Tensor:
    """Return images of 32 × 32 pixels with one lit column."""
    images = torch.zeros(number, 1, 32, 32)
    images[:, :, 4:28, column] = 1.0
    return images


def left_half(images: Tensor) -> Tensor:
    """Return logits of class 1 for images with a brighter left half."""
    left, right = images[:, 0, :, :16].sum((1, 2)), images[:, 0, :, 16:].sum((1, 2))
    return torch.stack([right, left], dim=1)


def corner_class(images: Tensor) -> Tensor:
    """Return logits of class 1 for images whose upper left is brighter than their lower right."""
    _, _, height, width = images.shape
    first = images[:, 0, : height // 2, : width // 2].sum((1, 2))
    second = images[:, 0, height // 2 :, width // 2 :].sum((1, 2))
    return torch.stack([second, first], dim=1)


def first_pixel_class(images: Tensor) -> Tensor:
    """Return logits of class 1 for images whose upper left pixel is lit."""
    lit = images[:, 0, 0, 0]
    return torch.stack([1 - lit, lit], dim=1)


def random_bits(*shape: int) -> Tensor:
    return (torch.rand(*shape, generator=torch.Generator().manual_seed(0)) > 0.5).float()


def horn_result() -> ProtocolResult:
    # Of the 8 blank columns before a bar at column 8, the protocol counts 7. At column 9 it counts 8.
    images = torch.cat([bars(8, 3), bars(9, 5), bars(15, 4), bars(22, 2), bars(23, 7)])
    return run_horn2021(left_half, images, torch.tensor([1] * 12 + [0] * 9), AuditSettings())


def test_horn_has_hand_computed_counts_and_accuracies():
    result = horn_result()
    assert result.counts == {"images, class 1": 9, "images, all classes": 11}
    class_1 = result.metrics["class 1"]
    assert class_1.shifts == tuple((0, step) for step in range(-8, 9))
    # A bar at column 9 leaves the left half at shifts ≥ 7, one at column 15 at shifts ≥ 1.
    expected = [((9 + step < 16) * 5 + (15 + step < 16) * 4) / 9 for step in range(-8, 9)]
    assert class_1.curves["accuracy"].values == pytest.approx(expected)
    assert result.numbers["mean accuracy, class 1"].value == pytest.approx(sum(expected) / 17)
    assert result.numbers["minimum accuracy, class 1"].value == 0.0
    assert decode(ProtocolResult, encode(result)) == result


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (
            torch.zeros(2, 1, 28, 28),
            torch.ones(2, dtype=torch.int64),
            r", 32, 32\).*\(2, 1, 28, 28\)",
        ),
        (bars(15, 2), None, r"labels must be .*got None"),
        (
            bars(15, 2),
            torch.zeros(2, dtype=torch.int64),
            "none of class 1 with margins of 8 columns",
        ),
    ],
)
def test_horn_with_unsupported_images_or_labels_is_an_error(images, labels, message: str):
    with pytest.raises(ValueError, match=message):
        run_horn2021(left_half, images, labels, AuditSettings())


def test_zhang_consistency_equals_the_loop_of_the_authors():
    images = random_bits(7, 1, 256, 256)

    def predict(batch: Tensor) -> Tensor:
        assert batch.shape[2:] == (224, 224)
        return first_pixel_class(batch)

    result = run_zhang2019(predict, images, None, AuditSettings(batch_size=3, seed=4))
    np.random.seed(4)
    num_equal, num_images = 0, 0
    for _ in range(5):
        for start in (0, 3, 6):
            batch = images[start : start + 3]
            first, second = np.random.randint(32, size=2), np.random.randint(32, size=2)
            crops = [
                batch[:, :, off[0] : off[0] + 224, off[1] : off[1] + 224] for off in (first, second)
            ]
            num_equal += int((predict(crops[0]).argmax(1) == predict(crops[1]).argmax(1)).sum())
            num_images += len(batch)
    assert result.numbers["consistency of two crops"].value == pytest.approx(num_equal / num_images)
    assert 0 < num_equal < num_images
    assert result.counts == {"images": 7, "passes": 5, "batch size": 3}
    with pytest.raises(ValueError, match="256, 256"):
        run_zhang2019(predict, torch.zeros(2, 1, 224, 224), None, AuditSettings())


@pytest.mark.parametrize(("side", "max_shift"), [(9, 3), (37, 32)])
def test_chaman_circular_consistency_equals_the_loop_of_the_authors(side: int, max_shift: int):
    torch.manual_seed(0)
    images = torch.rand(7, 1, side, side + 1) ** 4
    result = run_chaman2021(corner_class, images, None, AuditSettings(batch_size=3, seed=4))
    np.random.seed(4)
    num_equal = 0
    for start in (0, 3, 6):
        batch = images[start : start + 3]
        shifts = [np.random.randint(-max_shift, max_shift, 2) for _ in range(2)]
        predict = [
            corner_class(torch.roll(batch, shifts=(int(s[0]), int(s[1])), dims=(2, 3))).argmax(1)
            for s in shifts
        ]
        num_equal += int((predict[0] == predict[1]).sum())
    assert result.numbers["consistency of two shifts, circular"].value == pytest.approx(
        num_equal / 7
    )
    assert result.counts["largest shift"] == max_shift


def test_chaman_zero_padded_consistency_equals_the_authors_slices():
    torch.manual_seed(0)
    images, most = torch.rand(7, 1, 9, 10) ** 4, 3
    result = run_chaman2021(corner_class, images, None, AuditSettings(batch_size=7, seed=5))
    np.random.seed(5)
    shifts = [np.random.randint(-most, most, 2) for _ in range(2)]
    padded = functional.pad(images, (most,) * 4)
    predict = [
        corner_class(padded[:, :, s[0] + most : s[0] - most, s[1] + most : s[1] - most]).argmax(1)
        for s in shifts
    ]
    expected = float((predict[0] == predict[1]).double().mean())
    assert result.numbers["consistency of two shifts, zero-padded"].value == pytest.approx(expected)
    with pytest.raises(ValueError, match="at least 3 for protocol 'chaman2021'"):
        run_chaman2021(corner_class, torch.zeros(2, 1, 2, 9), None, AuditSettings())


def test_images_of_a_batch_share_a_pair_of_random_positions():
    images, positions = random_bits(11, 1, 5, 7), []

    def move(batch: Tensor, position: tuple[int, int]) -> Tensor:
        positions.append(position)
        return batch.roll(position, (2, 3))

    settings = AuditSettings(batch_size=4, seed=2)
    agreement = compare_random_positions(
        first_pixel_class, images, move, low=-2, high=2, passes=3, settings=settings
    )
    random = np.random.RandomState(2)
    expected = [tuple(random.randint(-2, 2, 2).tolist()) for _ in range(18)]
    assert positions == expected
    for row in range(3):
        for index, start in enumerate((0, 4, 8)):
            (down, right), (down_too, right_too) = expected[
                6 * row + 2 * index : 6 * row + 2 * index + 2
            ]
            batch = images[start : start + 4, 0]
            alike = batch[:, -down % 5, -right % 7] == batch[:, -down_too % 5, -right_too % 7]
            assert agreement[row, start : start + 4].tolist() == alike.tolist()


@pytest.mark.parametrize(
    ("function", "passes", "batch_size", "message"),
    [
        (first_pixel_class, 1, 0, "batch_size must be at least 1.*got 0"),
        (nn.Identity().eval(), 1, 2, "the output of the model must be one of classes"),
    ],
)
def test_invalid_arguments_of_random_positions_are_errors(
    function, passes: int, batch_size: int, message: str
):
    with pytest.raises(ValueError, match=message):
        compare_random_positions(
            function,
            torch.zeros(2, 1, 3, 3),
            lambda images, _: images,
            low=0,
            high=2,
            passes=passes,
            settings=AuditSettings(batch_size=batch_size),
        )
