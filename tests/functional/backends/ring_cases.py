"""Grids with different sides, and a brute-force definition of their rings."""

import torch
from torch import Generator, Tensor

from teka import Grid

GRIDS = [
    Grid((11,)),
    Grid((5, 7)),
    Grid((3, 5, 2)),
    Grid((2, 3, 1, 4)),
    Grid((11,), periodic=True),
    Grid((7, 8), periodic=True),
    Grid((7, 3), periodic=(True, False)),
    Grid((7, 2, 9), periodic=(True, False, True)),
]
MAX_DISTANCE = 4


def random_cells(grid: Grid, channels: int) -> Tensor:
    """Return normal random values of 2 samples and 3 heads."""
    generator = Generator().manual_seed(0)
    return torch.randn(2, 3, grid.num_tokens, channels, dtype=torch.float64, generator=generator)


def manhattan_distances(grid: Grid) -> Tensor:
    """Return the Manhattan distance of every pair of cells."""
    return grid.offsets(dtype=torch.float64).abs().sum(dim=-1).round().long()


def ring_members(grid: Grid, max_distance: int) -> Tensor:
    """Return 1 where cell j is in ring r = 0, …, k around cell i; ring k holds all cells at distance k or more."""
    ring = manhattan_distances(grid).clamp_max(max_distance)
    return (ring == torch.arange(max_distance + 1)[:, None, None]).double()
