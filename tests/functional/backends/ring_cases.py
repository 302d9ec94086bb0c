"""Grids whose sides differ, and rings about a token by looking at every pair of cells."""

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


def noise(grid: Grid, channels: int, seed: int = 0) -> Tensor:
    """Tokens of 2 samples and 3 heads, ~ N(0, 1)."""
    generator = Generator().manual_seed(seed)
    return torch.randn(2, 3, grid.num_tokens, channels, dtype=torch.float64, generator=generator)


def distances(grid: Grid) -> Tensor:
    """Manhattan distance in cells of every pair."""
    return grid.offsets(dtype=torch.float64).abs().sum(dim=-1).round().long()


def members(grid: Grid) -> Tensor:
    """1 where token j is in ring r = 0 … MAX_DISTANCE about token i, the last holding all that is farther."""
    ring = distances(grid).clamp_max(MAX_DISTANCE)
    return (ring == torch.arange(MAX_DISTANCE + 1)[:, None, None]).double()
