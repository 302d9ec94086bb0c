"""The windows backend: a grid is cut into tiles, and the cells of each see those of the tile and a margin around it."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import pad

from teka._compat import replace
from teka.functional.backends import BYTES, Cost
from teka.functional.backends.dense import dense_cost, matrix_attention
from teka.functional.kernels.base import DenseInputs
from teka.functional.shapes import KeyMask, Outputs
from teka.grid import Grid

TILE_SIDES = {1: 64, 2: 8, 3: 4}  # by the number of axes; of more axes 2


@dataclass(frozen=True)
class Tiling:
    """The tiles of a grid, of which the last along an axis may go on beyond it, and the margin that each sees."""

    grid: Grid
    reach: int

    @property
    def sides(self) -> list[int]:
        """Cells of a tile along every axis."""
        return [min(side, TILE_SIDES.get(self.grid.num_axes, 2)) for side in self.grid.shape]

    @property
    def counts(self) -> list[int]:
        """Tiles along every axis."""
        return [
            math.ceil(side / tile) for side, tile in zip(self.grid.shape, self.sides, strict=True)
        ]

    def axis_cells(self, axis: int, margin: int, device: torch.device) -> Int[Tensor, "count seen"]:
        """The cells along an axis that each tile sees, which may lie beyond the grid."""
        side, count = self.sides[axis], self.counts[axis]
        first = torch.arange(count, device=device)[:, None] * side - margin
        return first + torch.arange(side + 2 * margin, device=device)

    def cut(
        self, tokens: Shaped[Tensor, "batch heads tokens channels"], margin: int
    ) -> Shaped[Tensor, "tiles heads seen channels"]:
        """The tokens that each tile sees, the tiles of a sample one after another; beyond the grid any token."""
        batch, heads, _, channels = tokens.shape
        num_axes, sizes, parts = self.grid.num_axes, [], tokens.unflatten(2, self.grid.shape)
        for axis, side in enumerate(self.grid.shape):
            cells = self.axis_cells(axis, margin, tokens.device)
            cells = cells % side if self.grid.periodic[axis] else cells.clamp(0, side - 1)
            parts = parts.index_select(2 + axis, cells.flatten())
            sizes += cells.shape
        last = 2 + 2 * num_axes
        order = [0, *range(2, last, 2), 1, *range(3, last, 2), last]
        parts = parts.reshape(batch, heads, *sizes, channels).permute(order)
        return parts.flatten(0, num_axes).flatten(2, -2)

    def join(
        self, tiles: Float[Tensor, "tiles heads cells channels"]
    ) -> Float[Tensor, "batch heads tokens channels"]:
        """The tokens of all tiles in the grid's order, without what is beyond it."""
        _, heads, _, channels = tiles.shape
        num_axes, last = self.grid.num_axes, 2 + 2 * self.grid.num_axes
        batch = tiles.shape[0] // math.prod(self.counts)
        parts = tiles.reshape(batch, *self.counts, heads, *self.sides, channels)
        pairs = [place for axis in range(num_axes) for place in (1 + axis, 2 + num_axes + axis)]
        parts = parts.permute(0, 1 + num_axes, *pairs, last)
        whole = [count * side for count, side in zip(self.counts, self.sides, strict=True)]
        parts = parts.reshape(batch, heads, *whole, channels)
        for axis, side in enumerate(self.grid.shape):
            parts = parts.narrow(2 + axis, 0, side)
        return parts.flatten(2, -2)

    def offsets(self, like: Tensor) -> Float[Tensor, "queries keys axes"]:
        """Offset of every cell of a tile from every cell that it sees, in every tile the same."""
        own = [torch.arange(side, device=like.device) for side in self.sides]
        seen = [
            torch.arange(-self.reach, side + self.reach, device=like.device) for side in self.sides
        ]
        query, key = (
            torch.stack(torch.meshgrid(*one, indexing="ij"), dim=-1).flatten(0, -2)
            for one in (own, seen)
        )
        return (query[:, None] - key).to(like) * like.new_tensor(self.grid.spacing)

    def kept(
        self, key_mask: KeyMask, batch: int, device: torch.device
    ) -> Bool[Tensor, "tiles seen"]:
        """Which of the cells that each tile sees are there, and kept."""
        there = torch.ones(1, 1, dtype=torch.bool, device=device)
        for axis, side in enumerate(self.grid.shape):
            cells = self.axis_cells(axis, self.reach, device)
            inside = (
                (cells >= 0) & (cells < side)
                if not self.grid.periodic[axis]
                else torch.ones_like(cells).bool()
            )
            there = (there[:, None, :, None] & inside[:, None, :]).flatten(2).flatten(0, 1)
        there = there.repeat(batch, 1)
        return (
            there
            if key_mask is None
            else there & self.cut(key_mask[:, None, :, None], self.reach).flatten(1)
        )


def window_cost(tiling: Tiling, dense_size: int, dim_value: int) -> Cost:
    """That of all pairs of a tile and what it sees, and of copies of that."""
    count, seen = (
        math.prod(tiling.counts),
        math.prod([side + 2 * tiling.reach for side in tiling.sides]),
    )
    tile = dense_cost(math.prod(tiling.sides), seen, dense_size, dim_value, passes=4)
    return Cost(
        count * tile.multiply_adds,
        count * (tile.bytes + seen * (dense_size + dim_value) * 2 * BYTES),
    )


def window_attention(
    pairs: DenseInputs,
    tiling: Tiling,
    first: int,
    log_relative: Float[Tensor, "heads cells seen"],
    within: Bool[Tensor, "cells seen"],
) -> Outputs:
    """Attention of the cells of a grid, and of `first` tokens before them, which see all and are seen by all.

    Args:
        pairs: All queries, keys and values.
        tiling: How the grid is cut.
        first: Number of first tokens that are nowhere.
        log_relative: log c of every cell of a tile and all that it sees.
        within: Which of these pairs count.
    """
    query, key, value, mask = pairs.query, pairs.key, pairs.value, pairs.key_mask
    batch, num_tiles = query.shape[0], math.prod(tiling.counts)
    kept = tiling.kept(None if mask is None else mask[:, first:], batch, query.device)
    seen_keys, seen_values = (tiling.cut(one[:, :, first:], tiling.reach) for one in (key, value))
    if first:
        before = (one[:, :, :first].repeat_interleave(num_tiles, dim=0) for one in (key, value))
        parts_of_both = zip(before, (seen_keys, seen_values), strict=True)
        seen_keys, seen_values = (torch.cat(parts, dim=2) for parts in parts_of_both)
        of_first = (
            query.new_ones(batch, first, dtype=torch.bool) if mask is None else mask[:, :first]
        )
        kept = torch.cat([of_first.repeat_interleave(num_tiles, dim=0), kept], dim=1)
        log_relative = pad(log_relative, (first, 0))
        within = pad(within, (first, 0), value=True)
    cells = tiling.cut(query[:, :, first:], 0)
    given = {
        "query": cells,
        "key": seen_keys,
        "value": seen_values,
        "key_mask": kept,
        "window_mask": within[None, None],
    }
    tiles = replace(pairs, kernel=pairs.kernel.repeat_samples(num_tiles), **given)
    output = tiling.join(matrix_attention(tiles, lambda _, rows: log_relative[None, :, rows]))
    if not first:
        return output
    return torch.cat(
        [matrix_attention(replace(pairs, query=query[:, :, :first]), None), output], dim=2
    )
