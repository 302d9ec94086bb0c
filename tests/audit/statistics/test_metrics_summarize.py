import dataclasses
import json

import pytest
import torch

from teka.audit import square_shifts, wilson_interval
from teka.audit.measure.responses import Responses
from teka.audit.movement import Movement
from teka.audit.statistics.metrics import CURVES, NUMBERS, Metrics, summarize
from teka.codec import decode, encode
from teka.testing import equivariance_error

LINE = tuple((0, step) for step in range(-2, 3))


@pytest.fixture
def random_responses(measure):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 53, 7, generator=generator) + 0.4 * torch.randn(
        5, 53, 7, generator=generator
    )
    return measure(LINE, logits, torch.randint(7, (53,), generator=generator))


def test_metrics_equal_hand_computed_values(respond):
    # Four images at five shifts; the zero shift is in the middle.
    predictions = [[0, 1, 2, 2], [0, 1, 2, 0], [0, 1, 2, 3], [0, 1, 0, 3], [1, 1, 0, 3]]
    metrics = summarize(respond(LINE, predictions, [0, 1, 2, 0]))
    assert metrics.curves["accuracy"].values == (0.75, 1.0, 0.75, 0.5, 0.25)
    assert metrics.curves["agreement"].values == (0.75, 0.75, 1.0, 0.75, 0.5)
    value = {name: number.value for name, number in metrics.numbers.items()}
    assert value["accuracy"] == 0.75
    assert value["minimum_accuracy"] == 0.25
    assert value["worst_shift_accuracy"] == 0.25  # the second image only
    assert value["consistency"] == pytest.approx(11 / 16)
    # The first three images are correct without a shift.
    assert value["consistency_when_correct"] == pytest.approx(9 / 12)


def test_constant_predictor_is_consistent_with_a_wide_interval(respond):
    metrics = summarize(respond(LINE, torch.ones(5, 30, dtype=torch.int64), torch.arange(30) % 3))
    assert metrics.curves["accuracy"].values == (1 / 3,) * 5
    # All shifts have equal predictions, so the band is about as wide as the interval of one shift.
    assert metrics.curves["accuracy"].band_lower[0] == pytest.approx(
        metrics.curves["accuracy"].lower[0], abs=0.02
    )
    number = metrics.numbers["consistency"]
    assert (number.value, number.lower, number.upper) == (1.0, *wilson_interval(30, 30))


def test_position_dependent_predictions_have_consistency_zero(respond):
    positions = torch.arange(20)
    predictions = torch.stack([positions + step for _, step in LINE])
    metrics = summarize(respond(LINE, predictions, positions))
    assert metrics.curves["accuracy"].values == (0.0, 0.0, 1.0, 0.0, 0.0)
    assert (
        metrics.numbers["consistency"].value == metrics.numbers["worst_shift_accuracy"].value == 0.0
    )


def test_intervals_and_bands_contain_the_values(random_responses):
    metrics = summarize(random_responses, num_resamples=200)
    assert set(metrics.curves) == set(CURVES)
    assert set(metrics.numbers) == set(NUMBERS)
    for number in metrics.numbers.values():
        assert number.lower <= number.value <= number.upper
        assert number.confidence == metrics.confidence == 0.95
    for name, curve in metrics.curves.items():
        assert all(low <= value for low, value in zip(curve.band_lower, curve.values, strict=True))
        assert all(
            value <= high for value, high in zip(curve.values, curve.band_upper, strict=True)
        )
        ones = ("agreement", "overlap", "retrieval")  # 1 at the zero shift, where errors are 0
        if name != "accuracy":
            assert (
                curve.band_lower[2] == curve.values[2] == curve.band_upper[2] == float(name in ones)
            )


def test_means_exclude_the_zero_shift(random_responses):
    numbers = summarize(random_responses, num_resamples=100).numbers
    moved = [0, 1, 3, 4]
    expected = random_responses.cosine_distance[moved].double().mean().item()
    assert numbers["cosine_distance"].value == pytest.approx(expected)
    errors = (random_responses.error_squared.sum(1) / random_responses.norm_squared.sum(1)).sqrt()
    assert numbers["mean_error"].value == pytest.approx(errors[moved].mean().item())
    assert numbers["maximum_error"].value == pytest.approx(errors.max().item())


