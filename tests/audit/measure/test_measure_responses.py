import itertools
import math
import time
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from teka.audit import square_shifts
from teka.audit.measure.measure_responses import Deadline, measure_responses
from teka.audit.model_call import ModelError
from teka.audit.movement import Movement
from tests.audit.measure.models import (
    IMAGES,
    LABELS,
    WIDTH,
    CountingModel,
    FailingModel,
    assert_same_responses,
    column_logits,
    images_of_columns,
    linear_logits,
    not_none,
    relative_errors,
)
from tests.raising import raises_for

CIRCULAR, ZERO = Movement("circular"), Movement("zero")
SHIFTS = square_shifts(3)


def test_column_classifier_predicts_the_shifted_column():
    columns = [0, 3, 7, 12]
    labels = torch.tensor(columns)
    result = measure_responses(
        column_logits, images_of_columns(columns), SHIFTS, CIRCULAR, labels=labels, output="logits"
    )
    assert result.output == "logits"
    assert result.evaluated.all()
    for row, (_, right) in enumerate(result.shifts):
        assert not_none(result.predictions)[row].tolist() == [
            (column + right) % WIDTH for column in columns
        ]
        assert (
            not_none(result.correct)[row].all()
            if right == 0
            else not not_none(result.correct)[row].any()
        )
    # The logits are 1 at the column of the lit pixel and 0 elsewhere, with and without a shift.
    moved = torch.tensor([float(right != 0) for _, right in SHIFTS], dtype=torch.float64)[
        :, None
    ].expand(-1, 4)
    torch.testing.assert_close(result.error_squared, 2 * moved, rtol=0, atol=0)
    torch.testing.assert_close(result.norm_squared, torch.ones_like(moved), rtol=0, atol=0)


def test_constant_model_has_no_error():
    logits = torch.tensor([0.5, 2.0, -1.0], dtype=torch.float64)
    result = measure_responses(
        lambda images: logits.repeat(len(images), 1), IMAGES, SHIFTS, ZERO, labels=LABELS
    )
    assert (result.predictions == 1).all()
    assert not result.error_squared.any()
    assert not relative_errors(result).any()


def test_logits_need_no_labels():
    result = measure_responses(linear_logits, IMAGES, SHIFTS, ZERO)
    assert (result.output, result.labels, result.correct) == ("logits", None, None)


def test_predictions_and_errors_of_logits_equal_their_definitions():
    result = measure_responses(linear_logits, IMAGES, SHIFTS, ZERO, labels=LABELS, batch_size=7)
    unshifted = linear_logits(IMAGES)
    for row, shift in enumerate(SHIFTS):
        logits = linear_logits(ZERO.move(IMAGES, shift))
        assert torch.equal(not_none(result.predictions)[row], logits.argmax(1))
        torch.testing.assert_close(result.error_squared[row], (logits - unshifted).square().sum(1))


