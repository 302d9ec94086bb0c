"""How a layer's output lies in memory, and which of its axes are places in the image."""

import math
from dataclasses import dataclass
from fractions import Fraction

from torch import Tensor

# (B, C, h, w); (B, h, w, C); (B, C, h·w); (B, C·h·w); (B, prefix + h·w, …); (B, heads, prefix + h·w, D); anything else.
LAYOUTS = ("map", "channels-last map", "flat map", "flattened", "tokens", "tokens of heads", "vector")


@dataclass(frozen=True)
class Layout:
    """How a layer's output lies in memory.

    Args:
        name: One of `LAYOUTS`.
        grid: Cells along every axis; () for a vector.
        stride: Pixels of the seen image from one cell to the next along every axis; for a vector, of the coarsest
            layer before it.
        prefix_tokens: Tokens before those of the grid.
    """

    name: str
    grid: tuple[int, ...]
    stride: tuple[Fraction, ...]
    prefix_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """Cells of the grid and tokens before them."""
        return self.prefix_tokens + math.prod(self.grid)

    def arrange(self, output: Tensor) -> Tensor:
        """The output with its cells last: (B, C, *grid), or (B, C) for a vector. Prefix tokens are left out.

        Args:
            output: The layer's output (B, …), as its layout says.
        """
        match self.name:
            case "vector":
                return output.flatten(1)
            case "map":
                return output
            case "channels-last map":
                return output.movedim(-1, 1)
            case "tokens":
                return output[:, self.prefix_tokens :].flatten(2).transpose(1, 2).unflatten(2, self.grid)
            case "tokens of heads":
                channels = output[:, :, self.prefix_tokens :].transpose(2, 3).flatten(1, 2)
                return channels.unflatten(2, self.grid)
            case _:  # flat map, flattened: the cells are the last of the numbers already
                return output.reshape(output.shape[0], -1, *self.grid)
