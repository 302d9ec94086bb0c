import pytest
import torch
from scipy import stats

from teka.audit.statistics.paired_share import mcnemar_test, paired_interval


def test_the_p_value_is_that_of_the_binomial_test():
    first, second = torch.tensor([0, 1, 5, 9, 3000]), torch.tensor([0, 7, 5, 0, 3141])
    p_values = mcnemar_test(first, second).tolist()
    assert p_values[0] == 1.0
    for p_value, ours, theirs in list(zip(p_values, first.tolist(), second.tolist(), strict=True))[1:]:
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


@pytest.mark.parametrize("quantile", [0.1, 1.96, 4.0])
def test_the_interval_holds_what_was_observed_and_never_leaves_its_range(quantile):
    first, second = torch.tensor([0, 10, 0, 5]), torch.tensor([0, 0, 10, 5])
    lower, upper = paired_interval(first, second, 10, quantile)
    observed = (first - second) / 10
    assert (lower >= -1).all()
    assert (lower <= observed).all()
    assert (observed <= upper).all()
    assert (upper <= 1).all()
    assert (lower < upper).all()


def test_the_interval_covers_as_often_as_it_says():
    generator = torch.Generator().manual_seed(0)
    for share_first, share_second in ((0.1, 0.1), (0.05, 0.01), (0.3, 0.15)):
        cell = torch.rand(4000, 60, generator=generator)
        first, second = (cell < share_first).sum(dim=1), (cell > 1 - share_second).sum(dim=1)
        lower, upper = paired_interval(first, second, 60, 1.96)
        truth = share_first - share_second
        covered = ((lower <= truth) & (truth <= upper)).double().mean().item()
        assert 0.935 < covered < 0.99
