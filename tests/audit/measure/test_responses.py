import dataclasses

import pytest
import torch

from teka.audit.measure.responses import check_same_images, take_common
from teka.audit.movement import Movement

SHIFTS = ((0, 0), (0, 1), (1, 0))


@pytest.fixture
def plain(respond):
    return respond(SHIFTS, torch.zeros(3, 4, dtype=torch.int64), [0, 0, 1, 0])


def without(responses, row, image):
    evaluated = responses.evaluated.clone()
    evaluated[row, image] = False
    return dataclasses.replace(responses, evaluated=evaluated)


def test_the_shifts_in_common_are_those_complete_for_all(plain):
    first, second = take_common([without(plain, 1, 2), plain])
    assert first.shifts == second.shifts == ((0, 0), (1, 0))
    assert second.evaluated.shape == (2, 4)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("movement", {"movement": Movement("zero")}),
        ("shifts", {"shifts": ((0, 0), (1, 0), (0, 1))}),
        ("labels", {"labels": torch.tensor([0, 0, 0, 0])}),
    ],
)
def test_other_images_are_refused(plain, name, changes):
    with pytest.raises(ValueError, match=rf"^second\.{name} is"):
        check_same_images("second", plain, dataclasses.replace(plain, **changes))
    check_same_images("second", plain, dataclasses.replace(plain, labels=None))


def test_another_number_of_images_is_refused(plain, respond):
    with pytest.raises(ValueError, match=r"^second\.num_images is 5"):
        check_same_images("second", plain, respond(SHIFTS, torch.zeros(3, 5, dtype=torch.int64)))


def test_an_image_is_decided_by_one_wrong_answer(plain):
    assert without(plain, 1, 2).is_decided
    assert not without(plain, 1, 0).is_decided
    assert without(plain, 1, 2).correct_at_every_shift.tolist() == [True, True, False, True]


def test_errors_without_a_norm_are_none_and_nothing_against_nothing_is_no_error(plain):
    norm = torch.ones(3, 4)
    norm[1] = 0
    squares = dataclasses.replace(plain, norm_squared=norm).errors
    assert squares is not None
    assert not squares[0].any()
    assert squares[1][1].tolist() == [1.0] * 4
    assert dataclasses.replace(plain, norm_squared=norm, error_squared=torch.ones(3, 4)).errors is None
