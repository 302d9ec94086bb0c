import dataclasses
import itertools
import json

import pytest
import torch
from scipy import stats

from teka.audit.statistics.comparison import (
    BONETT_PRICE_IMAGES,
    COMPARED_NUMBERS,
    Comparison,
    compare_responses,
    holm_adjust,
    mcnemar_test,
    paired_interval,
    sign_flip_test,
)
from teka.audit.statistics.summarize import summarize
from teka.codec import decode, encode

SHIFTS = tuple((0, step) for step in range(-2, 3))


def logits_of(noise, num_images, seed, strength=2.0):
    """Logits (shifts, images, classes) and labels; the farther the shift the more noise."""
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
        measure(SHIFTS, *logits_of(noise, 83, seed)) for noise, seed in ((0.2, 0), (1.5, 1))
    )


def test_every_difference_is_that_of_the_summaries(pair):
    comparison = compare_responses(*pair, num_resamples=100, num_flips=99)
    first, second = (summarize(responses, num_resamples=100) for responses in pair)
    assert set(comparison.numbers) == set(COMPARED_NUMBERS)
    assert set(comparison.curves) == {"accuracy", "agreement", "retrieval"}
    for name, number in comparison.numbers.items():
        assert number.value == pytest.approx(
            first.numbers[name].value - second.numbers[name].value, abs=1e-12
        )
        assert number.lower <= number.value <= number.upper
        assert 0 < number.p_value <= 1
    for name, curve in comparison.curves.items():
        both = zip(first.curves[name].values, second.curves[name].values, strict=True)
        assert curve.curve.values == pytest.approx([one - other for one, other in both], abs=1e-12)


def test_swapping_the_models_changes_signs_only(pair):
    forward = compare_responses(*pair, num_resamples=200, num_flips=99)
    backward = compare_responses(*reversed(pair), num_resamples=200, num_flips=99)
    for name, number in forward.numbers.items():
        other = backward.numbers[name]
        ends = (-other.value, -other.upper, -other.lower, other.p_value)
        assert (number.value, number.lower, number.upper, number.p_value) == pytest.approx(
            ends, abs=1e-6
        )


def test_a_model_does_not_differ_from_itself(pair):
    comparison = compare_responses(pair[0], pair[0], num_resamples=100, num_flips=99)
    for number in comparison.numbers.values():
        assert (number.value, number.p_value) == (0.0, 1.0)
    assert comparison.numbers["consistency"].method == BONETT_PRICE_IMAGES
    accuracy = comparison.curves["accuracy"]
    assert accuracy.p_values == accuracy.adjusted_p_values == (1.0,) * 5
    assert all(
        low < 0 < high for low, high in zip(accuracy.curve.lower, accuracy.curve.upper, strict=True)
    )
    # At the zero shift both agree with themselves by definition.
    agreement = comparison.curves["agreement"].curve
    assert agreement.band_lower[2] == agreement.band_upper[2] == 0.0


def test_a_plain_difference_is_found_at_every_far_shift_also_after_adjustment(measure):
    models = [
        measure(SHIFTS, *logits_of(noise, 200, seed, 4.0)) for noise, seed in ((0.0, 0), (4.0, 1))
    ]
    comparison = compare_responses(*models, num_resamples=100, num_flips=999)
    accuracy = comparison.curves["accuracy"]
    for row in (0, 1, 3, 4):
        assert accuracy.p_values[row] < accuracy.adjusted_p_values[row] < 0.001
        assert accuracy.curve.band_lower[row] > 0
    assert accuracy.adjusted_p_values[2] > 0.05
    for name in ("worst_shift_accuracy", "consistency"):
        assert comparison.numbers[name].lower > 0
    for name in ("divergence", "mean_error", "probability_change"):
        assert comparison.numbers[name].upper < 0
        assert comparison.numbers[name].p_value == pytest.approx(0.001)


def test_p_values_are_those_of_the_images_that_tell_the_models_apart(respond):
    labels = torch.zeros(30, dtype=torch.int64)
    first, second = torch.zeros(2, 5, 30, dtype=torch.int64)
    second[:, :7] = 1
    first[:, 7:9] = 1
    comparison = compare_responses(
        respond(SHIFTS, first, labels), respond(SHIFTS, second, labels), num_resamples=100
    )
    exact = stats.binomtest(2, 9).pvalue
    assert comparison.numbers["accuracy"].p_value == pytest.approx(exact)
    assert comparison.numbers["worst_shift_accuracy"].p_value == pytest.approx(exact)
    assert comparison.curves["accuracy"].p_values == pytest.approx([exact] * 5)
    assert comparison.curves["accuracy"].adjusted_p_values == pytest.approx([5 * exact] * 5)


def test_bands_and_intervals_cover_no_difference_where_there_is_none(measure):
    trials, band, interval, small = 80, 0, 0, 0
    for trial in range(trials):
        models = [measure(SHIFTS, *logits_of(0.7, 60, 2 * trial + model)) for model in range(2)]
        comparison = compare_responses(*models, num_resamples=100, num_flips=99, seed=trial)
        curve = comparison.curves["accuracy"].curve
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


def test_only_shifts_that_both_finished_are_compared(pair):
    evaluated = pair[1].evaluated.clone()
    evaluated[0, 3] = False
    comparison = compare_responses(
        pair[0], dataclasses.replace(pair[1], evaluated=evaluated), num_resamples=100
    )
    assert comparison.shifts == SHIFTS[1:]


def test_what_one_model_lacks_is_left_out(pair):
    lacking = dict.fromkeys(
        ("predictions", "probability_change", "divergence", "overlap", "cosine_distance", "rank")
    )
    bare = dataclasses.replace(pair[1], output="features", **lacking)
    comparison = compare_responses(pair[0], bare, num_resamples=100)
    assert not comparison.curves
    assert set(comparison.numbers) == {"mean_error"}


