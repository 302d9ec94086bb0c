import math

import pytest
import torch
from torch import Tensor

from teka.functional.positions import phases, precise


def frequencies(heads: int = 3, waves: int = 5, axes: int = 2) -> Tensor:
    return torch.randn(heads, waves, axes, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_they_are_the_inner_products_without_whole_turns():
    frequency, positions = frequencies(), 20 * torch.randn(4, 7, 2, dtype=torch.float64)
    found = phases(frequency, positions, positions.dtype)
    assert found.shape == (4, 3, 7, 5)
    assert float(found.abs().max()) < 2 * math.pi
    expected = sum(positions[:, None, :, None, axis] * frequency[None, :, None, :, axis] for axis in range(2))
    assert torch.is_tensor(expected)
    turns = (expected - found) / (2 * math.pi)
    assert float((turns - turns.round()).abs().max()) < 1e-12
    assert torch.allclose(phases(frequency, positions[1], torch.float64), found[1], atol=1e-12)


@pytest.mark.parametrize("shift", [1e3, 2.0**20])
def test_in_float32_differences_of_phases_keep_their_digits_far_from_the_origin(shift: float):
    positions = torch.arange(7.0)[:, None] * torch.tensor([1.0, 0.5])
    here, there = (phases(frequencies().float(), places, places.dtype) for places in (positions, positions + shift))
    assert here.dtype == torch.float32
    change = (there - there[:, :1]) - (here - here[:, :1])
    assert float(torch.sin(change / 2).abs().max()) < 1e-6


def test_the_gradient_is_that_of_the_inner_product():
    frequency, positions = frequencies(1, 1, 2).requires_grad_(), torch.tensor([[30.0, -7.0]], dtype=torch.float64)
    (gradient,) = torch.autograd.grad(phases(frequency, positions, positions.dtype).sum(), frequency)
    assert gradient.flatten().tolist() == pytest.approx([30.0, -7.0])


def test_precise_numbers_are_of_float64():
    assert precise(torch.ones(2)).dtype == torch.float64
