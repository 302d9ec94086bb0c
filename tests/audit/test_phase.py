import json

import pytest
import torch

from teka.audit import square_shifts, wilson_interval
from teka.audit.measure.responses import Responses
from teka.audit.movement import Movement
from teka.audit.phase import PhaseTable, error_by_phase

SHIFTS = square_shifts(3)
NUM_IMAGES = 23


def responses_of(error, agrees=lambda dy, dx: True, labels=True):
    """Images that all have one error and one answer at a shift, on top of a spread between images."""
    spread = torch.linspace(0.5, 1.5, NUM_IMAGES, dtype=torch.float64)
    errors = torch.tensor([error(*shift) if any(shift) else 0.0 for shift in SHIFTS], dtype=torch.float64)
    answers = torch.tensor([0 if agrees(*shift) or not any(shift) else 1 for shift in SHIFTS])
    norm = torch.ones(len(SHIFTS), NUM_IMAGES, dtype=torch.float64)
    return Responses(
        Movement("circular"),
        SHIFTS,
        "logits",
        torch.ones(len(SHIFTS), NUM_IMAGES, dtype=torch.bool),
        errors[:, None].square() * spread,
        norm,
        torch.zeros(NUM_IMAGES, dtype=torch.int64) if labels else None,
        answers[:, None].repeat(1, NUM_IMAGES),
    )


def test_an_error_by_phase_comes_out_phase_by_phase():
    responses = responses_of(lambda dy, dx: 1.0 + dy % 2 + 10 * (dx % 2), lambda dy, dx: dx % 2 == 0)
    table = error_by_phase(responses, 2, num_resamples=100)
    assert table.stride == (2, 2)
    assert table.phases == ((0, 0), (0, 1), (1, 0), (1, 1))
    # Along an axis −2, 0, 2 are even and −3, −1, 1, 3 odd; the zero shift does not count.
    assert table.num_shifts == (8, 12, 12, 16)
    assert [number.value for number in table.values["error"]] == pytest.approx([1.0, 11.0, 2.0, 12.0])
    assert [number.value for number in table.values["agreement"]] == [1.0, 0.0, 1.0, 0.0]
    assert table.values["accuracy"] == table.values["agreement"]


def test_each_mean_has_an_interval():
    table = error_by_phase(responses_of(lambda dy, dx: 1.0 + dx % 2), 2, num_resamples=200)
    for number in table.values["error"]:
        assert number.lower < number.value < number.upper
    # All images agree everywhere: an image counts as one trial, not each of its shifts.
    for number in table.values["agreement"]:
        assert (number.lower, number.upper) == wilson_interval(NUM_IMAGES, NUM_IMAGES)


def test_axes_may_have_strides_of_their_own():
    table = error_by_phase(responses_of(lambda dy, dx: 1.0 + dy % 3), (3, 1), num_resamples=100)
    assert table.stride == (3, 1)
    assert table.phases == ((0, 0), (1, 0), (2, 0))
    assert [number.value for number in table.values["error"]] == pytest.approx([1.0, 2.0, 3.0])


def test_a_stride_of_one_has_one_phase_with_the_means_of_all():
    table = error_by_phase(responses_of(lambda dy, dx: 2.0, labels=False), 1, num_resamples=100)
    assert table.phases == ((0, 0),)
    assert table.num_shifts == (48,)
    assert "accuracy" not in table.values
    assert table.values["error"][0].value == pytest.approx(2.0)


def test_phases_that_only_the_zero_shift_has_are_not_there():
    assert (0, 0) not in error_by_phase(responses_of(lambda dy, dx: 1.0), 7, num_resamples=100).phases


@pytest.mark.parametrize("stride", [0, -2, (2,), (2, 0), (2, 2, 2)])
def test_a_stride_that_does_not_fit_is_refused(stride):
    with pytest.raises(ValueError, match=r"^stride is"):
        error_by_phase(responses_of(lambda dy, dx: 1.0), stride)


def test_the_zero_shift_alone_is_refused():
    ones = torch.ones(1, 3)
    only = Responses(Movement("circular"), ((0, 0),), "features", ones.bool(), 0 * ones, ones)
    with pytest.raises(ValueError, match="zero shift only"):
        error_by_phase(only, 2)


def test_the_table_survives_json():
    table = error_by_phase(responses_of(lambda dy, dx: 1.0 + dx % 2), 2, num_resamples=100)
    assert PhaseTable.from_dict(json.loads(json.dumps(table.to_dict(), allow_nan=False))) == table