def test_other_images_and_no_flips_are_refused(pair):
    with pytest.raises(ValueError, match=r"^second\.labels"):
        compare_responses(pair[0], dataclasses.replace(pair[1], labels=1 - pair[1].labels))
    with pytest.raises(ValueError, match=r"^num_flips must be .*got 0"):
        compare_responses(*pair, num_flips=0)


def test_the_comparison_survives_json(pair):
    comparison = compare_responses(*pair, num_resamples=100, num_flips=99)
    assert (
        decode(Comparison, json.loads(json.dumps(encode(comparison), allow_nan=False)))
        == comparison
    )


def test_the_p_value_is_that_of_the_binomial_test():
    first, second = torch.tensor([0, 1, 5, 9, 3000]), torch.tensor([0, 7, 5, 0, 3141])
    p_values = mcnemar_test(first, second).tolist()
    assert p_values[0] == 1.0
    for p_value, ours, theirs in list(zip(p_values, first.tolist(), second.tolist(), strict=True))[
        1:
    ]:
        assert p_value == pytest.approx(stats.binomtest(ours, ours + theirs).pvalue, rel=1e-9)


def test_the_interval_is_the_formula_worked_out_by_hand():
    # a = 9/102, b = 4/102, d = 5/102, half = 1.96 √((13/102 − 25/102²) / 102)
    lower, upper = paired_interval(torch.tensor([8]), torch.tensor([3]), 100, 1.96)
    half = 1.96 * ((13 / 102 - (5 / 102) ** 2) / 102) ** 0.5
    assert lower.item() == pytest.approx(5 / 102 - half)
    assert upper.item() == pytest.approx(5 / 102 + half)


def test_swapping_the_two_mirrors_the_interval_and_keeps_the_p_value():
    first, second = torch.tensor([0, 4, 20]), torch.tensor([0, 13, 1])
    lower, upper = paired_interval(first, second, 50, 2.0)
    torch.testing.assert_close(paired_interval(second, first, 50, 2.0), (-upper, -lower))
    torch.testing.assert_close(mcnemar_test(first, second), mcnemar_test(second, first))


def test_the_interval_holds_what_was_observed_and_never_leaves_its_range():
    for quantile in [0.1, 1.96, 4.0]:
        first, second = torch.tensor([0, 10, 0, 5]), torch.tensor([0, 0, 10, 5])
        lower, upper = paired_interval(first, second, 10, quantile)
        observed = (first - second) / 10
        assert (lower >= -1).all(), quantile
        assert (lower <= observed).all(), quantile
        assert (observed <= upper).all(), quantile
        assert (upper <= 1).all(), quantile
        assert (lower < upper).all(), quantile


def test_the_interval_covers_as_often_as_it_says():
    generator = torch.Generator().manual_seed(0)
    for share_first, share_second in ((0.1, 0.1), (0.05, 0.01), (0.3, 0.15)):
        cell = torch.rand(4000, 60, generator=generator)
        first, second = (cell < share_first).sum(dim=1), (cell > 1 - share_second).sum(dim=1)
        lower, upper = paired_interval(first, second, 60, 1.96)
        truth = share_first - share_second
        covered = ((lower <= truth) & (truth <= upper)).double().mean().item()
        assert 0.935 < covered < 0.99


def test_an_example_by_hand():
    adjusted = holm_adjust(torch.tensor([0.01, 0.04, 0.03, 0.005], dtype=torch.float64))
    # Sorted: 0.005 · 4, 0.01 · 3, 0.03 · 2, then 0.04 · 1, which may not be below the one before.
    assert adjusted.tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_one_test_is_left_as_it_is_and_none_exceeds_one():
    assert holm_adjust(torch.tensor([0.3])).tolist() == pytest.approx([0.3])
    assert holm_adjust(torch.full((7,), 0.5)).tolist() == [1.0] * 7


def test_it_tends_to_the_share_of_all_flips():
    differences = (
        torch.randn(3, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) + 0.4
    )
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=9)), dtype=torch.float64)
    sums = (signs @ differences.T).abs()
    exact = (sums >= differences.sum(dim=1).abs() - 1e-9).double().mean(dim=0)
    torch.testing.assert_close(
        sign_flip_test(differences, num_flips=40000, seed=0), exact, rtol=0, atol=0.01
    )


def test_no_difference_has_p_one_and_a_clear_one_the_smallest_there_is():
    assert (
        sign_flip_test(torch.zeros(1, 20, dtype=torch.float64), num_flips=99, seed=0).item() == 1.0
    )
    assert sign_flip_test(
        torch.ones(1, 50, dtype=torch.float64), num_flips=99, seed=0
    ).item() == pytest.approx(0.01)


def test_the_scale_does_not_matter_nor_the_direction():
    differences = torch.rand(1, 31, dtype=torch.float64) - 0.4
    p_values = [
        sign_flip_test(factor * differences, num_flips=500, seed=3).item()
        for factor in (1.0, -1e-9, 1e6)
    ]
    assert p_values[0] == p_values[1] == p_values[2]


def test_without_a_difference_p_values_are_uniform():
    differences = torch.randn(
        300, 25, dtype=torch.float64, generator=torch.Generator().manual_seed(5)
    )
    p_values = sign_flip_test(differences, num_flips=999, seed=1)
    for level in (0.05, 0.5):
        # Three standard deviations of the share of 300 tests.
        assert (
            abs((p_values <= level).double().mean().item() - level)
            < 3 * (level * (1 - level) / 300) ** 0.5
        )