def test_error_equals_equivariance_error():
    images = torch.randn(12, 2, 5, 7, dtype=torch.float64)
    shifts = square_shifts(1)
    movement = Movement("circular")

    def function(batch):
        return batch * torch.linspace(1, 2, 7, dtype=torch.float64)

    unshifted = function(images)
    targets = torch.stack([movement.move(unshifted, shift) for shift in shifts])
    outputs = torch.stack([function(movement.move(images, shift)) for shift in shifts])
    responses = Responses(
        movement,
        shifts,
        "dense",
        torch.ones(9, 12, dtype=torch.bool),
        (outputs - targets).square().flatten(2).sum(2),
        targets.square().flatten(2).sum(2),
    )
    metrics = summarize(responses, num_resamples=100)
    meter = equivariance_error(function, images, shifts)
    assert metrics.curves["error"].values == pytest.approx(
        [meter.by_shift[shift] for shift in shifts]
    )
    assert set(metrics.curves) == {"error"}
    assert set(metrics.numbers) == {"mean_error", "maximum_error"}
    assert metrics.numbers["maximum_error"].value == pytest.approx(meter.maximum)


def test_exact_model_and_zero_outputs_have_no_error(respond):
    assert (
        summarize(respond(LINE, torch.zeros(5, 20, dtype=torch.int64)))
        .numbers["maximum_error"]
        .upper
        == 0.0
    )
    zero_outputs = respond(
        LINE, torch.zeros(5, 20, dtype=torch.int64), norm_squared=torch.zeros(5, 20)
    )
    assert summarize(zero_outputs).curves["error"].values == (0.0,) * 5


def test_error_without_a_norm_is_left_out(respond):
    errors = torch.zeros(5, 20)
    errors[0] = 1.0
    predictions = torch.zeros(5, 20, dtype=torch.int64)
    metrics = summarize(
        respond(LINE, predictions, error_squared=errors, norm_squared=torch.zeros(5, 20))
    )
    assert "error" not in metrics.curves
    assert "mean_error" not in metrics.numbers


def test_incomplete_shifts_are_skipped(random_responses):
    evaluated = random_responses.evaluated.clone()
    evaluated[4, 50:] = False
    incomplete = dataclasses.replace(random_responses, evaluated=evaluated)
    metrics = summarize(incomplete, num_resamples=100)
    assert metrics.shifts == LINE[:4]
    assert metrics.skipped_shifts == LINE[4:]
    assert metrics.num_images == 53


def test_zero_shift_alone_has_no_consistency(respond):
    metrics = summarize(
        respond([(0, 0)], torch.zeros(1, 15, dtype=torch.int64), torch.zeros(15, dtype=torch.int64))
    )
    assert set(metrics.numbers) == {"accuracy", "minimum_accuracy", "worst_shift_accuracy"}


def test_incomplete_zero_shift_is_an_error(respond):
    evaluated = torch.tensor([[True, False]])
    with pytest.raises(ValueError, match="zero shift"):
        summarize(respond([(0, 0)], torch.zeros(1, 2, dtype=torch.int64), evaluated=evaluated))


def test_metrics_are_reproducible_and_survive_json(random_responses):
    first, same, other = (
        summarize(random_responses, num_resamples=100, seed=seed) for seed in (1, 1, 2)
    )
    assert first == same
    assert first.numbers["consistency"] != other.numbers["consistency"]
    assert decode(Metrics, json.loads(json.dumps(encode(first), allow_nan=False))) == first


def test_undefined_metrics_are_left_out(respond):
    bare = summarize(respond([(0, 0)], torch.zeros(1, 3, dtype=torch.int64)))
    assert not {"accuracy", "consistency", "maximum_error"} & bare.numbers.keys()
