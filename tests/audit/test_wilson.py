import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from teka.audit import wilson_interval


# R. G. Newcombe, "Two-sided confidence intervals for the single proportion", Statistics in Medicine 17 (1998), table I,
# method 3.
@pytest.mark.parametrize(
    ("successes", "trials", "lower", "upper"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_the_published_intervals_come_out(successes, trials, lower, upper):
    assert wilson_interval(successes, trials) == pytest.approx((lower, upper), abs=5e-5)


def test_no_success_and_no_failure_give_closed_forms():
    square = 1.959963984540054**2
    lower, upper = wilson_interval(0, 10)
    assert lower == 0.0
    assert upper == pytest.approx(square / (10 + square), abs=1e-14)
    lower, upper = wilson_interval(10, 10)
    assert lower == pytest.approx(10 / (10 + square), abs=1e-14)
    assert upper == 1.0


counts = st.integers(1, 10**7).flatmap(lambda trials: st.tuples(st.integers(0, trials), st.just(trials)))


@settings(max_examples=100, deadline=None)
@given(counts, st.floats(0.01, 0.9999))
def test_both_ends_solve_the_equation_of_the_score_test(count, confidence):
    successes, trials = count
    share = successes / trials
    ends = wilson_interval(successes, trials, confidence)
    assert 0.0 <= ends[0] <= share <= ends[1] <= 1.0
    quantile = torch.special.ndtri(torch.tensor((1 + confidence) / 2, dtype=torch.float64)).item()
    for end in ends:
        assert abs(share - end) == pytest.approx(quantile * math.sqrt(end * (1 - end) / trials), abs=1e-8)


@settings(max_examples=50, deadline=None)
@given(counts)
def test_failures_mirror_successes(count):
    successes, trials = count
    lower, upper = wilson_interval(successes, trials)
    assert wilson_interval(trials - successes, trials) == pytest.approx((1 - upper, 1 - lower), abs=1e-14)


def test_tensors_are_taken_entry_by_entry_and_broadcast():
    successes = torch.tensor([[0], [3], [5]])
    trials = torch.tensor([5, 7])
    lower, upper = wilson_interval(successes, trials)
    assert lower.shape == upper.shape == (3, 2)
    assert lower.dtype == upper.dtype == torch.float64
    for row, success in enumerate((0, 3, 5)):
        for column, trial in enumerate((5, 7)):
            assert (lower[row, column].item(), upper[row, column].item()) == wilson_interval(success, trial)


def test_a_tensor_meets_an_int():
    lower, upper = wilson_interval(torch.tensor([1, 2]), 7)
    assert lower.shape == upper.shape == (2,)


@pytest.mark.parametrize(
    ("successes", "trials", "confidence", "argument"),
    [
        (-1, 5, 0.95, "successes"),
        (6, 5, 0.95, "successes"),
        (0, 0, 0.95, "trials"),
        (torch.tensor([1, 9]), 5, 0.95, "successes"),
        (torch.tensor([1, 2]), torch.tensor([5, 6, 7]), 0.95, "trials"),
        (1, 5, 0.0, "confidence"),
        (1, 5, 1.0, "confidence"),
        (1, 5, math.nan, "confidence"),
    ],
)
def test_counts_and_confidences_that_make_no_sense_are_refused(successes, trials, confidence, argument):
    with pytest.raises(ValueError, match=f"^{argument} "):
        wilson_interval(successes, trials, confidence)
