"""Attention to a local window of neighbors in an image or volume (the backend "windows").

The grid of tokens is divided into tiles. Each tile attends to itself and to a margin around it.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import pad

from teka._compat import replace
from teka.functional.backends.dense import dense_attention
from teka.functional.kernels.content_kernel import DenseAttentionInputs
from teka.functional.shapes import Outputs
from teka.grid import Grid

# Side of a tile by the number of axes; 2 for more axes.
TILE_SIDES = {1: 64, 2: 8, 3: 4}


@dataclass(frozen=True)
class Tiling:
    """Division of a grid of tokens, such as an image, into tiles of equal size with a margin.

    The queries of a tile attend only to keys in the tile and its margin. The last tile along an
    axis may extend beyond the grid.

    Args:
        grid: The grid.
        reach: Width of the margin in cells.
    """

    grid: Grid
    reach: int

    @property
    def sides(self) -> list[int]:
        """Number of cells of a tile along every axis."""
        return [min(side, TILE_SIDES.get(self.grid.num_axes, 2)) for side in self.grid.shape]

    @property
    def counts(self) -> list[int]:
        """Number of tiles along every axis."""
        sides = zip(self.grid.shape, self.sides, strict=True)
        return [math.ceil(side / tile_side) for side, tile_side in sides]

    def tile_token_indices(
        self, margin: int, device: torch.device
    ) -> tuple[Int[Tensor, "tiles cells"], Bool[Tensor, "tiles cells"]]:
        """Return the indices of the tokens in each tile, and a mask of the indices that are valid.

        A tile includes a margin of the given width. The mask is False where a tile extends beyond
        the grid, and the index there is arbitrary.
        """
        tokens = torch.zeros(1, 1, dtype=torch.long, device=device)
        is_inside = torch.ones(1, 1, dtype=torch.bool, device=device)
        for axis, side in enumerate(self.grid.shape):
            first = torch.arange(self.counts[axis], device=device)[:, None] * self.sides[axis]
            steps = torch.arange(-margin, self.sides[axis] + margin, device=device)
            cells = (first + steps)[:, None]
            if self.grid.periodic[axis]:
                inside = torch.ones_like(cells, dtype=torch.bool)
                cells = cells % side
            else:
                inside = (cells >= 0) & (cells < side)
                cells = cells.clamp(0, side - 1)
            tokens = (tokens[:, None, :, None] * side + cells).flatten(2).flatten(0, 1)
            is_inside = (is_inside[:, None, :, None] & inside).flatten(2).flatten(0, 1)
        return tokens, is_inside

    def inverse_tile_order(self, device: torch.device) -> Int[Tensor, "tokens"]:
        """Return the indices that bring tokens which are sorted by tile back into grid order."""
        tile = torch.zeros(1, dtype=torch.long, device=device)
        cell = tile
        for axis, side in enumerate(self.grid.shape):
            index = torch.arange(side, device=device)
            tile_side = self.sides[axis]
            tile = (tile[:, None] * self.counts[axis] + index // tile_side).flatten()
            cell = (cell[:, None] * tile_side + index % tile_side).flatten()
        return tile * math.prod(self.sides) + cell

    def query_key_offsets(self, like: Tensor) -> Float[Tensor, "queries keys axes"]:
        """Return the offset from every key to every query of a tile.

        The keys are those of the tile and of the margin around it. The offsets are the same for all
        tiles, so weights that depend on them are computed only once.
        """
        queries = [torch.arange(side, device=like.device) for side in self.sides]
        keys = [
            torch.arange(-self.reach, side + self.reach, device=like.device) for side in self.sides
        ]
        query, key = (
            torch.stack(torch.meshgrid(*cells, indexing="ij"), dim=-1).flatten(0, -2)
            for cells in (queries, keys)
        )
        return (query[:, None] - key).to(like) * like.new_tensor(self.grid.spacing)


def _gather_tiles(
    vectors: Shaped[Tensor, "batch heads tokens channels"], tokens: Int[Tensor, "tiles cells"]
) -> Shaped[Tensor, "batch_tiles heads cells channels"]:
    tiles = vectors.index_select(2, tokens.flatten()).unflatten(2, tokens.shape)
    return tiles.transpose(1, 2).flatten(0, 1)


def window_attention(
    inputs: DenseAttentionInputs,
    tiling: Tiling,
    num_prefix_tokens: int,
    position_bias: Float[Tensor, "heads cells seen"],
    is_in_window: Bool[Tensor, "cells seen"],
) -> Outputs:
    """Compute attention in which each token of a grid attends to the keys in a window around it.

    Tokens without a position, such as a class token, attend to all tokens, and all tokens attend to
    them.

    Args:
        inputs: All queries, keys and values.
        tiling: The tiles of the grid.
        num_prefix_tokens: Number of tokens before the grid.
        position_bias: Log of the position-dependent weight of each cell of a tile and each cell of
            the tile and its margin.
        is_in_window: True for the pairs of these cells that are within the window.
    """
    query, key, value, key_mask = inputs.query, inputs.key, inputs.value, inputs.key_mask
    first, num_tiles = num_prefix_tokens, math.prod(tiling.counts)
    tokens, is_inside = tiling.tile_token_indices(tiling.reach, query.device)
    keys = _gather_tiles(key[:, :, first:], tokens)
    values = _gather_tiles(value[:, :, first:], tokens)
    is_kept = is_inside.expand(query.shape[0], *is_inside.shape)
    if key_mask is not None:
        is_kept = is_kept & key_mask[:, first:][:, tokens]
    is_kept = is_kept.flatten(0, 1)
    if first:
        prefix_key, prefix_value = (
            tensor[:, :, :first].repeat_interleave(num_tiles, dim=0) for tensor in (key, value)
        )
        keys = torch.cat([prefix_key, keys], dim=2)
        values = torch.cat([prefix_value, values], dim=2)
        is_prefix_kept = is_kept.new_ones(query.shape[0], first)
        if key_mask is not None:
            is_prefix_kept = key_mask[:, :first]
        is_kept = torch.cat([is_prefix_kept.repeat_interleave(num_tiles, dim=0), is_kept], dim=1)
        position_bias = pad(position_bias, (first, 0))
        is_in_window = pad(is_in_window, (first, 0), value=True)
    tiles = replace(
        inputs,
        query=_gather_tiles(query[:, :, first:], tiling.tile_token_indices(0, query.device)[0]),
        key=keys,
        value=values,
        kernel=inputs.kernel.repeat_samples(num_tiles),
        key_mask=is_kept,
        window_mask=is_in_window[None, None],
    )
    outputs = dense_attention(tiles, lambda _, rows: position_bias[None, :, rows])
    outputs = outputs.unflatten(0, (-1, num_tiles)).transpose(1, 2).flatten(2, 3)
    outputs = outputs.index_select(2, tiling.inverse_tile_order(query.device))
    if not first:
        return outputs
    prefix_outputs = dense_attention(replace(inputs, query=query[:, :, :first]), None)
    return torch.cat([prefix_outputs, outputs], dim=2)
