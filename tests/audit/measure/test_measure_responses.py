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
    Counting,
    Failing,
    assert_same,
    column_of,
    linear,
    points,
    present,
    relative_error,
)
from tests.raising import raises_for

CIRCULAR, ZERO = Movement("circular"), Movement("zero")
SHIFTS = square_shifts(3)


def test_a_classifier_of_the_column_answers_with_the_moved_column():
    columns = [0, 3, 7, 12]
    labels = torch.tensor(columns)
    result = measure_responses(
        column_of, points(columns), SHIFTS, CIRCULAR, labels=labels, output="logits"
    )
    assert result.output == "logits"
    assert result.evaluated.all()
    for row, (_, right) in enumerate(result.shifts):
        assert present(result.predictions)[row].tolist() == [
            (column + right) % WIDTH for column in columns
        ]
        assert (
            present(result.correct)[row].all()
            if right == 0
            else not present(result.correct)[row].any()
        )
    # The logits are 1 at the column and 0 elsewhere, moved or not.
    moved = torch.tensor([float(right != 0) for _, right in SHIFTS], dtype=torch.float64)[
        :, None
    ].expand(-1, 4)
    torch.testing.assert_close(result.error_squared, 2 * moved, rtol=0, atol=0)
    torch.testing.assert_close(result.norm_squared, torch.ones_like(moved), rtol=0, atol=0)


def test_a_constant_stays_at_every_shift():
    logits = torch.tensor([0.5, 2.0, -1.0], dtype=torch.float64)
    result = measure_responses(
        lambda images: logits.repeat(len(images), 1), IMAGES, SHIFTS, ZERO, labels=LABELS
    )
    assert (result.predictions == 1).all()
    assert not result.error_squared.any()
    assert not relative_error(result).any()


def test_logits_need_no_labels():
    result = measure_responses(linear, IMAGES, SHIFTS, ZERO)
    assert (result.output, result.labels, result.correct) == ("logits", None, None)


def test_numbers_of_logits_are_those_of_their_definitions():
    result = measure_responses(linear, IMAGES, SHIFTS, ZERO, labels=LABELS, batch_size=7)
    unmoved = linear(IMAGES)
    for row, shift in enumerate(SHIFTS):
        logits = linear(ZERO.move(IMAGES, shift))
        assert torch.equal(present(result.predictions)[row], logits.argmax(1))
        torch.testing.assert_close(result.error_squared[row], (logits - unmoved).square().sum(1))


