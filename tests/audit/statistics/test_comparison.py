import dataclasses
import itertools
import json

import numpy as np
import pytest
import torch
from scipy import stats

from teka.audit.statistics.comparison import (
    COMPARED_NUMBERS,
    Comparison,
    compare_responses,
    sign_flip_test,
)
from teka.audit.statistics.metrics import NUMBERS, summarize
from teka.codec import decode, encode

SHIFTS = tuple((0, step) for step in range(-2, 3))


def noisy_logits(noise, num_images, seed, strength=2.0):
    """Return logits (shifts, images, classes) with noise that grows with the shift, and labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(5, (num_images,), generator=torch.Generator().manual_seed(99))
    clean = strength * torch.nn.functional.one_hot(labels, 5) + torch.randn(
        num_images, 5, generator=generator
    )
    rows = [
        clean + noise * abs(dx) * torch.randn(num_images, 5, generator=generator)
        for _, dx in SHIFTS
    ]
    return torch.stack(rows).double(), labels


@pytest.fixture
def pair(measure):
    return tuple(
        measure(SHIFTS, *noisy_logits(noise, 83, seed)) for noise, seed in ((0.2, 0), (1.5, 1))
    )


def test_differences_equal_those_of_the_summaries(pair):
    comparison = compare_responses(*pair, num_resamples=100, num_flips=99)
    first, second = (summarize(responses, num_resamples=100) for responses in pair)
    assert set(comparison.numbers) == set(COMPARED_NUMBERS)
    assert set(comparison.curves) == {"accuracy", "agreement", "overlap", "retrieval"}
    for name, number in comparison.numbers.items():
        assert number.value == pytest.approx(
            first.numbers[name].value - second.numbers[name].value, abs=1e-12
        )
        assert number.lower <= number.value <= number.upper
        assert 0 < number.p_value <= 1
    for name, curve in comparison.curves.items():
        both = zip(first.curves[name].values, second.curves[name].values, strict=True)
        assert curve.values == pytest.approx([one - other for one, other in both], abs=1e-12)


def test_swapped_models_change_only_the_sign(pair):
    forward = compare_responses(*pair, num_resamples=200, num_flips=99)
    backward = compare_responses(*reversed(pair), num_resamples=200, num_flips=99)
    for name, number in forward.numbers.items():
        other = backward.numbers[name]
        ends = (-other.value, -other.upper, -other.lower, other.p_value)
        # Resamples of shares are not symmetric, because two pseudo-images are added in a fixed order.
        tolerance = 0.03 if NUMBERS[name].is_share else 1e-9
        assert (number.value, number.lower, number.upper, number.p_value) == pytest.approx(
            ends, abs=tolerance
        )


def test_comparison_of_a_model_with_itself_has_no_difference(pair):
    comparison = compare_responses(pair[0], pair[0], num_resamples=100, num_flips=99)
    for number in comparison.numbers.values():
        assert (number.value, number.p_value) == (0.0, 1.0)
    # Intervals of shares have a width although no image differs.
    consistency = comparison.numbers["consistency"]
    assert -0.1 < consistency.lower < 0 < consistency.upper < 0.1
    accuracy = comparison.curves["accuracy"]
    assert all(low < 0 < high for low, high in zip(accuracy.lower, accuracy.upper, strict=True))


def test_large_difference_is_significant_at_every_shift(measure):
    models = [
        measure(SHIFTS, *noisy_logits(noise, 200, seed, 4.0))
        for noise, seed in ((0.0, 0), (4.0, 1))
    ]
    comparison = compare_responses(*models, num_resamples=100, num_flips=999)
    accuracy = comparison.curves["accuracy"]
    assert all(accuracy.band_lower[row] > 0 for row in (0, 1, 3, 4))
    assert accuracy.band_lower[2] < 0
    for name in ("worst_shift_accuracy", "consistency"):
        assert comparison.numbers[name].lower > 0
    assert comparison.numbers["mean_error"].upper < 0
    assert comparison.numbers["mean_error"].p_value == pytest.approx(0.001)


def logits_with_errors(measure, size, seed):
    clean, labels = noisy_logits(0.0, 60, 0)
    errors = torch.rand(clean.shape, generator=torch.Generator().manual_seed(seed))
    errors[2] = 0.0  # the zero shift
    return measure(SHIFTS, (clean + size * errors).float(), labels)


@pytest.mark.parametrize(("size", "noise"), [(1e-7, 0.0), (2e-5, 1e-3)])
def test_differences_of_rounding_errors_or_noise_are_not_significant(measure, size, noise):
    pair = [logits_with_errors(measure, size * factor, seed) for seed, factor in enumerate((1, 20))]
    comparison = compare_responses(*pair, noise=noise, num_resamples=100, num_flips=999)
    for name in ("mean_error", "probability_change", "cosine_distance"):
        number = comparison.numbers[name]
        assert number.value < 0
        assert number.lower < 0 < number.upper
        assert number.p_value == 1.0


def test_small_differences_above_the_noise_are_significant(measure):
    pair = [logits_with_errors(measure, 1e-3 * factor, seed) for seed, factor in enumerate((1, 20))]
    comparison = compare_responses(*pair, num_resamples=100, num_flips=999)
    for name in ("mean_error", "probability_change", "cosine_distance"):
        number = comparison.numbers[name]
        assert number.upper < 0
        assert number.p_value == pytest.approx(0.001)


def test_negative_noise_is_an_error(pair):
    with pytest.raises(ValueError, match="noise must be a number of at least 0, got -1"):
        compare_responses(*pair, noise=-1.0)


def test_p_values_of_shares_equal_the_exact_mcnemar_test(respond):
    labels = torch.zeros(30, dtype=torch.int64)
    first, second = torch.zeros(2, 5, 30, dtype=torch.int64)
    second[:, :7] = 1
    first[:, 7:9] = 1
    comparison = compare_responses(
        respond(SHIFTS, first, labels), respond(SHIFTS, second, labels), num_resamples=100
    )
    exact = stats.binomtest(2, 9).pvalue
    for name in ("accuracy", "worst_shift_accuracy"):
        assert comparison.numbers[name].p_value == pytest.approx(exact, abs=0.02)


def test_bands_and_intervals_of_equal_models_cover_zero(measure):
    trials, band, interval, small = 80, 0, 0, 0
    for trial in range(trials):
        models = [measure(SHIFTS, *noisy_logits(0.7, 60, 2 * trial + model)) for model in range(2)]
        comparison = compare_responses(*models, num_resamples=100, num_flips=99, seed=trial)
        curve = comparison.curves["accuracy"]
        band += all(
            low <= 0 <= high for low, high in zip(curve.band_lower, curve.band_upper, strict=True)
        )
        consistency = comparison.numbers["consistency"]
        interval += consistency.lower <= 0 <= consistency.upper
        small += consistency.p_value <= 0.1
    # Three standard deviations below 0.95, and above 0.1.
    assert band / trials > 0.87
    assert interval / trials > 0.87
    assert small / trials < 0.2


def test_comparison_uses_shifts_complete_for_both_models(pair):
    evaluated = pair[1].evaluated.clone()
    evaluated[0, 3] = False
    comparison = compare_responses(
        pair[0], dataclasses.replace(pair[1], evaluated=evaluated), num_resamples=100
    )
    assert comparison.shifts == SHIFTS[1:]


def test_metrics_that_one_model_lacks_are_left_out(pair):
    lacking = dict.fromkeys(
        ("predictions", "probability_change", "overlap", "cosine_distance", "rank")
    )
    bare = dataclasses.replace(pair[1], output="features", **lacking)
    comparison = compare_responses(pair[0], bare, num_resamples=100)
    assert not comparison.curves
    assert set(comparison.numbers) == {"mean_error"}


def test_different_images_or_zero_flips_are_errors(pair):
    with pytest.raises(ValueError, match=r"^second\.labels"):
        compare_responses(pair[0], dataclasses.replace(pair[1], labels=1 - pair[1].labels))
    with pytest.raises(ValueError, match=r"^num_flips must be .*got 0"):
        compare_responses(*pair, num_flips=0)


def test_comparison_survives_json(pair):
    comparison = compare_responses(*pair, num_resamples=100, num_flips=99)
    assert (
        decode(Comparison, json.loads(json.dumps(encode(comparison), allow_nan=False)))
        == comparison
    )


def test_intervals_of_shares_are_close_to_bonett_and_price(respond):
    labels = torch.zeros(100, dtype=torch.int64)
    first, second = torch.zeros(2, 1, 100, dtype=torch.int64)
    second[:, :8] = 1
    first[:, 8:11] = 1
    sides = respond([(0, 0)], first, labels), respond([(0, 0)], second, labels)
    number = compare_responses(*sides, num_resamples=20_000).numbers["accuracy"]
    # a = 9/102, b = 4/102, d = 5/102, half = 1.96 √((13/102 − 25/102²) / 102)
    half = 1.96 * ((13 / 102 - (5 / 102) ** 2) / 102) ** 0.5
    assert (number.lower, number.upper) == pytest.approx(
        (5 / 102 - half, 5 / 102 + half), abs=0.011
    )


def test_p_value_approximates_the_exact_sign_flip_test():
    differences = np.random.default_rng(2).standard_normal(9) + 0.4
    signs = np.array(list(itertools.product((-1.0, 1.0), repeat=9)))
    exact = (np.abs(signs @ differences) >= abs(differences.sum()) - 1e-9).mean()
    assert sign_flip_test(differences, num_flips=40_000) == pytest.approx(exact, abs=0.01)


def test_p_value_is_one_without_difference_and_smallest_if_clear():
    assert sign_flip_test(np.zeros(20), num_flips=99) == 1.0
    assert sign_flip_test(np.ones(50), num_flips=99) == pytest.approx(0.01)


def test_p_value_does_not_depend_on_scale_or_sign():
    differences = np.random.default_rng(0).random(31) - 0.4
    factors = (1.0, -1e-9, 1e6)
    assert len({sign_flip_test(factor * differences, num_flips=500) for factor in factors}) == 1


def test_p_values_without_a_difference_are_uniform():
    random = np.random.default_rng(5)
    p_values = np.array(
        [
            sign_flip_test(random.standard_normal(25), num_flips=199, seed=seed)
            for seed in range(300)
        ]
    )
    for level in (0.05, 0.5):
        # Three standard deviations of the share of 300 tests.
        deviation = (level * (1 - level) / 300) ** 0.5
        assert (p_values <= level).mean() == pytest.approx(level, abs=3 * deviation)
