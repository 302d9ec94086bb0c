"""Tokens before and after attention: what is checked of them, absolute positions, pooling, fewer cells and back."""

from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import Parameter

from teka import functional
from teka.checks import check_flags, check_kind, check_sizes, check_tensor
from teka.errors import wrong_shape, wrong_value
from teka.functional.placement import check_mask
from teka.grid import Grid


def check_tokens(argument: str, tokens: Tensor, *sizes: str | int, first: nn.Module) -> None:
    """Check that tokens, or images, have a shape, and the dtype of the weights of `first` that they are to meet.

    A map that is not torch's own may take any dtype, and so may any map in mixed precision, where torch casts.
    """
    check_tensor(argument, tokens, *sizes)
    if type(first) not in (nn.Linear, nn.Conv2d) or torch.compiler.is_compiling():
        return
    assert isinstance(first.weight, Tensor)
    dtypes = (tokens.dtype, first.weight.dtype)
    is_cast = torch.float64 not in dtypes and torch.is_autocast_enabled(tokens.device.type)
    if dtypes[0] != dtypes[1] and not is_cast:
        raise wrong_value(argument, tokens.dtype, f"{dtypes[1]}, as the layer's weights are")


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


class AttentionPool(nn.Module):
    """Tokens to a fixed number of vectors: softmax attention whose queries are parameters.

    out = W_o · concat_h softmax(q_h Kᵀ / √d) V. The queries do not depend on the tokens, so that permuting the tokens
    changes nothing, and the cost is O(L).

    Source: attention with a learned query; Lee et al. 2019 (Set Transformer), §3.2.

    Args:
        dim: Size of a token.
        heads: Number of heads, a divisor of dim.
        num_queries: Number of vectors to pool to.
        qkv_bias: Whether values have a bias; a bias of keys would cancel in the softmax.

    Raises:
        ValueError: Sizes that do not fit.
    """

    equivariance: ClassVar[dict[str, str]] = {"permutation": "exact"}

    def __init__(self, dim: int, heads: int, *, num_queries: int = 1, qkv_bias: bool = True) -> None:
        super().__init__()
        check_sizes({"dim": dim, "heads": heads, "num_queries": num_queries})
        check_flags({"qkv_bias": qkv_bias})
        if dim % heads:
            raise wrong_value("heads", heads, f"a divisor of dim = {dim}")
        self.dim, self.heads = dim, heads
        self.query = Parameter(torch.randn(num_queries, dim))
        self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim, bias=qkv_bias)
        self.output = nn.Linear(dim, dim)

    def forward(
        self,
        tokens: Float[Tensor, "batch tokens dim"],
        key_mask: Bool[Tensor, "batch tokens"] | None = None,
    ) -> Float[Tensor, "batch queries dim"]:
        """Pool.

        Args:
            tokens: Tokens, shape (B, L, dim).
            key_mask: True where a token counts, shape (B, L).

        Raises:
            ValueError: Shapes that do not fit, or a mask that keeps nothing.
        """
        check_tokens("tokens", tokens, "batch", "tokens", self.dim, first=self.output)
        if key_mask is not None:
            check_mask("key_mask", key_mask, batch=tokens.shape[0], num_tokens=tokens.shape[1])
            tokens = tokens.masked_fill(~key_mask[..., None], 0.0)
        query = self.query.expand(tokens.shape[0], -1, -1)
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (query, self.key(tokens), self.value(tokens))
        )
        mixed = functional.attention(query.to(key.dtype), key, value, kernel="softmax", key_mask=key_mask)
        return self.output(mixed.transpose(1, 2).flatten(2))


class InvertibleDownsampling(nn.Module):
    """Every block of f × … × f cells becomes one cell that holds all of their channels.

        y[c fⁿ + (t_1, …, t_n), i] = x[c, f i + t],   t in {0, …, f − 1}ⁿ in row-major order

    Also called space to depth. Nothing is lost: `inverse` gives the same numbers back, bit for bit. With two axes it is
    `torch.nn.PixelUnshuffle`, and its inverse `torch.nn.PixelShuffle`. It has no parameters.

    A shift by f cells is one by a cell of what comes out; other shifts mix the channels.

    Source: Jacobsen et al. 2018 (i-RevNet), §3.1, there after Shi et al. 2016; before the network in Cordonnier et al.
    2020, §4.1, with f = 2.

    Args:
        factor: Side f of a block in cells.
        num_axes: Number of axes n of the maps.

    Raises:
        ValueError: A size below 1.
    """

    def __init__(self, factor: int = 2, num_axes: int = 2) -> None:
        super().__init__()
        check_sizes({"factor": factor, "num_axes": num_axes})
        self.factor, self.num_axes = factor, num_axes
        self.cells_per_block = factor**num_axes

    def forward(self, maps: Float[Tensor, "batch channels *sides"]) -> Float[Tensor, "batch more_channels *fewer"]:
        """The maps with fewer cells and more channels.

        Args:
            maps: Maps, shape (B, C, *S), with every side a multiple of the factor.

        Returns:
            Maps, shape (B, C · fⁿ, *(S / f)).

        Raises:
            ValueError: Another number of axes, or a side that is no multiple.
        """
        check_kind("maps", maps, None)
        if maps.ndim != 2 + self.num_axes or any(side % self.factor for side in maps.shape[2:]):
            expected = f"(batch, channels) and {self.num_axes} sides, multiples of factor = {self.factor}"
            raise wrong_shape("maps", maps.shape, expected)
        split = [size for side in maps.shape[2:] for size in (side // self.factor, self.factor)]
        axes = range(self.num_axes)
        blocks = maps.reshape(*maps.shape[:2], *split)
        within_first = blocks.permute(0, 1, *(3 + 2 * axis for axis in axes), *(2 + 2 * axis for axis in axes))
        return within_first.flatten(1, 1 + self.num_axes)

    def inverse(self, maps: Float[Tensor, "batch more_channels *fewer"]) -> Float[Tensor, "batch channels *sides"]:
        """The maps that `forward` made these from.

        Args:
            maps: Maps, shape (B, C · fⁿ, *S).

        Returns:
            Maps, shape (B, C, *(S · f)).

        Raises:
            ValueError: Another number of axes, or channels that are no multiple of a block's cells.
        """
        check_kind("maps", maps, None)
        if maps.ndim != 2 + self.num_axes or maps.shape[1] % self.cells_per_block:
            expected = f"(batch, a multiple of {self.cells_per_block} channels) and {self.num_axes} sides"
            raise wrong_shape("maps", maps.shape, expected)
        axes = range(self.num_axes)
        sides, channels = maps.shape[2:], maps.shape[1] // self.cells_per_block
        within_first = maps.reshape(maps.shape[0], channels, *[self.factor] * self.num_axes, *sides)
        blocks = within_first.permute(0, 1, *(place for axis in axes for place in (2 + self.num_axes + axis, 2 + axis)))
        return blocks.reshape(maps.shape[0], channels, *(s * self.factor for s in sides))
