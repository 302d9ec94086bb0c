"""Absolute position embeddings."""

import math

import pytest
import torch

from teka import Grid
from teka.nn import LearnedPositionEmbedding, SinusoidalPositionEmbedding


@pytest.mark.parametrize(("shape", "dim"), [((7,), 6), ((3, 5), 12), ((2, 3, 4), 6)])
def test_sinusoids_of_every_frequency_and_axis_are_added(shape: tuple[int, ...], dim: int):
    grid = Grid(shape, 0.5)
    position = SinusoidalPositionEmbedding(dim, grid.num_axes).double()
    sinusoids = position(torch.zeros(2, grid.num_tokens, dim, dtype=torch.float64), grid)
    per_axis = dim // grid.num_axes
    for token, point in enumerate(grid.positions(dtype=torch.float64).tolist()):
        expected = []
        for coordinate in point:
            phases = [coordinate * 10000 ** (-2 * f / per_axis) for f in range(per_axis // 2)]
            expected += [math.sin(phase) for phase in phases] + [
                math.cos(phase) for phase in phases
            ]
        assert sinusoids[1, token].tolist() == pytest.approx(expected, abs=1e-5)


def test_tokens_keep_their_values_and_dtype():
    grid, position = Grid((3, 5)), SinusoidalPositionEmbedding(8)
    tokens = torch.randn(2, 15, 8)
    assert torch.allclose(
        position(tokens, grid) - position(torch.zeros_like(tokens), grid), tokens, atol=1e-6
    )
    assert position(tokens.bfloat16(), grid).dtype == torch.bfloat16


def test_positions_are_exact_in_half_precision():
    grid, position = Grid(600), SinusoidalPositionEmbedding(4, 1).bfloat16()
    tokens = torch.zeros(1, 600, 4)
    expected = position.float()(tokens, grid)
    assert (position.bfloat16()(tokens.bfloat16(), grid) - expected).abs().max() <= 0.01


def test_frequencies_have_gradients():
    position = SinusoidalPositionEmbedding(8)
    position(torch.zeros(1, 15, 8), Grid((3, 5))).sum().backward()
    assert position.frequency.shape == (2,)
    assert position.frequency.grad is not None
    assert (position.frequency.grad != 0).all()


@pytest.mark.parametrize(("dim", "num_axes"), [(6, 2), (8, 3)])
def test_dim_not_divisible_by_the_axes_is_an_error(dim: int, num_axes: int):
    with pytest.raises(ValueError, match=rf"dim must be a multiple of.*got {dim}"):
        SinusoidalPositionEmbedding(dim, num_axes)


@pytest.mark.parametrize("grid", [Grid((15,)), Grid((3, 4))])
def test_a_grid_with_other_axes_or_tokens_is_an_error(grid: Grid):
    with pytest.raises(ValueError, match="2 axes and 15 tokens"):
        SinusoidalPositionEmbedding(8)(torch.zeros(1, 15, 8), grid)


def test_a_table_adds_the_vector_of_each_cell_of_its_grid():
    module, tokens = LearnedPositionEmbedding(4, (3, 5)), torch.randn(2, 15, 4)
    added = module(tokens, Grid((3, 5), spacing=0.1)) - tokens
    torch.testing.assert_close(added, module.table.expand(2, -1, -1))
    assert module.table.std() < 0.1
    with pytest.raises(ValueError, match=r"a teka.Grid of shape \(3, 5\)"):
        module(tokens, Grid((5, 3)))
