import itertools

import pytest
import torch

from teka.audit.statistics.sign_flip import sign_flip_test


def test_it_tends_to_the_share_of_all_flips():
    differences = torch.randn(3, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) + 0.4
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=9)), dtype=torch.float64)
    sums = (signs @ differences.T).abs()
    exact = (sums >= differences.sum(dim=1).abs() - 1e-9).double().mean(dim=0)
    torch.testing.assert_close(sign_flip_test(differences, num_flips=40000, seed=0), exact, rtol=0, atol=0.01)


def test_no_difference_has_p_one_and_a_clear_one_the_smallest_there_is():
    assert sign_flip_test(torch.zeros(1, 20, dtype=torch.float64), num_flips=99, seed=0).item() == 1.0
    assert sign_flip_test(torch.ones(1, 50, dtype=torch.float64), num_flips=99, seed=0).item() == pytest.approx(0.01)


def test_the_scale_does_not_matter_nor_the_direction():
    differences = torch.rand(1, 31, dtype=torch.float64) - 0.4
    p_values = [sign_flip_test(factor * differences, num_flips=500, seed=3).item() for factor in (1.0, -1e-9, 1e6)]
    assert p_values[0] == p_values[1] == p_values[2]


def test_without_a_difference_p_values_are_uniform():
    differences = torch.randn(300, 25, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    p_values = sign_flip_test(differences, num_flips=999, seed=1)
    for level in (0.05, 0.5):
        # Three standard deviations of the share of 300 tests.
        assert abs((p_values <= level).double().mean().item() - level) < 3 * (level * (1 - level) / 300) ** 0.5
