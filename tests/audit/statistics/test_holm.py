import pytest
import torch

from teka.audit.statistics.holm import holm_adjust


def test_an_example_by_hand():
    adjusted = holm_adjust(torch.tensor([0.01, 0.04, 0.03, 0.005], dtype=torch.float64))
    # Sorted: 0.005 · 4, 0.01 · 3, 0.03 · 2, then 0.04 · 1, which may not be below the one before.
    assert adjusted.tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_one_test_is_left_as_it_is_and_none_exceeds_one():
    assert holm_adjust(torch.tensor([0.3])).tolist() == pytest.approx([0.3])
    assert holm_adjust(torch.full((7,), 0.5)).tolist() == [1.0] * 7
