import pytest
import torch
from scipy import stats

from teka.audit.statistics.exact_interval import exact_interval


@pytest.mark.parametrize("trials", [1, 7, 100, 10007])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 1 - 1e-7])
def test_it_is_that_of_scipy(trials, confidence):
    successes = torch.tensor(sorted({0, 1, trials // 3, trials // 2, trials - 1, trials}))
    lower, upper = exact_interval(successes, trials, confidence)
    for row, count in enumerate(successes.tolist()):
        reference = stats.binomtest(count, trials).proportion_ci(confidence, method="exact")
        assert (lower[row].item(), upper[row].item()) == pytest.approx((reference.low, reference.high), abs=1e-9)


def test_repeated_counts_keep_their_places():
    lower, upper = exact_interval(torch.tensor([3, 0, 3, 5]), 5, 0.9)
    assert lower[0] == lower[2] > lower[1] == 0
    assert upper[0] == upper[2] < upper[3] == 1


def test_it_covers_no_less_often_than_it_says():
    trials, confidence = 37, 0.9
    counts = torch.arange(trials + 1)
    lower, upper = exact_interval(counts, trials, confidence)
    for share in (0.003, 0.05, 0.31, 0.5, 0.92):
        covered = (lower <= share) & (share <= upper)
        assert stats.binom.pmf(counts[covered].numpy(), trials, share).sum() >= confidence