@given(st.integers(1, 5), st.integers(0, 3), st.integers(1, 300))
def test_the_number_of_calls_is_small(num_images, max_shift, batch_size):
    model, shifts = Counting(linear), square_shifts(max_shift)
    measure_responses(model, IMAGES[:num_images], shifts, CIRCULAR, batch_size=batch_size)
    assert sum(model.sizes) == num_images * len(shifts)
    assert max(model.sizes) <= batch_size
    num_shift_groups = math.ceil(len(shifts) / max(1, batch_size // num_images))
    assert len(model.sizes) == num_shift_groups * math.ceil(num_images / batch_size)


@pytest.mark.parametrize(
    "movement", [CIRCULAR, ZERO, Movement("crop", crop_size=(5, 7))], ids=lambda one: one.mode
)
@pytest.mark.parametrize(
    "model", [lambda images: images[:, :, 0, :5].sum(1), torch.cumsum], ids=["logits", "dense"]
)
def test_the_batch_size_changes_nothing(movement, model):
    function = (lambda images: images.cumsum(3)) if model is torch.cumsum else model
    shifts = square_shifts(2)
    expected = measure_responses(function, IMAGES, shifts, movement, batch_size=5)
    for batch_size in (1, 64, 1000):
        assert_same(
            measure_responses(function, IMAGES, shifts, movement, batch_size=batch_size), expected
        )


def test_a_model_may_change_its_input_and_use_one_buffer():
    buffer = torch.empty(16, 3, dtype=torch.float64)

    def function(images):
        images.mul_(-1.0)
        return torch.mul(linear(images), -1.0, out=buffer[: len(images)])

    images = IMAGES.clone()
    result = measure_responses(function, images, SHIFTS, CIRCULAR, batch_size=16)
    assert torch.equal(images, IMAGES)
    assert_same(result, measure_responses(linear, IMAGES, SHIFTS, CIRCULAR, batch_size=16))


def test_an_object_with_logits_and_half_precision_are_understood():
    result = measure_responses(
        lambda images: SimpleNamespace(logits=linear(images).bfloat16()),
        IMAGES,
        SHIFTS,
        ZERO,
        labels=LABELS,
    )
    exact = measure_responses(linear, IMAGES, SHIFTS, ZERO, labels=LABELS)
    assert torch.equal(present(result.predictions), present(exact.predictions))


def test_the_order_of_the_shifts_is_the_callers():
    result = measure_responses(linear, IMAGES, [3, -2, 0, 3], ZERO)
    assert result.shifts == ((0, 3), (0, -2), (0, 0))
    assert torch.equal(present(result.predictions)[2], linear(IMAGES).argmax(1))
    assert not result.error_squared[2].any()


def test_results_may_be_changed_and_differentiated_with():
    result = measure_responses(linear, IMAGES.clone().requires_grad_(), SHIFTS, ZERO, labels=LABELS)
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    (weight * result.error_squared.add_(1.0)).sum().backward()
    assert weight.grad is not None


def test_a_budget_that_is_spent_leaves_the_coarse_shifts():
    result = measure_responses(
        linear, IMAGES, SHIFTS, ZERO, labels=LABELS, batch_size=47, budget_seconds=1e-9
    )
    coarse = tuple(itertools.product((-2, 0, 2), repeat=2))
    assert set(result.select_complete_shifts().shifts) == set(coarse)
    assert result.evaluated.sum() == 45  # nine shifts of five images
    left = ~result.evaluated
    assert (present(result.predictions)[left] == -1).all()
    assert not result.error_squared[left].any()


def test_progress_counts_entries_to_the_end():
    told = []
    measure_responses(
        linear, IMAGES, SHIFTS, ZERO, batch_size=100, progress=lambda *numbers: told.append(numbers)
    )
    assert [numbers[:2] for numbers in told] == [(100, 245), (200, 245), (245, 245)]
    assert told[0][2] > 0
    assert told[-1][2] == 0


def test_what_was_measured_before_a_model_raised_is_kept():
    error = RuntimeError("out of ideas")
    with pytest.raises(ModelError, match=r"RuntimeError at shift \(.*out of ideas") as caught:
        measure_responses(Failing(linear, 3, error), IMAGES, SHIFTS, ZERO, batch_size=5)
    assert caught.value.__cause__ is error
    assert present(caught.value.responses).complete.sum() == 3
    assert len(present(caught.value.responses).select_complete_shifts().shifts) == 3


def test_a_model_that_raises_at_once_leaves_nothing():
    with pytest.raises(ModelError) as caught:
        measure_responses(Failing(linear, 0, KeyError("pixels")), IMAGES, SHIFTS, ZERO)
    assert caught.value.responses is None


def test_bad_input_is_refused(unchecked_annotations):
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
            "function": linear,
            "images": IMAGES,
            "shifts": SHIFTS,
            "movement": ZERO,
            "labels": LABELS,
            **changes,
        }
        with raises_for(message, ValueError, match=message):
            measure_responses(**given)


@pytest.mark.parametrize("budget", [None, 1e-3])
def test_the_time_left_is_estimated_from_the_pace_so_far(budget: float | None):
    start = time.perf_counter()

    def check_time_left(done: int, total: int, left: float) -> None:
        elapsed = time.perf_counter() - start
        assert 0.01 / total * (total - done) <= left <= elapsed / done * (total - done)

    def check_budget(done: int, total: int, left: float) -> None:
        assert 0 <= left <= 1e-3

    def slow(images: torch.Tensor) -> torch.Tensor:
        time.sleep(0.01)
        return linear(images)

    measure_responses(
        slow,
        IMAGES,
        SHIFTS,
        ZERO,
        batch_size=len(IMAGES),
        budget_seconds=budget,
        progress=check_time_left if budget is None else check_budget,
    )


def test_a_budget_ends():
    assert not Deadline(1e-9).seconds_left
    assert 0 < Deadline(1e9).seconds_left <= 1e9
    assert Deadline().seconds_left == math.inf


def test_a_budget_that_is_not_positive_is_refused():
    for budget in [0, -1.0, float("nan")]:
        with raises_for(budget, ValueError, match="budget_seconds must be"):
            Deadline(budget)
