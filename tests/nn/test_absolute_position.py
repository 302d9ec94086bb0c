import math

import pytest
import torch

from teka import Grid
from teka.nn import AbsolutePosition


@pytest.mark.parametrize(("shape", "dim"), [((7,), 6), ((3, 5), 12), ((2, 3, 4), 6)])
def test_it_adds_a_sine_and_a_cosine_of_every_frequency_and_axis(shape: tuple[int, ...], dim: int):
    grid = Grid(shape, 0.5)
    position = AbsolutePosition(dim, grid.num_axes).double()
    waves = position(torch.zeros(2, grid.num_tokens, dim, dtype=torch.float64), grid)
    per_axis = dim // grid.num_axes
    for token, place in enumerate(grid.positions(dtype=torch.float64).tolist()):
        expected = []
        for coordinate in place:
            phases = [coordinate * 10000 ** (-2 * f / per_axis) for f in range(per_axis // 2)]
            expected += [math.sin(phase) for phase in phases] + [math.cos(phase) for phase in phases]
        assert waves[1, token].tolist() == pytest.approx(expected, abs=1e-5)


def test_tokens_keep_their_values_under_the_sinusoids_and_their_dtype():
    grid, position = Grid((3, 5)), AbsolutePosition(8)
    tokens = torch.randn(2, 15, 8)
    assert torch.allclose(position(tokens, grid) - position(torch.zeros_like(tokens), grid), tokens, atol=1e-6)
    assert position(tokens.bfloat16(), grid).dtype == torch.bfloat16


def test_its_frequencies_learn():
    position = AbsolutePosition(8)
    position(torch.zeros(1, 15, 8), Grid((3, 5))).sum().backward()
    assert position.frequency.shape == (2,)
    assert position.frequency.grad is not None
    assert (position.frequency.grad != 0).all()


@pytest.mark.parametrize(("dim", "num_axes"), [(6, 2), (8, 3)])
def test_a_size_that_the_axes_do_not_divide_is_refused(dim: int, num_axes: int):
    with pytest.raises(ValueError, match=f"dim is {dim}, expected a multiple of"):
        AbsolutePosition(dim, num_axes)


@pytest.mark.parametrize("grid", [Grid((15,)), Grid((3, 4))])
def test_a_grid_that_is_not_the_tokens_is_refused(grid: Grid):
    with pytest.raises(ValueError, match="expected 2 axes and 15 tokens"):
        AbsolutePosition(8)(torch.zeros(1, 15, 8), grid)
