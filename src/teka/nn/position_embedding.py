"""Absolute position embeddings, which are added to the tokens."""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import Parameter

from teka.checks import check_sizes, check_tensor, check_tensor_sizes
from teka.errors import wrong_value
from teka.grid import Grid

# Initial standard deviation of learned position embeddings.
TABLE_SCALE = 0.02


class SinusoidalPositionEmbedding(nn.Module):
    """Sinusoidal position embedding with learned frequencies, added to the tokens.

    The channels are divided equally among the axes of the grid. The channels of an axis are sin(ω_f
    x) and cos(ω_f x), where x is the position of the token along this axis. All axes share the
    learned frequencies ω_f. Their initial values are 10000^(−2f / (dim / num_axes)). Layers after
    this module are not shift equivariant, because tokens carry their absolute positions.

    Source: Vaswani et al. 2017, §3.5; Horn et al. 2021 (learnable frequencies, dim/2 per axis).

    >>> import torch, teka
    >>> position = teka.nn.SinusoidalPositionEmbedding(4, num_axes=1)
    >>> embedded = position(torch.zeros(1, 2, 4), teka.Grid(2)).detach()
    >>> embedded.round(decimals=2)  # sin x, sin x/100, cos x, cos x/100
    tensor([[[0.0000, 0.0000, 1.0000, 1.0000],
             [0.8400, 0.0100, 0.5400, 1.0000]]])

    Args:
        dim: Size of the tokens, a multiple of 2 `num_axes`.
        num_axes: Number of axes of the grid.

    Raises:
        ValueError: `dim` is not a multiple of 2 `num_axes`, or a call has another number of axes.
    """

    equivariance: ClassVar[dict[str, str]] = {}

    def __init__(self, dim: int, num_axes: int = 2) -> None:
        super().__init__()
        check_sizes({"num_axes": num_axes, "dim": dim})
        if dim % (2 * num_axes):
            expected = f"a multiple of 2 · num_axes = {2 * num_axes} with absolute positions"
            raise wrong_value("dim", dim, expected)
        self.num_axes = num_axes
        per_axis = dim // num_axes
        self.frequency = Parameter(10000.0 ** (-torch.arange(0, per_axis, 2) / per_axis))

    def forward(
        self, tokens: Float[Tensor, "batch tokens dim"], grid: Grid
    ) -> Float[Tensor, "batch tokens dim"]:
        """Add the sinusoids of the grid positions to the tokens.

        Raises:
            ValueError: The grid has a different number of axes or tokens.
        """
        check_tensor("tokens", tokens, "batch", "tokens", 2 * self.num_axes * len(self.frequency))
        if not isinstance(grid, Grid):
            raise wrong_value("grid", grid, "a teka.Grid")
        if grid.num_axes != self.num_axes or tokens.shape[1] != grid.num_tokens:
            expected = f"a grid of {self.num_axes} axes and {tokens.shape[1]} tokens"
            raise wrong_value("grid", grid.shape, expected)
        # bfloat16 cannot represent all integers above 256.
        dtype = torch.promote_types(self.frequency.dtype, torch.float32)
        positions = grid.positions(dtype=dtype, device=tokens.device)
        phase = positions[..., None] * self.frequency
        sinusoids = torch.cat([torch.sin(phase), torch.cos(phase)], dim=-1).flatten(-2)
        return tokens + sinusoids.to(tokens.dtype)


class LearnedPositionEmbedding(nn.Module):
    """Learned position embedding: one vector for each position of a grid, added to its token.

    The vectors are initially drawn from N(0, 0.02²). Layers after this module are not shift
    equivariant, because tokens carry their absolute positions.

    Source: Cordonnier et al. 2020, equation 7; Dosovitskiy et al. 2021 (ViT) for the initial
    values.

    >>> import torch, teka
    >>> position = teka.nn.LearnedPositionEmbedding(8, (2, 3))
    >>> tokens = torch.zeros(1, 6, 8)
    >>> torch.equal(position(tokens, teka.Grid((2, 3)))[0], position.table)
    True

    Args:
        dim: Size of the tokens.
        shape: Number of positions along each axis of the grid.

    Raises:
        ValueError: An argument is below 1, or a call has a grid of another shape.
    """

    equivariance: ClassVar[dict[str, str]] = {}

    def __init__(self, dim: int, shape: int | Sequence[int]) -> None:
        super().__init__()
        self.shape = Grid(shape).shape
        check_tensor_sizes({"dim": dim, "shape": math.prod(self.shape)})
        self.table = Parameter(TABLE_SCALE * torch.randn(math.prod(self.shape), dim))

    def forward(
        self, tokens: Float[Tensor, "batch tokens dim"], grid: Grid
    ) -> Float[Tensor, "batch tokens dim"]:
        """Add the vectors of the grid cells to the tokens.

        Raises:
            ValueError: The grid has a different shape.
        """
        check_tensor("tokens", tokens, "batch", *self.table.shape)
        if not isinstance(grid, Grid) or grid.shape != self.shape:
            raise wrong_value("grid", grid, f"a teka.Grid of shape {self.shape}")
        return tokens + self.table.to(tokens.dtype)
