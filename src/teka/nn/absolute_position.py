"""Absolute positions: sinusoids added to the tokens once."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import Parameter

from teka.checks import check_sizes, check_tensor
from teka.errors import wrong_value
from teka.grid import Grid


class AbsolutePosition(nn.Module):
    """Tokens plus [sin ω_f x_a, cos ω_f x_a] for every axis a, dim / n numbers an axis.

    ω_f = 10000^(−2f / (dim / n)) at first, learned, and shared by the axes. The sum knows where a token is, so that
    nothing after it is equivariant to shifts.

    Source: Vaswani et al. 2017, §3.5; Horn et al. 2021 (learnable frequencies, dim/2 per axis).

    Args:
        dim: Size of a token, a multiple of 2 · num_axes.
        num_axes: Number of axes n of the grid.

    Raises:
        ValueError: A size that is not such a multiple.
    """

    equivariance: ClassVar[dict[str, str]] = {}

    def __init__(self, dim: int, num_axes: int = 2) -> None:
        super().__init__()
        check_sizes({"num_axes": num_axes, "dim": dim})
        if dim % (2 * num_axes):
            raise wrong_value("dim", dim, f"a multiple of 2 · num_axes = {2 * num_axes} with absolute positions")
        self.num_axes = num_axes
        per_axis = dim // num_axes
        self.frequency = Parameter(10000.0 ** (-torch.arange(0, per_axis, 2) / per_axis))

    def forward(self, tokens: Float[Tensor, "batch tokens dim"], grid: Grid) -> Float[Tensor, "batch tokens dim"]:
        """Tokens with their positions' sinusoids added.

        Args:
            tokens: Tokens of the grid, shape (B, L, dim).
            grid: Where they are.

        Raises:
            ValueError: The grid has another number of axes or tokens.
        """
        check_tensor("tokens", tokens, "batch", "tokens", 2 * self.num_axes * len(self.frequency))
        if not isinstance(grid, Grid):
            raise wrong_value("grid", grid, "a teka.Grid")
        if grid.num_axes != self.num_axes or tokens.shape[1] != grid.num_tokens:
            raise wrong_value("grid", grid.shape, f"{self.num_axes} axes and {tokens.shape[1]} tokens")
        phase = grid.positions(dtype=self.frequency.dtype, device=tokens.device)[..., None] * self.frequency
        waves = torch.cat([torch.sin(phase), torch.cos(phase)], dim=-1).flatten(-2)
        return tokens + waves.to(tokens.dtype)