@given(st.integers(1, 5), st.integers(0, 3), st.integers(1, 300))
def test_number_of_calls_is_minimal(num_images, max_shift, batch_size):
    model, shifts = CountingModel(linear_logits), square_shifts(max_shift)
    measure_responses(model, IMAGES[:num_images], shifts, CIRCULAR, batch_size=batch_size)
    assert sum(model.sizes) == num_images * len(shifts)
    assert max(model.sizes) <= batch_size
    num_shift_groups = math.ceil(len(shifts) / max(1, batch_size // num_images))
    assert len(model.sizes) == num_shift_groups * math.ceil(num_images / batch_size)


@pytest.mark.parametrize(
    "movement",
    [CIRCULAR, ZERO, Movement("crop", crop_size=(5, 7))],
    ids=lambda movement: movement.mode,
)
@pytest.mark.parametrize(
    "model", [lambda images: images[:, :, 0, :5].sum(1), torch.cumsum], ids=["logits", "dense"]
)
def test_responses_do_not_depend_on_the_batch_size(movement, model):
    function = (lambda images: images.cumsum(3)) if model is torch.cumsum else model
    shifts = square_shifts(2)
    expected = measure_responses(function, IMAGES, shifts, movement, batch_size=5)
    for batch_size in (1, 64, 1000):
        assert_same_responses(
            measure_responses(function, IMAGES, shifts, movement, batch_size=batch_size), expected
        )


def test_model_may_change_its_input_and_reuse_its_output():
    buffer = torch.empty(16, 3, dtype=torch.float64)

    def function(images):
        images.mul_(-1.0)
        return torch.mul(linear_logits(images), -1.0, out=buffer[: len(images)])

    images = IMAGES.clone()
    result = measure_responses(function, images, SHIFTS, CIRCULAR, batch_size=16)
    assert torch.equal(images, IMAGES)
    assert_same_responses(
        result, measure_responses(linear_logits, IMAGES, SHIFTS, CIRCULAR, batch_size=16)
    )


def test_object_with_bfloat16_logits_is_measured():
    result = measure_responses(
        lambda images: SimpleNamespace(logits=linear_logits(images).bfloat16()),
        IMAGES,
        SHIFTS,
        ZERO,
        labels=LABELS,
    )
    exact = measure_responses(linear_logits, IMAGES, SHIFTS, ZERO, labels=LABELS)
    assert torch.equal(not_none(result.predictions), not_none(exact.predictions))


def test_responses_keep_the_order_of_the_shifts():
    result = measure_responses(linear_logits, IMAGES, [3, -2, 0, 3], ZERO)
    assert result.shifts == ((0, 3), (0, -2), (0, 0))
    assert torch.equal(not_none(result.predictions)[2], linear_logits(IMAGES).argmax(1))
    assert not result.error_squared[2].any()


def test_responses_support_autograd_and_changes_in_place():
    result = measure_responses(
        linear_logits, IMAGES.clone().requires_grad_(), SHIFTS, ZERO, labels=LABELS
    )
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    (weight * result.error_squared.add_(1.0)).sum().backward()
    assert weight.grad is not None


def test_spent_budget_leaves_coarse_shifts():
    result = measure_responses(
        linear_logits, IMAGES, SHIFTS, ZERO, labels=LABELS, batch_size=47, budget_seconds=1e-9
    )
    coarse = tuple(itertools.product((-2, 0, 2), repeat=2))
    assert set(result.select_complete_shifts().shifts) == set(coarse)
    assert result.evaluated.sum() == 45  # nine shifts of five images
    left = ~result.evaluated
    assert (not_none(result.predictions)[left] == -1).all()
    assert not result.error_squared[left].any()


def test_progress_counts_all_evaluations():
    calls = []
    measure_responses(
        linear_logits,
        IMAGES,
        SHIFTS,
        ZERO,
        batch_size=100,
        progress=lambda *numbers: calls.append(numbers),
    )
    assert [numbers[:2] for numbers in calls] == [(100, 245), (200, 245), (245, 245)]
    assert calls[0][2] > 0
    assert calls[-1][2] == 0


def test_model_error_keeps_the_responses_before_it():
    error = RuntimeError("out of ideas")
    with pytest.raises(ModelError, match=r"RuntimeError at shift \(.*out of ideas") as caught:
        measure_responses(FailingModel(linear_logits, 3, error), IMAGES, SHIFTS, ZERO, batch_size=5)
    assert caught.value.__cause__ is error
    assert not_none(caught.value.responses).complete.sum() == 3
    assert len(not_none(caught.value.responses).select_complete_shifts().shifts) == 3


def test_model_error_in_the_first_call_has_no_responses():
    with pytest.raises(ModelError) as caught:
        measure_responses(FailingModel(linear_logits, 0, KeyError("pixels")), IMAGES, SHIFTS, ZERO)
    assert caught.value.responses is None


def test_invalid_arguments_are_errors(unchecked_annotations):
    for changes, message in [
        ({"images": IMAGES[:0]}, r"images must have .*got \(0, 2, 11, 13\)"),
        ({"shifts": [(0, 1)]}, "contains the zero shift"),
        ({"shifts": [(0, 0), (12, 0)]}, r"shifts must be .*got \(12, 0\)"),
        ({"labels": LABELS[:4]}, r"labels must have shape \(5,\).*got \(4,\)"),
        ({"labels": LABELS.double()}, r"labels must be .*got torch.float64"),
        ({"labels": LABELS - 1}, r"labels must be .*got -1"),
        ({"labels": LABELS + 1}, "labels must be classes below 3.*got 3"),
        ({"output": "logit"}, r"output must be .*got 'logit'.*Did you mean 'logits'"),
        ({"output": "dense"}, r"because the requested kind is 'dense'"),
        ({"stride": 0}, r"stride must be .*got 0"),
        ({"batch_size": 0}, r"batch_size must be .*got 0"),
        ({"budget_seconds": 0.0}, r"budget_seconds must be .*got 0.0"),
        ({"function": nn.Dropout()}, "training mode"),
    ]:
        given = {
            "function": linear_logits,
            "images": IMAGES,
            "shifts": SHIFTS,
            "movement": ZERO,
            "labels": LABELS,
            **changes,
        }
        with raises_for(message, ValueError, match=message):
            measure_responses(**given)


@pytest.mark.parametrize("budget", [None, 1e-3])
def test_time_left_is_estimated_from_the_elapsed_time(budget: float | None):
    start = time.perf_counter()

    def check_time_left(done: int, total: int, left: float) -> None:
        elapsed = time.perf_counter() - start
        assert 0.01 / total * (total - done) <= left <= elapsed / done * (total - done)

    def check_budget(done: int, total: int, left: float) -> None:
        assert 0 <= left <= 1e-3

    def slow_model(images: torch.Tensor) -> torch.Tensor:
        time.sleep(0.01)
        return linear_logits(images)

    measure_responses(
        slow_model,
        IMAGES,
        SHIFTS,
        ZERO,
        batch_size=len(IMAGES),
        budget_seconds=budget,
        progress=check_time_left if budget is None else check_budget,
    )


def test_deadline_has_the_remaining_seconds():
    assert not Deadline(1e-9).seconds_left
    assert 0 < Deadline(1e9).seconds_left <= 1e9
    assert Deadline().seconds_left == math.inf


def test_deadline_must_be_positive():
    for budget in [0, -1.0, float("nan")]:
        with raises_for(budget, ValueError, match="budget_seconds must be"):
            Deadline(budget)
