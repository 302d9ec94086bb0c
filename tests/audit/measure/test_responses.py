import dataclasses

import pytest
import torch

from teka.audit import axis_shifts, measure_responses, summarize
from teka.audit.measure.responses import check_same_images, select_common_shifts
from teka.audit.movement import Movement
from tests.audit.measure.models import not_none
from tests.raising import raises_for

SHIFTS = ((0, 0), (0, 1), (1, 0))


@pytest.fixture
def constant_responses(respond):
    return respond(SHIFTS, torch.zeros(3, 4, dtype=torch.int64), [0, 0, 1, 0])


def without_one_evaluation(responses, row, image):
    """Return responses in which one image was not evaluated at one shift."""
    evaluated, predictions = responses.evaluated.clone(), responses.predictions.clone()
    evaluated[row, image], predictions[row, image] = False, -1
    return dataclasses.replace(responses, evaluated=evaluated, predictions=predictions)


def test_select_common_shifts_keeps_shifts_complete_in_all_responses(constant_responses):
    first, second = select_common_shifts(
        [without_one_evaluation(constant_responses, 1, 2), constant_responses]
    )
    assert first.shifts == second.shifts == ((0, 0), (1, 0))
    assert second.evaluated.shape == (2, 4)


def test_responses_of_different_images_are_an_error(constant_responses):
    for name, changes in [
        ("movement", {"movement": Movement("zero")}),
        ("shifts", {"shifts": ((0, 0), (1, 0), (0, 1))}),
        ("labels", {"labels": torch.tensor([0, 0, 0, 0])}),
    ]:
        with raises_for(name, ValueError, match=rf"^second\.{name} must be"):
            check_same_images(
                constant_responses, dataclasses.replace(constant_responses, **changes)
            )
        check_same_images(constant_responses, dataclasses.replace(constant_responses, labels=None))


def test_different_numbers_of_images_are_an_error(constant_responses, respond):
    with pytest.raises(ValueError, match=r"^second\.num_images must be .*got 5"):
        check_same_images(constant_responses, respond(SHIFTS, torch.zeros(3, 5, dtype=torch.int64)))


def test_shifts_as_an_iterator_are_an_error(constant_responses):
    with pytest.raises(ValueError, match=r"^shifts must be a list of shifts"):
        dataclasses.replace(constant_responses, shifts=iter(SHIFTS))


def test_errors_of_zero_outputs_are_none_or_zero(constant_responses):
    norm = torch.ones(3, 4)
    norm[1] = 0
    squares = dataclasses.replace(constant_responses, norm_squared=norm).errors
    assert squares is not None
    assert not squares[0].any()
    assert squares[1][1].tolist() == [1.0] * 4
    assert (
        dataclasses.replace(
            constant_responses, norm_squared=norm, error_squared=torch.ones(3, 4)
        ).errors
        is None
    )


def images_of_columns(columns):
    """Return one image for each column, with one lit pixel in that column and the middle row."""
    images = torch.zeros(len(columns), 1, 11, 13, dtype=torch.float64)
    for image, column in enumerate(columns):
        images[image, 0, 5, column] = 1.0
    return images


def test_column_classifier_is_correct_for_vertical_shifts_only():
    columns = torch.tensor([3, 5, 6, 8, 9])
    responses = measure_responses(
        lambda images: images.sum((1, 2)),
        images_of_columns(columns),
        axis_shifts(3),
        Movement("lossless"),
        labels=columns,
    )
    for (down, right), correct, predictions in zip(
        responses.shifts, not_none(responses.correct), not_none(responses.predictions), strict=True
    ):
        assert correct.all() if right == 0 else not correct.any(), (down, right)
        assert predictions.tolist() == (columns + right).tolist()
    assert (
        summarize(responses).numbers["consistency"].value == 0.5
    )  # the six vertical shifts agree, the six horizontal shifts do not


def test_column_threshold_classifier_has_hand_computed_accuracies():
    # The class is column ≥ 7 without a shift. At step s the prediction is wrong for columns in [7 − s, 7) if s > 0, and in
    # [7, 7 − s) if s < 0: columns 5, 6 and 8 cross at s ≥ 2, s ≥ 1 and s ≤ −2.
    columns = torch.tensor([3, 5, 6, 8, 9])

    def predict(images):
        lit = images.sum((1, 2))
        return torch.stack([lit[:, :7].sum(1), lit[:, 7:].sum(1)], dim=1)

    responses = measure_responses(
        predict,
        images_of_columns(columns),
        range(-3, 4),
        Movement("lossless"),
        labels=(columns >= 7).long(),
    )
    assert list(summarize(responses).curves["accuracy"].values) == [
        0.6,
        0.8,
        1.0,
        1.0,
        0.8,
        0.6,
        0.6,
    ]
    # Column 3 never crosses the threshold, and column 9 only at s = −3, so one of five is always correct.
    numbers = summarize(responses).numbers
    assert (numbers["minimum_accuracy"].value, numbers["worst_shift_accuracy"].value) == (0.6, 0.2)
