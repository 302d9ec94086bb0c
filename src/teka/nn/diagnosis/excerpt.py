"""The tokens of a layer and where they are, and a part of them that is small enough for every pair."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka.grid import Grid


@dataclass(frozen=True)
class Excerpt:
    """Tokens of self-attention and where they are.

    Args:
        tokens: Tokens, shape (B, L, dim).
        grid: The grid whose cells they are, after the prefix, or None.
        positions: Instead of a grid, positions, or None.
        num_prefix_tokens: Number of first tokens without a position.
        key_mask: True where a token may be attended to, or None for all.
    """

    tokens: Float[Tensor, "batch tokens dim"]
    grid: Grid | None
    positions: Float[Tensor, "*batch placed axes"] | None
    num_prefix_tokens: int
    key_mask: Bool[Tensor, "batch tokens"] | None

    @property
    def num_placed(self) -> int:
        """Number of tokens after the prefix."""
        return self.tokens.shape[1] - self.num_prefix_tokens

    @property
    def kept(self) -> Bool[Tensor, "batch tokens"]:
        """True where a token may be attended to."""
        if self.key_mask is None:
            return torch.ones(self.tokens.shape[:2], dtype=torch.bool, device=self.tokens.device)
        return self.key_mask

    def at_most(self, max_tokens: int, max_samples: int) -> "Excerpt":
        """The first samples, and of their tokens the prefix and a block of the grid, or the first ones.

        The block has the grid's bounds where it is cut, so none of its cut axes is periodic. It is taken about the
        middle one of the first sample's kept cells, so that some of them are in it; samples of which none is are left
        out.

        Args:
            max_tokens: Most tokens after the prefix.
            max_samples: Most samples.
        """
        first = self.num_prefix_tokens
        cells, grid = torch.arange(self.num_placed, device=self.tokens.device), self.grid
        if self.num_placed > max_tokens:
            if grid is None:
                kept = self.kept[0, first:].nonzero().flatten()
                start = int(kept[0]) if len(kept) else 0
                cells = cells[start : start + max_tokens]
            else:
                cells, grid = self._block(grid, max_tokens)
        chosen = torch.cat([torch.arange(first, device=cells.device), first + cells])
        samples = self.kept[:, chosen].any(dim=1).nonzero().flatten()[:max_samples]
        positions = self.positions
        if positions is not None:
            positions = positions[..., cells.to(positions.device), :]
            positions = (
                positions[samples.to(positions.device)] if positions.ndim == 3 and len(positions) > 1 else positions
            )
        return replace(
            self,
            tokens=self.tokens[samples][:, chosen],
            grid=grid,
            positions=positions,
            key_mask=None if self.key_mask is None else self.key_mask[samples][:, chosen],
        )

    def _block(self, grid: Grid, max_tokens: int) -> tuple[Tensor, Grid]:
        longest = max(grid.shape)
        while longest > 1 and Grid(tuple(min(side, longest) for side in grid.shape)).num_tokens > max_tokens:
            longest -= 1
        sides = tuple(min(side, longest) for side in grid.shape)
        kept = self.kept[0, self.num_prefix_tokens :].nonzero().flatten()
        middle = int(kept[len(kept) // 2]) if len(kept) else 0
        place = torch.unravel_index(torch.tensor(middle), grid.shape)
        starts = tuple(
            min(max(int(at) - side // 2, 0), whole - side)
            for at, side, whole in zip(place, sides, grid.shape, strict=True)
        )
        numbers = torch.arange(grid.num_tokens, device=self.tokens.device).reshape(grid.shape)
        block = numbers[tuple(slice(start, start + side) for start, side in zip(starts, sides, strict=True))]
        periodic = tuple(
            flag and side == whole for flag, side, whole in zip(grid.periodic, sides, grid.shape, strict=True)
        )
        return block.flatten(), Grid(sides, grid.spacing, periodic, grid.origin)
