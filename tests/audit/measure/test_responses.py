import dataclasses

import pytest
import torch

from teka.audit import axis_shifts, measure_responses, summarize
from teka.audit.measure.responses import check_same_images, select_common_shifts
from teka.audit.movement import Movement
from tests.audit.measure.models import present
from tests.raising import raises_for

SHIFTS = ((0, 0), (0, 1), (1, 0))


@pytest.fixture
def plain(respond):
    return respond(SHIFTS, torch.zeros(3, 4, dtype=torch.int64), [0, 0, 1, 0])


def without(responses, row, image):
    """Responses of which one was not asked for: there is no answer, which is not a wrong one."""
    evaluated, predictions = responses.evaluated.clone(), responses.predictions.clone()
    evaluated[row, image], predictions[row, image] = False, -1
    return dataclasses.replace(responses, evaluated=evaluated, predictions=predictions)


def test_the_shifts_in_common_are_those_complete_for_all(plain):
    first, second = select_common_shifts([without(plain, 1, 2), plain])
    assert first.shifts == second.shifts == ((0, 0), (1, 0))
    assert second.evaluated.shape == (2, 4)


def test_other_images_are_refused(plain):
    for name, changes in [
        ("movement", {"movement": Movement("zero")}),
        ("shifts", {"shifts": ((0, 0), (1, 0), (0, 1))}),
        ("labels", {"labels": torch.tensor([0, 0, 0, 0])}),
    ]:
        with raises_for(name, ValueError, match=rf"^second\.{name} must be"):
            check_same_images(plain, dataclasses.replace(plain, **changes))
        check_same_images(plain, dataclasses.replace(plain, labels=None))


def test_another_number_of_images_is_refused(plain, respond):
    with pytest.raises(ValueError, match=r"^second\.num_images must be .*got 5"):
        check_same_images(plain, respond(SHIFTS, torch.zeros(3, 5, dtype=torch.int64)))


def test_shifts_that_can_be_read_only_once_are_refused(plain):
    with pytest.raises(ValueError, match=r"^shifts must be a list of shifts"):
        dataclasses.replace(plain, shifts=iter(SHIFTS))


def test_errors_without_a_norm_are_none_and_nothing_against_nothing_is_no_error(plain):
    norm = torch.ones(3, 4)
    norm[1] = 0
    squares = dataclasses.replace(plain, norm_squared=norm).errors
    assert squares is not None
    assert not squares[0].any()
    assert squares[1][1].tolist() == [1.0] * 4
    assert (
        dataclasses.replace(plain, norm_squared=norm, error_squared=torch.ones(3, 4)).errors is None
    )


def points(columns):
    """One image for each column, with one lit pixel in it, in the middle row."""
    images = torch.zeros(len(columns), 1, 11, 13, dtype=torch.float64)
    for image, column in enumerate(columns):
        images[image, 0, 5, column] = 1.0
    return images


def test_a_classifier_of_the_column_is_correct_only_where_the_column_stays():
    columns = torch.tensor([3, 5, 6, 8, 9])
    responses = measure_responses(
        lambda images: images.sum((1, 2)),
        points(columns),
        axis_shifts(3),
        Movement("lossless"),
        labels=columns,
    )
    for (down, right), correct, predictions in zip(
        responses.shifts, present(responses.correct), present(responses.predictions), strict=True
    ):
        assert correct.all() if right == 0 else not correct.any(), (down, right)
        assert predictions.tolist() == (columns + right).tolist()
    assert (
        summarize(responses).numbers["consistency"].value == 0.5
    )  # six shifts downwards agree, six to the right not


def test_a_threshold_on_the_column_has_the_accuracies_worked_out_by_hand():
    # Classes by column ≥ 7 before the shift. At step s the answer is wrong for columns in [7 − s, 7) if s > 0, and in
    # [7, 7 − s) if s < 0: columns 5, 6 and 8 cross at s ≥ 2, s ≥ 1 and s ≤ −2.
    columns = torch.tensor([3, 5, 6, 8, 9])

    def predict(images):
        lit = images.sum((1, 2))
        return torch.stack([lit[:, :7].sum(1), lit[:, 7:].sum(1)], dim=1)

    responses = measure_responses(
        predict, points(columns), range(-3, 4), Movement("lossless"), labels=(columns >= 7).long()
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
    # Column 3 never crosses; column 9 does at s = −3 only; so one of five is correct everywhere.
    numbers = summarize(responses).numbers
    assert (numbers["minimum_accuracy"].value, numbers["worst_shift_accuracy"].value) == (0.6, 0.2)
