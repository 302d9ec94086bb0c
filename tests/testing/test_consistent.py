import pytest
import torch
from torch import Tensor, nn

from teka.audit import AuditSettings, audit, square_shifts
from teka.audit.measure.measure_responses import measure_responses
from teka.audit.movement import Movement
from teka.testing import assert_consistent, describe_counterexample


def column_class(images: Tensor) -> Tensor:
    """Return logits of 3 classes, one for each third of the columns."""
    return torch.stack([part.sum((1, 2, 3)) for part in images.tensor_split(3, dim=3)], dim=1)


def invariant(images: Tensor) -> Tensor:
    """Return logits of class 0 if the mean square is above 1/3, as in half of uniform images."""
    mean_square = images.square().mean((1, 2, 3))
    return torch.stack([mean_square, torch.full_like(mean_square, 1 / 3)], dim=1)


def images_of_columns(*columns: int) -> Tensor:
    images = torch.zeros(len(columns), 1, 5, 9)
    for image, column in zip(images, columns, strict=True):
        image[0, 2, column] = 1.0
    return images


def test_invariant_classifier_passes_and_metrics_are_returned():
    torch.manual_seed(0)
    metrics = assert_consistent(invariant, torch.rand(12, 1, 5, 7), shifts=2)
    assert metrics.numbers["consistency"].value == 1.0
    assert len(metrics.shifts) == 25


def test_counter_example_is_the_shortest_shift_of_all_images():
    # The pixel in column 4 leaves its third after two steps, the one in column 6 after one step to the left.
    with pytest.raises(AssertionError) as error:
        assert_consistent(
            column_class, images_of_columns(4, 6), shifts=[(0, 2), (0, -2), (0, -1), (2, 0)]
        )
    assert (
        "the shortest shift that changes a prediction is (0, -1): image 1 is predicted 2 unshifted and 1 there"
        in str(error.value)
    )
    assert "(1 of 2 images change)" in str(error.value)


def test_minimum_below_one_allows_some_changes():
    images = images_of_columns(4, 4, 4, 6)
    # One of four images changes, at one of two shifts.
    assert_consistent(column_class, images, shifts=[(0, -1), (1, 0)], minimum=0.875)
    with pytest.raises(AssertionError, match=r"consistency 0\.8750 .* is below 0\.88"):
        assert_consistent(column_class, images, shifts=[(0, -1), (1, 0)], minimum=0.88)


def test_worst_shift_accuracy_needs_labels():
    images, labels = images_of_columns(1, 4, 6), torch.tensor([0, 1, 2])
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
def test_minimum_outside_zero_to_one_is_an_error(minimum: float):
    with pytest.raises(ValueError, match=r"minimum must be a share from 0 to 1"):
        assert_consistent(invariant, images_of_columns(1), minimum=minimum)


def test_unknown_metric_is_an_error():
    with pytest.raises(ValueError, match="Did you mean 'consistency'"):
        assert_consistent(invariant, images_of_columns(1), metric="consistent")


def test_module_in_training_mode_is_an_error():
    with pytest.raises(ValueError, match="training mode"):
        assert_consistent(nn.Sequential(nn.Flatten(), nn.Linear(45, 3)), images_of_columns(1))


def constant(images: Tensor) -> Tensor:
    return torch.stack([images.mean((1, 2, 3)) + 1, images.mean((1, 2, 3))], dim=1)


def random_model(images: Tensor) -> Tensor:
    return invariant(images) + torch.tensor([0.0, 1e-4]) * torch.rand(len(images), 2)


def batch_dependent_model(images: Tensor) -> Tensor:
    return invariant(images) - 0.9 * invariant(images).mean(0)


@pytest.mark.parametrize(
    ("model", "has_labels", "reason"),
    [
        (constant, False, "constant predictor"),
        (constant, True, "constant predictor"),
        (invariant, True, "no better than chance"),
        (random_model, False, "non-determinism"),
        (batch_dependent_model, False, "batch statistics"),
    ],
)
def test_model_with_invalid_results_does_not_pass(model, has_labels: bool, reason: str):
    torch.manual_seed(0)
    images = torch.rand(150, 1, 5, 7)
    # The labels do not depend on the images.
    labels = torch.arange(150) % 2 if has_labels else None
    report = audit(model, images, labels, settings=AuditSettings(shifts=square_shifts(1), parts=()))
    assert reason in report.invalid
    with pytest.raises(AssertionError, match=rf"these results are invalid, .*{reason}"):
        assert_consistent(model, images, labels, shifts=1, minimum=0.0)


def test_missing_counter_example_is_stated():
    responses = measure_responses(
        invariant, images_of_columns(1, 2), square_shifts(1), Movement("circular")
    )
    assert describe_counterexample(responses) == "no shift changes a prediction"
