"""Tokens before and after attention: what is checked of them, absolute positions, pooling, fewer cells and back."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import Parameter

from teka import functional
from teka._compat import ProcessGroup, records_graph, replace
from teka.checks import (
    WHOLE,
    check_flags,
    check_kind,
    check_sizes,
    check_tensor,
    check_tensor_sizes,
)
from teka.errors import wrong_shape, wrong_value
from teka.functional import length_mask
from teka.functional.positions import Positions, check_mask, make_positions, packed_lengths
from teka.functional.shapes import KeyMask, QueryMask
from teka.grid import Grid

TABLE_SCALE = 0.02  # standard deviation of learned absolute positions at first

# Queries, keys and values of all heads of a layer, of which some have no queries or keys.
AllQueries = Float[Tensor, "batch query_heads queries dim_head"]
AllKeys = Float[Tensor, "batch key_heads keys dim_head"]
AllValues = Float[Tensor, "batch layer_heads keys dim_value"]
# Tokens that attend, and those that are attended to.
Tokens = Float[Tensor, "batch queries dim"]
Context = Float[Tensor, "batch keys context_dim"]


def check_tokens(argument: str, tokens: Tensor, *sizes: str | int, first: nn.Module) -> None:
    """Check the shape of tokens, or images, and that they have the dtype of `first`, unless torch casts."""
    check_tensor(argument, tokens, *sizes)
    if (
        type(first)
        not in (
            nn.Linear,
            nn.modules.linear.NonDynamicallyQuantizableLinear,
            nn.Conv1d,
            nn.Conv2d,
            nn.Conv3d,
        )
        or records_graph()
    ):
        return
    assert isinstance(first.weight, Tensor)
    dtypes = (tokens.dtype, first.weight.dtype)
    if dtypes[0] == dtypes[1]:
        return
    if torch.float64 in dtypes or not torch.is_autocast_enabled(tokens.device.type):
        raise wrong_value(argument, tokens.dtype, f"{dtypes[1]}, as the layer's weights are")


@dataclass(frozen=True)
class AttentionInputs:
    """Tokens that attend and those that are attended to; in the latter what is dropped is 0."""

    tokens: Tokens  # tokens that attend
    context: Context  # tokens that are attended to
    key_mask: KeyMask  # true where one of these is kept, None for all
    query_mask: QueryMask  # true where a token that attends is real, None for all
    positions: Positions  # where both are, nowhere if that does not matter
    has_context: bool  # whether the two are not the same tokens
    group: ProcessGroup | None = None  # over which the tokens are divided, these being one process'
    whole: Positions = field(default_factory=Positions)  # where they all are then, if on a grid
    sequences: tuple[int, ...] | None = None  # lengths of sequences that stand one after another


def make_inputs(
    tokens: Float[Tensor, "batch tokens dim"],
    grid: Grid | None,
    key_mask: KeyMask,
    num_prefix_tokens: int,
    num_queries: int | None,
    positions: Float[Tensor, "*batch placed axes"] | None,
    lengths: Int[Tensor, "batch"] | None,
    context: Float[Tensor, "batch keys context_dim"] | None,
    context_grid: Grid | None,
    context_positions: Float[Tensor, "*key_batch placed_keys axes"] | None,
    *,
    dims: tuple[int, int],
    first: nn.Module,
    needs_places: bool,
    group: ProcessGroup | None = None,
    cu_seqlens: Int[Tensor, "sequences"] | None = None,
) -> AttentionInputs:
    """Check the arguments of `Attention.forward`, of tokens and context of these sizes, and put them in order."""
    check_tokens("tokens", tokens, "batch", "tokens", dims[0], first=first)
    check_sizes({"num_prefix_tokens": num_prefix_tokens}, 0)
    check_sizes({"num_queries": num_queries}, most=tokens.shape[1], or_none=True)
    where = whole = replace(
        make_positions("", grid, positions), num_prefix_tokens=num_prefix_tokens
    )
    if group is not None:
        for argument, given in (
            ("num_prefix_tokens", num_prefix_tokens or None),
            ("context", context),
        ):
            if given is not None:
                raise wrong_value(argument, "given", "None where tokens are divided over processes")
        if grid is not None:
            where = Positions(grid.part(group.rank(), group.size()))
    if context is None:
        for argument, given in (
            ("context_grid", context_grid),
            ("context_positions", context_positions),
        ):
            if given is not None:
                raise wrong_value(argument, "given", "None without a context")
        if dims[1] != dims[0]:
            raise wrong_value("context", None, f"tokens of size context_dim = {dims[1]}")
    else:
        check_tokens("context", context, tokens.shape[0], "tokens", dims[1], first=first)
        where = replace(where, key=make_positions("context_", context_grid, context_positions))
    attended_to, query_mask = tokens if context is None else context, None
    counts = {
        "batch": tokens.shape[0],
        "num_queries": tokens.shape[1],
        "num_keys": attended_to.shape[1],
    }
    where.check(**counts, key="context_", is_needed=needs_places)
    if lengths is not None:
        if key_mask is not None:
            raise wrong_value("key_mask and lengths", "both", "at most one of the two")
        check_tensor("lengths", lengths, tokens.shape[0], dtypes=WHOLE)
        key_mask = length_mask(lengths, attended_to.shape[1])
        query_mask = key_mask[:, :num_queries] if context is None else None
    if key_mask is not None:
        check_mask(
            "key_mask", key_mask, batch=attended_to.shape[0], num_tokens=attended_to.shape[1]
        )
        # What is dropped has no part in what the maps learn either, not even if it is NaN.
        attended_to = attended_to.masked_fill(~key_mask[..., None], 0.0)
        tokens = tokens if query_mask is None else attended_to
    sequences = None
    if cu_seqlens is not None:
        excluded = {"key_mask or lengths": key_mask, "num_prefix_tokens": num_prefix_tokens or None}
        excluded = {
            **excluded,
            "context": context,
            "num_queries": num_queries,
            "divide_tokens": group,
        }
        sequences = packed_lengths(cu_seqlens, tokens.shape[1], where, excluded)
    where = where if needs_places else Positions()
    return AttentionInputs(
        tokens[:, :num_queries],
        attended_to,
        key_mask,
        query_mask,
        where,
        context is not None,
        group,
        whole,
        sequences,
    )


class AbsolutePosition(nn.Module):
    """Tokens plus [sin ω_f x_a, cos ω_f x_a] for every axis a, dim / n numbers an axis: dim is a multiple of 2n.

    ω_f = 10000^(−2f / (dim / n)) at first, learned, shared by n = `num_axes` axes. Nothing after it is equivariant.

    Source: Vaswani et al. 2017, §3.5; Horn et al. 2021 (learnable frequencies, dim/2 per axis).

    >>> import torch, teka
    >>> position = teka.nn.AbsolutePosition(4, num_axes=1)
    >>> position(torch.zeros(1, 2, 4), teka.Grid(2)).detach().round(decimals=2)  # sin x, sin x/100, cos x, cos x/100
    tensor([[[0.0000, 0.0000, 1.0000, 1.0000],
             [0.8400, 0.0100, 0.5400, 1.0000]]])
    """

    equivariance: ClassVar[dict[str, str]] = {}

    def __init__(self, dim: int, num_axes: int = 2) -> None:
        super().__init__()
        check_sizes({"num_axes": num_axes, "dim": dim})
        if dim % (2 * num_axes):
            raise wrong_value(
                "dim", dim, f"a multiple of 2 · num_axes = {2 * num_axes} with absolute positions"
            )
        self.num_axes, per_axis = num_axes, dim // num_axes
        self.frequency = Parameter(10000.0 ** (-torch.arange(0, per_axis, 2) / per_axis))

    def forward(
        self, tokens: Float[Tensor, "batch tokens dim"], grid: Grid
    ) -> Float[Tensor, "batch tokens dim"]:
        """Tokens of a grid with their positions' sinusoids added; a ValueError if it has other axes or tokens."""
        check_tensor("tokens", tokens, "batch", "tokens", 2 * self.num_axes * len(self.frequency))
        if not isinstance(grid, Grid):
            raise wrong_value("grid", grid, "a teka.Grid")
        if grid.num_axes != self.num_axes or tokens.shape[1] != grid.num_tokens:
            raise wrong_value(
                "grid", grid.shape, f"{self.num_axes} axes and {tokens.shape[1]} tokens"
            )
        dtype = torch.promote_types(
            self.frequency.dtype, torch.float32
        )  # a side of 300 cells has more than 8 bits
        phase = grid.positions(dtype=dtype, device=tokens.device)[..., None] * self.frequency
        waves = torch.cat([torch.sin(phase), torch.cos(phase)], dim=-1).flatten(-2)
        return tokens + waves.to(tokens.dtype)


