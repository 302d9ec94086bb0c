"""Tokens before and after attention: what is checked of them, absolute positions, pooling, fewer cells and back."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import Parameter

from teka import functional
from teka.checks import WHOLE, check_flags, check_kind, check_sizes, check_tensor
from teka.errors import wrong_shape, wrong_value
from teka.functional import length_mask
from teka.functional.positions import Positions, check_mask, make_positions
from teka.grid import Grid

# Shapes of queries, keys and values, and where a key is kept.
Queries = Float[Tensor, "batch heads queries dim_head"]
Keys = Float[Tensor, "batch heads keys dim_head"]
Values = Float[Tensor, "batch heads keys dim_value"]
Mixed = Float[Tensor, "batch heads queries dim_value"]
KeyMask = Bool[Tensor, "batch keys"]


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


@dataclass(frozen=True)
class Scene:
    """Tokens that attend and those that are attended to; in the latter what is dropped is 0."""

    tokens: Float[Tensor, "batch queries dim"]  # tokens that attend
    context: Float[Tensor, "batch keys context_dim"]  # tokens that are attended to
    key_mask: Bool[Tensor, "batch keys"] | None  # true where one of these is kept, None for all
    query_mask: Bool[Tensor, "batch queries"] | None  # true where a token that attends is real, None for all
    places: dict[str, Any]  # where they are, as arguments of `teka.functional.attention`
    has_context: bool  # whether the two are not the same tokens

    @property
    def sites(self) -> Positions:
        """Where the tokens that attend are."""
        return Positions(self.places.get("grid"), self.places.get("positions"))


def make_scene(
    tokens: Float[Tensor, "batch tokens dim"],
    grid: Grid | None,
    key_mask: Bool[Tensor, "batch keys"] | None,
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
) -> Scene:
    """Check the arguments of `Attention.forward`, for a layer with tokens of these sizes, and put them in order.

    `first` is one of its linear maps, and `needs_places` says whether it has a relative kernel.
    """
    check_tokens("tokens", tokens, "batch", "tokens", dims[0], first=first)
    check_sizes({"num_prefix_tokens": num_prefix_tokens}, 0)
    places = {"grid": grid, "positions": positions, "num_prefix_tokens": num_prefix_tokens}
    sites = make_positions("", grid, positions)
    if sites.is_known or needs_places:
        sites.check_tokens("", num_prefix_tokens, batch=tokens.shape[0], num_tokens=tokens.shape[1])
    if context is None:
        for argument, given in (("context_grid", context_grid), ("context_positions", context_positions)):
            if given is not None:
                raise wrong_value(argument, "given", "None without a context")
        if dims[1] != dims[0]:
            raise wrong_value("context", None, f"tokens of size context_dim = {dims[1]}")
    else:
        check_tokens("context", context, tokens.shape[0], "tokens", dims[1], first=first)
        key_sites = make_positions("context_", context_grid, context_positions)
        if key_sites.is_known or needs_places:
            key_sites.check_tokens("context_", 0, batch=context.shape[0], num_tokens=context.shape[1])
        places |= {"key_grid": context_grid, "key_positions": context_positions}
    attended_to, query_mask = tokens if context is None else context, None
    if lengths is not None:
        if key_mask is not None:
            raise wrong_value("key_mask and lengths", "both", "at most one of the two")
        check_tensor("lengths", lengths, tokens.shape[0], dtypes=WHOLE)
        key_mask = length_mask(lengths, attended_to.shape[1])
        query_mask = key_mask[:, :num_queries] if context is None else None
    if key_mask is not None:
        check_mask("key_mask", key_mask, batch=attended_to.shape[0], num_tokens=attended_to.shape[1])
        # What is dropped has no part in what the maps learn either, not even if it is NaN.
        attended_to = attended_to.masked_fill(~key_mask[..., None], 0.0)
        tokens = tokens if query_mask is None else attended_to
    # Fewer queries than keys have no places of their own, nor a relative kernel that would ask for them.
    places = places if num_queries is None else {}
    return Scene(tokens[:, :num_queries], attended_to, key_mask, query_mask, places, context is not None)


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
        self.num_axes, per_axis = num_axes, dim // num_axes
        self.frequency = Parameter(10000.0 ** (-torch.arange(0, per_axis, 2) / per_axis))

    def forward(self, tokens: Float[Tensor, "batch tokens dim"], grid: Grid) -> Float[Tensor, "batch tokens dim"]:
        """Tokens of a grid with their positions' sinusoids added; a ValueError if it has other axes or tokens."""
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
        """Pool the tokens that the mask keeps; a ValueError for shapes that do not fit or a mask that keeps nothing."""
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
        """(B, C, *S) to (B, C · fⁿ, *(S / f)); a ValueError for other axes, or a side that is no multiple of f."""
        check_kind("maps", maps, None)
        if maps.ndim != 2 + self.num_axes or any(side % self.factor for side in maps.shape[2:]):
            expected = f"(batch, channels) and {self.num_axes} sides, multiples of factor = {self.factor}"
            raise wrong_shape("maps", maps.shape, expected)
        split = [size for side in maps.shape[2:] for size in (side // self.factor, self.factor)]
        blocks, end = maps.reshape(*maps.shape[:2], *split), 2 + len(split)
        within_first = blocks.permute(0, 1, *range(3, end, 2), *range(2, end, 2))
        return within_first.flatten(1, 1 + self.num_axes)

    def inverse(self, maps: Float[Tensor, "batch more_channels *fewer"]) -> Float[Tensor, "batch channels *sides"]:
        """The maps that `forward` made these from; a ValueError for other axes or numbers of channels."""
        check_kind("maps", maps, None)
        if maps.ndim != 2 + self.num_axes or maps.shape[1] % self.cells_per_block:
            expected = f"(batch, a multiple of {self.cells_per_block} channels) and {self.num_axes} sides"
            raise wrong_shape("maps", maps.shape, expected)
        axes = range(self.num_axes)
        sides, channels = maps.shape[2:], maps.shape[1] // self.cells_per_block
        within_first = maps.reshape(maps.shape[0], channels, *[self.factor] * self.num_axes, *sides)
        blocks = within_first.permute(0, 1, *(place for axis in axes for place in (2 + self.num_axes + axis, 2 + axis)))
        return blocks.reshape(maps.shape[0], channels, *(s * self.factor for s in sides))
