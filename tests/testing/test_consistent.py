import pytest
import torch
from torch import Tensor, nn

from teka.audit import AuditSettings, audit, square_shifts
from teka.audit.measure.measure_responses import measure_responses
from teka.audit.movement import Movement
from teka.testing import assert_consistent, minimal_counter_example


def column_class(images: Tensor) -> Tensor:
    """Class k of 3: the third of the columns that is brightest."""
    return torch.stack([part.sum((1, 2, 3)) for part in images.tensor_split(3, dim=3)], dim=1)


def invariant(images: Tensor) -> Tensor:
    """Class 0 where the mean square is above a third, which it is for half of images with uniform values."""
    mean_square = images.square().mean((1, 2, 3))
    return torch.stack([mean_square, torch.full_like(mean_square, 1 / 3)], dim=1)


def dots(*columns: int) -> Tensor:
    images = torch.zeros(len(columns), 1, 5, 9)
    for image, column in zip(images, columns, strict=True):
        image[0, 2, column] = 1.0
    return images


def test_an_invariant_classifier_passes_and_its_metrics_come_back():
    torch.manual_seed(0)
    metrics = assert_consistent(invariant, torch.rand(12, 1, 5, 7), shifts=2)
    assert metrics.numbers["consistency"].value == 1.0
    assert len(metrics.shifts) == 25


def test_the_counter_example_is_the_shortest_shift_of_all_images():
    # The dot at 4 leaves its third after two steps to either side, the one at 6 after one to the left.
    with pytest.raises(AssertionError) as raised:
        assert_consistent(column_class, dots(4, 6), shifts=[(0, 2), (0, -2), (0, -1), (2, 0)])
    assert (
        "the shortest shift that changes a prediction is (0, -1): image 1 is predicted 2 unshifted and 1 there"
        in str(raised.value)
    )
    assert "(1 of 2 images change)" in str(raised.value)


def test_a_share_below_one_lets_some_answers_change():
    images = dots(4, 4, 4, 6)
    # One of four images changes, at one of two shifts.
    assert_consistent(column_class, images, shifts=[(0, -1), (1, 0)], minimum=0.875)
    with pytest.raises(AssertionError, match=r"consistency 0\.8750 .* is below 0\.88"):
        assert_consistent(column_class, images, shifts=[(0, -1), (1, 0)], minimum=0.88)


def test_images_that_must_be_right_at_every_shift_need_labels():
    images, labels = dots(1, 4, 6), torch.tensor([0, 1, 2])
    metrics = assert_consistent(
        column_class, images, labels, shifts=[(0, 1)], metric="worst_shift_accuracy", minimum=1.0
    )
    assert metrics.numbers["worst_shift_accuracy"].value == 1.0
    with pytest.raises(
        AssertionError, match="image 2 of class 2 is predicted 2 unshifted and 1 there"
    ):
        assert_consistent(
            column_class, images, labels, shifts=[(0, -1)], metric="worst_shift_accuracy"
        )
    with pytest.raises(ValueError, match=r"labels must be .*got None"):
        assert_consistent(column_class, images, metric="worst_shift_accuracy")


@pytest.mark.parametrize("minimum", [-0.1, 1.1])
def test_a_minimum_that_is_no_share_is_refused(minimum: float):
    with pytest.raises(ValueError, match=r"minimum must be a share from 0 to 1"):
        assert_consistent(invariant, dots(1), minimum=minimum)


def test_an_unknown_metric_is_refused():
    with pytest.raises(ValueError, match="Did you mean 'consistency'"):
        assert_consistent(invariant, dots(1), metric="consistent")


def test_a_module_that_trains_is_refused():
    with pytest.raises(ValueError, match="training mode"):
        assert_consistent(nn.Sequential(nn.Flatten(), nn.Linear(45, 3)), dots(1))


def constant(images: Tensor) -> Tensor:
    return torch.stack([images.mean((1, 2, 3)) + 1, images.mean((1, 2, 3))], dim=1)


def drawing(images: Tensor) -> Tensor:
    return invariant(images) + torch.tensor([0.0, 1e-4]) * torch.rand(len(images), 2)


def by_batch(images: Tensor) -> Tensor:
    return invariant(images) - 0.9 * invariant(images).mean(0)


@pytest.mark.parametrize(
    ("model", "labelled", "reason"),
    [
        (constant, False, "constant predictor"),
        (constant, True, "constant predictor"),
        (invariant, True, "no better than chance"),
        (drawing, False, "non-determinism"),
        (by_batch, False, "batch statistics"),
    ],
)
def test_a_model_that_the_command_line_rejects_does_not_pass(model, labelled: bool, reason: str):
    torch.manual_seed(0)
    images = torch.rand(150, 1, 5, 7)
    # Labels that have nothing to do with the images.
    labels = torch.arange(150) % 2 if labelled else None
    report = audit(model, images, labels, settings=AuditSettings(shifts=square_shifts(1), parts=()))
    assert reason in report.invalid
    with pytest.raises(AssertionError, match=rf"these results are invalid, .*{reason}"):
        assert_consistent(model, images, labels, shifts=1, minimum=0.0)


def test_no_counter_example_is_said_where_there_is_none():
    responses = measure_responses(invariant, dots(1, 2), square_shifts(1), Movement("circular"))
    assert minimal_counter_example(responses) == "no shift changes a prediction"