class AbsoluteTable(nn.Module):
    """Adds to every token of a grid a learned vector of its cell, at first ~ N(0, 0.02²): p_i + x_i.

    It belongs to one grid's cells, `shape`, and nothing after it is equivariant. Source: Cordonnier et al. 2020,
    equation 7; Dosovitskiy et al. 2021 (ViT) for the numbers at first.

    >>> import torch, teka
    >>> position = teka.nn.AbsoluteTable(8, (2, 3))
    >>> tokens = torch.zeros(1, 6, 8)
    >>> torch.equal(position(tokens, teka.Grid((2, 3)))[0], position.table)
    True
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
        """Tokens of a grid with their cells' vectors added; a ValueError if it has other cells."""
        check_tensor("tokens", tokens, "batch", *self.table.shape)
        if not isinstance(grid, Grid) or grid.shape != self.shape:
            raise wrong_value(
                "grid", grid, f"a teka.Grid of {self.shape} cells, which the table has"
            )
        return tokens + self.table.to(tokens.dtype)


class AttentionPool(nn.Module):
    """Tokens to `num_queries` vectors: softmax attention whose queries are parameters.

    out = W_o · concat_h softmax(q_h Kᵀ / √d) V. Permuting the tokens changes nothing, and the cost is O(L). `heads`
    divide `dim`; values may have a bias (`qkv_bias`), one of keys would cancel in the softmax.

    Source: attention with a learned query; Lee et al. 2019 (Set Transformer), §3.2.

    >>> import torch, teka
    >>> pool, tokens = teka.nn.AttentionPool(16, 4, num_queries=2), torch.randn(1, 7, 16)
    >>> pool(tokens).shape, torch.allclose(pool(tokens.flip(1)), pool(tokens), atol=1e-6)
    (torch.Size([1, 2, 16]), True)
    """

    equivariance: ClassVar[dict[str, str]] = {"permutation": "exact"}

    def __init__(
        self, dim: int, heads: int, *, num_queries: int = 1, qkv_bias: bool = True
    ) -> None:
        super().__init__()
        check_sizes({"dim": dim, "heads": heads, "num_queries": num_queries})
        check_tensor_sizes({"dim": dim}, dim**2)
        check_tensor_sizes({"dim": dim, "num_queries": num_queries})
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
        """Pool the tokens that the mask keeps; heads of 0 for a sample without any. A ValueError for other shapes."""
        check_tokens("tokens", tokens, "batch", "tokens", self.dim, first=self.output)
        if key_mask is not None:
            check_mask("key_mask", key_mask, batch=tokens.shape[0], num_tokens=tokens.shape[1])
            tokens = tokens.masked_fill(~key_mask[..., None], 0.0)
        query = self.query.expand(tokens.shape[0], -1, -1)
        parts = (query, self.key(tokens), self.value(tokens))
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.attention(
            query.to(key.dtype), key, value, kernel="softmax", key_mask=key_mask
        )
        return self.output(mixed.transpose(1, 2).flatten(2))


