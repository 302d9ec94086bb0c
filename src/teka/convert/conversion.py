"""Conversion of convolutions to attention by position and back (Cordonnier et al. 2020)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from teka.checks import (
    check_dense,
    check_instance,
    check_name,
    check_sizes,
    check_stride,
    check_tensor,
    is_integer,
    is_number,
)
from teka.convert.convolutions import (
    PADDING_MODES,
    Convolution,
    cell_spacing,
    check_precision,
    check_same_convolution,
    factor_matrices,
    hard_precision,
    offset_matrices,
    precision_for_tolerance,
    window_reach,
)
from teka.errors import wrong_argument, wrong_value
from teka.functional import Constant
from teka.functional.positions import Positions
from teka.functional.relative.stationary import StationaryRelative
from teka.grid import Grid
from teka.nn import Attention, RelativeKernel
from teka.nn.local_conv import CONVOLUTION_MODULES
from teka.nn.relative import inverse_softplus

# Largest relative difference between the spacing of a grid and that of the centers of the heads.
SPACING_TOLERANCE = 1e-6


class BorderedAttention(nn.Module):
    """Attention by position from every stride-th cell of a grid to all cells and a border.

    The border consists of zero tokens outside the grid, like the zero padding of a convolution.
    Without a border, the weights of a head that points over an edge would go to the nearest cells
    inside. With circular padding, the head finds the cells at the opposite edge instead.

    Args:
        attention: Attention by position alone, with kernel="constant".
        border: Number of border cells along each axis.
        spacing: Spacing of the grids along each axis.
        stride: Step between queries, one number or one for each axis.
        padding_mode: "zeros", or "circular" for periodic grids.

    Source: Cordonnier et al. 2020, Theorem 1.
    """

    def __init__(
        self,
        attention: Attention,
        border: Sequence[int],
        spacing: Sequence[float],
        *,
        stride: int | Sequence[int] = 1,
        padding_mode: str = PADDING_MODES[0],
    ) -> None:
        super().__init__()
        check_name("padding_mode", padding_mode, PADDING_MODES)
        if attention.query is not None or attention.key is not None:
            expected = "a kernel that does not depend on content, such as 'constant'"
            raise wrong_value("attention.kernel", attention.kernel, expected)
        if not all(is_integer(cells) and cells >= 0 for cells in border):
            raise wrong_value("border", border, "whole numbers of cells of at least 0")
        self.attention = attention
        self.border = tuple(border)
        self.spacing = cell_spacing(spacing, len(self.border))
        self.stride = check_stride(stride, len(self.border))
        self.padding_mode = padding_mode

    def output_grid(self, grid: Grid) -> Grid:
        """Return the grid of the outputs: every stride-th cell, starting with the first."""
        axes = list(zip(grid.shape, grid.spacing, self.stride, strict=True))
        sides = tuple(-(-side // step) for side, _, step in axes)
        spacing = tuple(distance * step for _, distance, step in axes)
        return Grid(sides, spacing, grid.periodic, grid.origin)

    def forward(
        self, tokens: Float[Tensor, "batch tokens context"], grid: Grid
    ) -> Float[Tensor, "batch outputs dim"]:
        """Return the outputs on `output_grid(grid)`.

        Raises:
            ValueError: Tokens of another size or number, or a grid with another spacing or edges.
        """
        check_dense("tokens", tokens)
        check_tensor("tokens", tokens, "batch", "tokens", self.attention.context_dim)
        self._check_grid(grid)
        cells = grid.unflatten(tokens)
        # Positions start at 0, where rounding is smallest. Only differences matter.
        inside = Grid(grid.shape, self.spacing, grid.periodic)
        query_grid = self.output_grid(inside)
        # Queries do not depend on content. Only their number and size matter.
        num_queries = query_grid.num_tokens
        queries = tokens.new_zeros(1).expand(len(tokens), num_queries, self.attention.dim)
        if self.padding_mode == "circular":
            return self.attention(queries, query_grid, context=tokens, context_grid=inside)
        axes = list(zip(grid.shape, self.border, self.spacing, strict=True))
        sides = tuple(side + 2 * num_cells for side, num_cells, _ in axes)
        origin = tuple(-num_cells * distance for _, num_cells, distance in axes)
        outside = Grid(sides, self.spacing, origin=origin)
        margins = [num_cells for num_cells in reversed(self.border) for _ in range(2)]
        context = outside.flatten(pad(cells, margins))
        return self.attention(queries, query_grid, context=context, context_grid=outside)

    def _check_grid(self, grid: Grid) -> None:
        is_circular = self.padding_mode == "circular"
        fits = isinstance(grid, Grid) and grid.num_axes == len(self.border)
        if fits:
            distances = zip(grid.spacing, self.spacing, strict=True)
            fits = all(math.isclose(*pair, rel_tol=SPACING_TOLERANCE) for pair in distances)
            fits = fits and all(periodic == is_circular for periodic in grid.periodic)
        if not fits:
            edges = "that is periodic" if is_circular else "with edges"
            expected = f"a grid {edges} and a spacing of {self.spacing}, a number for each axis"
            raise wrong_value("grid", grid, expected)
        sides = zip(grid.shape, self.stride, strict=True)
        if is_circular and any(side % step for side, step in sides):
            expected = f"a periodic grid with sides that are multiples of the stride {self.stride}"
            raise wrong_value("grid", grid, expected)

    def extra_repr(self) -> str:
        names = ("border", "spacing", "stride", "padding_mode")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)


def attention_from_convolution(
    convolution: nn.Module,
    *,
    precision: float | None = None,
    tolerance: float | None = None,
    dim_head: int | None = None,
    spacing: float | Sequence[float] = 1.0,
) -> BorderedAttention:
    """Return an attention layer that computes a convolution, with a head for each kernel offset.

    The weights of head h depend on the offset δ between key and query: they are proportional to
    exp(−α ‖δ − Δ_h‖²). The value and output projections of the head multiply to the matrix of the
    convolution at its offset Δ_h, so W_h = O_h V_h. Outside the grid, the head finds zero tokens.

    In the limit α → ∞ the heads are hard: their weights are exactly 1 and 0 in floating point, and
    the layer differs from the convolution by rounding only. Otherwise the difference is at most
    `conversion_error_bound`. No gradient reaches the centers and precisions of hard heads.

    >>> import torch, teka
    >>> convolution = torch.nn.Conv2d(3, 4, 3, padding=1)
    >>> layer = teka.convert.attention_from_convolution(convolution)
    >>> images, grid = torch.randn(1, 3, 5, 6), teka.Grid((5, 6))
    >>> output = grid.unflatten(layer(grid.flatten(images), grid))
    >>> torch.allclose(output, convolution(images), atol=1e-5)
    True

    Args:
        convolution: A torch.nn.Conv1d, 2d or 3d with odd kernel sizes and zero or circular padding
            that keeps the size, except for the stride. Any stride, dilation and groups are allowed.
        precision: α > 0, in units of length⁻². The default is hard heads, as with math.inf.
        tolerance: Largest error, instead of a precision. It is a share of the largest possible
            output, max|x| · max_o Σ|W_o|.
        dim_head: Size D_h of a head, at least the rank of every W_h. The default is
            min(D_in, D_out).
        spacing: Distance between neighboring cells, one number or one for each axis.

    Raises:
        ValueError: A convolution of another kind, or options out of range.

    Source: Cordonnier et al. 2020, Theorem 1, Lemmas 1 and 2, equation 9.
    """
    convolution = check_same_convolution(convolution)
    weight = convolution.weight.detach()
    num_out, num_in = convolution.out_channels, convolution.in_channels
    kernel_size = tuple(weight.shape[2:])
    spacing = cell_spacing(spacing, len(kernel_size))
    if precision is not None and tolerance is not None:
        raise wrong_argument("precision and tolerance", "both", "at most one of the two")
    if tolerance is not None:
        precision = precision_for_tolerance(tolerance, spacing)
    precision = math.inf if precision is None else precision
    check_precision(precision)
    dim_head = min(num_in, num_out) if dim_head is None else dim_head
    check_sizes({"dim_head": dim_head})
    epsilon = torch.finfo(weight.dtype).eps
    values, outputs = factor_matrices(offset_matrices(convolution), dim_head, epsilon=epsilon)

    heads, width = values.shape[:2]
    relative = RelativeKernel("quadratic", num_axes=len(kernel_size), heads=heads)
    attention = Attention(
        num_out,
        heads,
        kernel="constant",
        relative=relative,
        dim_head=dim_head,
        context_dim=num_in,
        qkv_bias=False,
    ).to(weight)
    reach = window_reach(convolution)
    steps = tuple(
        dilation * distance
        for dilation, distance in zip(convolution.dilation, spacing, strict=True)
    )
    origin = tuple(-cells * distance for cells, distance in zip(reach, spacing, strict=True))
    offsets = Grid(kernel_size, steps, origin=origin).positions(dtype=torch.float64)
    # A larger precision than that of hard heads changes nothing.
    head_precision = torch.tensor(min(precision, hard_precision(spacing)), dtype=torch.float64)
    with torch.no_grad():
        relative.center.copy_(offsets)
        relative.raw_precision.copy_(inverse_softplus(head_precision).expand(heads))
        if not relative.raw_precision.isfinite().all():
            expected = f"a number that {weight.dtype} can hold"
            hint = "Use a larger spacing."
            raise wrong_value("precision", float(head_precision), expected, hint)
        # Values beyond the factors keep their initial weights, so that they can be trained. Their
        # output weights are 0.
        assert attention.value is not None
        attention.value.weight.unflatten(0, (heads, dim_head))[:, :width] = values.to(weight)
        output_weight = attention.output.weight.zero_().unflatten(1, (heads, dim_head))
        output_weight[..., :width] = outputs.transpose(0, 1).to(weight)
        attention.output.bias.zero_()
        if convolution.bias is not None:
            attention.output.bias.copy_(convolution.bias)
    layer = BorderedAttention(
        attention, reach, spacing, stride=convolution.stride, padding_mode=convolution.padding_mode
    )
    return layer.train(convolution.training)


@dataclass(frozen=True)
class HeadOffset:
    """Offset to which a head gives the largest weight.

    Attributes:
        offset: Position of the key minus that of the query, in cells along each axis.
        share: Share of this offset in the weights of all offsets that are possible on the grid. No
            query gives the key at this offset a smaller weight.
    """

    offset: tuple[int, ...]
    share: float


def head_offsets(attention: Attention, grid: Grid) -> tuple[HeadOffset, ...]:
    """Return the offset with the largest weight of each head, and its share, on a grid.

    On a periodic grid, offsets take the shorter way around.

    >>> import torch, teka
    >>> layer = teka.convert.attention_from_convolution(torch.nn.Conv1d(1, 1, 3, padding=1))
    >>> [head.offset for head in teka.convert.head_offsets(layer.attention, teka.Grid(8))]
    [(-1,), (0,), (1,)]

    Args:
        attention: Layer that attends by position alone.
        grid: Grid of its tokens.

    Raises:
        ValueError: The layer depends on content, or not every head has a relative kernel that
            depends on the offset alone.
    """
    if not isinstance(grid, Grid):
        raise wrong_value("grid", grid, "a teka.Grid")
    check_instance("attention", attention, Attention)
    if attention.query is not None or attention.key is not None:
        num_heads = attention.content_heads
        description = f"{num_heads} heads that depend on content, or a relative kernel that does"
        expected = "attention by position alone, kernel='constant'"
        raise wrong_argument("attention", description, expected)
    if attention.position_heads:
        expected = "0, for a relative kernel in every head"
        raise wrong_value("attention.position_heads", attention.position_heads, expected)
    relative = None if attention.relative is None else attention.relative()
    if not isinstance(relative, StationaryRelative):
        name = None if relative is None else relative.name
        expected = "a relative kernel of the offset alone, such as 'quadratic'"
        raise wrong_value("attention.relative", name, expected)
    relative.check_compatibility(
        heads=attention.heads, dim=attention.dim_head, num_axes=grid.num_axes, kernel=Constant()
    )
    relative = relative.adapt_to_positions(Positions(grid))
    assert isinstance(relative, StationaryRelative)
    # The offsets between cells are the points of another grid.
    axes = list(zip(grid.shape, grid.periodic, strict=True))
    sides = tuple(side if periodic else 2 * side + 1 for side, periodic in axes)
    lowest = tuple(-(side // 2) if periodic else -side for side, periodic in axes)
    origin = tuple(cells * distance for cells, distance in zip(lowest, grid.spacing, strict=True))
    offsets = Grid(sides, grid.spacing, origin=origin).positions(
        dtype=torch.float64, device=attention.output.weight.device
    )
    with torch.no_grad():
        shares, indices = torch.softmax(relative.log_at(-offsets), dim=-1).max(dim=-1)
    cells = torch.stack(torch.unravel_index(indices, sides), dim=-1).cpu() + torch.tensor(lowest)
    pairs = zip(cells.tolist(), shares.tolist(), strict=True)
    return tuple(HeadOffset(tuple(offset), share) for offset, share in pairs)


def convolution_from_attention(
    attention: Attention | BorderedAttention, grid: Grid, *, least_share: float = 0.99
) -> Convolution:
    """Return the convolution that attention by position computes if each head has one offset.

    The matrix at offset Δ is W_Δ = Σ O_h V_h over the heads with this offset. The window is the
    smallest odd one that contains all offsets, with their greatest common divisor along each axis
    as dilation. Padding is circular on a periodic grid and zero otherwise. The stride is that of a
    `BorderedAttention`. Dropout is ignored.

    Outputs differ by at most 2 (1 − share) max|x| · Σ_h |O_h V_h| per channel, for queries whose
    keys at all offsets exist. Over an edge of the grid, the convolution and `BorderedAttention`
    find 0, but plain attention gives the weight to cells inside.

    >>> import torch, teka
    >>> convolution, grid = torch.nn.Conv2d(3, 4, 3, padding=1), teka.Grid((5, 6))
    >>> layer = teka.convert.attention_from_convolution(convolution)
    >>> again = teka.convert.convolution_from_attention(layer, grid)
    >>> torch.allclose(again.weight, convolution.weight, atol=1e-6)
    True

    Args:
        attention: Layer, for example one that `attention_from_convolution` returned, or a trained
            one.
        grid: Grid of the tokens, with one to three axes.
        least_share: Smallest share of its weight, above ½, that each head must give to one offset;
            see `HeadOffset`.

    Raises:
        ValueError: The layer depends on content, is causal, or has a gate or a value convolution. A
            head has no offset with this share, or its offset exceeds the grid. The grid has
            other axes, or only some of its axes are periodic.

    Source: Cordonnier et al. 2020, Lemma 1, read from right to left.
    """
    layer = attention.attention if isinstance(attention, BorderedAttention) else attention
    check_instance("attention", layer, Attention)
    if not is_number(least_share) or not 0.5 < least_share <= 1:
        raise wrong_value("least_share", least_share, "above 0.5 and at most 1")
    if not isinstance(grid, Grid) or grid.num_axes not in CONVOLUTION_MODULES:
        raise wrong_value("grid", grid, "a teka.Grid of one to three axes")
    if len(set(grid.periodic)) > 1:
        raise wrong_value("grid", grid, "periodic along all axes or along none")
    for name in ("causal", "gate", "value_convolution"):
        if getattr(layer, name):
            raise wrong_value(f"attention.{name}", True, "a layer without it")
    heads = head_offsets(layer, grid)
    for index, head in enumerate(heads):
        if not head.share >= least_share:
            expected = f"at least {least_share:g} at one offset"
            hint = f"Its largest is at {head.offset}, key minus query."
            share = float(f"{head.share:.4g}")
            raise wrong_value(f"the share of head {index}", share, expected, hint)
        if any(abs(cells) >= side for cells, side in zip(head.offset, grid.shape, strict=True)):
            expected = f"one between two cells of {grid.shape}"
            raise wrong_value(f"the offset of head {index}", head.offset, expected)

    offsets = torch.tensor([head.offset for head in heads])
    reach = offsets.abs().amax(dim=0).tolist()
    dilation = [max(1, math.gcd(*axis)) for axis in offsets.T.tolist()]
    middle = [cells // step for cells, step in zip(reach, dilation, strict=True)]
    convolution = CONVOLUTION_MODULES[grid.num_axes](
        layer.context_dim,
        layer.dim,
        tuple(2 * cells + 1 for cells in middle),
        padding=tuple(reach),
        dilation=tuple(dilation),
        stride=attention.stride if isinstance(attention, BorderedAttention) else 1,
        padding_mode="circular" if grid.periodic[0] else "zeros",
    ).to(layer.output.weight)
    outputs = layer.output.weight.detach().double()
    head_matrices = outputs.unflatten(1, (layer.heads, -1)).transpose(0, 1)
    bias = layer.output.bias.detach().double()
    if layer.value is not None:  # otherwise the values are the tokens themselves
        values = layer.value.weight.detach().double().unflatten(0, (layer.heads, -1))
        head_matrices = head_matrices @ values
        if layer.value.bias is not None:
            bias = bias + outputs @ layer.value.bias.detach().double()
    weight = torch.zeros_like(convolution.weight, dtype=torch.float64)
    indices = offsets // torch.tensor(dilation) + torch.tensor(middle)
    for index, matrix in zip(indices.tolist(), head_matrices, strict=True):
        weight[(..., *index)] += matrix
    with torch.no_grad():
        convolution.weight.copy_(weight)
        assert convolution.bias is not None
        convolution.bias.copy_(bias)
    return convolution.train(layer.training)