class SpaceToDepth(nn.Module):
    """Every block of f × … × f cells becomes one cell that holds all of their channels, with f = `factor`.

        y[c fⁿ + (t_1, …, t_n), i] = x[c, f i + t],   t in {0, …, f − 1}ⁿ in row-major order

    Also called space to depth; on n = 2 axes `torch.nn.PixelUnshuffle`. Nothing is lost: `inverse` gives the same
    numbers back, bit for bit. A shift by f cells is one by a cell of what comes out; other shifts mix the channels.

    Source: Jacobsen et al. 2018 (i-RevNet), §3.1, after Shi et al. 2016; Cordonnier et al. 2020, §4.1, with f = 2.

    >>> import torch, teka
    >>> down, maps = teka.nn.SpaceToDepth(2), torch.randn(1, 3, 4, 6)
    >>> down(maps).shape, torch.equal(down.inverse(down(maps)), maps)
    (torch.Size([1, 12, 2, 3]), True)
    """

    def __init__(self, factor: int = 2, num_axes: int = 2) -> None:
        super().__init__()
        check_sizes({"factor": factor, "num_axes": num_axes})
        self.factor, self.num_axes = factor, num_axes
        self.cells_per_block = factor**num_axes

    def forward(
        self, maps: Float[Tensor, "batch channels *sides"]
    ) -> Float[Tensor, "batch more_channels *fewer"]:
        """(B, C, *S) to (B, C · fⁿ, *(S / f)); a ValueError for other axes, or a side that is no multiple of f."""
        check_kind("maps", maps, None)
        if maps.ndim != 2 + self.num_axes or any(side % self.factor for side in maps.shape[2:]):
            expected = (
                f"(batch, channels) and {self.num_axes} sides, multiples of factor = {self.factor}"
            )
            raise wrong_shape("maps", maps.shape, expected)
        split = [size for side in maps.shape[2:] for size in (side // self.factor, self.factor)]
        blocks, end = maps.reshape(*maps.shape[:2], *split), 2 + len(split)
        within_first = blocks.permute(0, 1, *range(3, end, 2), *range(2, end, 2))
        return within_first.flatten(1, 1 + self.num_axes)

    def inverse(
        self, maps: Float[Tensor, "batch more_channels *fewer"]
    ) -> Float[Tensor, "batch channels *sides"]:
        """The maps that `forward` made these from; a ValueError for other axes or numbers of channels."""
        check_kind("maps", maps, None)
        if maps.ndim != 2 + self.num_axes or maps.shape[1] % self.cells_per_block:
            expected = (
                f"(batch, a multiple of {self.cells_per_block} channels) and {self.num_axes} sides"
            )
            raise wrong_shape("maps", maps.shape, expected)
        axes = range(self.num_axes)
        sides, channels = maps.shape[2:], maps.shape[1] // self.cells_per_block
        within_first = maps.reshape(maps.shape[0], channels, *[self.factor] * self.num_axes, *sides)
        blocks = within_first.permute(
            0, 1, *(place for axis in axes for place in (2 + self.num_axes + axis, 2 + axis))
        )
        return blocks.reshape(maps.shape[0], channels, *(s * self.factor for s in sides))
