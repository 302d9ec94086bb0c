"""Theorem 1 of Cordonnier et al. 2020: a convolution as attention, and attention as the convolution it computes."""

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

# Share of a cell by which a grid's spacing may differ from the one that the heads' centres were made for.
SPACING_TOLERANCE = 1e-6


class BorderedAttention(nn.Module):
    """Attention by position alone from every stride-th cell of a grid to all cells, and to what is around them.

    Attention normalises over the keys that there are, so that a head that looks over an edge finds the nearest cell
    inside. Here it finds a token 0 up to `border` cells outside: the padding of the convolutions in Cordonnier et al.
    2020, Theorem 1. With `padding_mode` "circular" it finds the cell at the other edge, on a torus. The `spacing` is
    that of the grids to come; tokens have the layer's `context_dim`, and what comes out lies on `output_grid(grid)`.
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
            raise wrong_value(
                "attention.kernel",
                attention.kernel,
                "one that looks at no content, such as 'constant'",
            )
        if not all(is_integer(cells) and cells >= 0 for cells in border):
            raise wrong_value("border", border, "whole numbers of cells of at least 0")
        self.attention = attention
        self.border = tuple(border)
        self.spacing = Grid((1,) * len(self.border), spacing).spacing
        self.stride = Grid(
            stride if isinstance(stride, Sequence) else (stride,) * len(self.border)
        ).shape
        if len(self.stride) != len(self.border):
            raise wrong_value(
                "stride", stride, f"a number, or one for each of {len(self.border)} axes"
            )
        self.padding_mode = padding_mode

    def output_grid(self, grid: Grid) -> Grid:
        """Where the outputs lie: every stride-th cell of the grid, from its first on."""
        sides = tuple(-(-side // step) for side, step in zip(grid.shape, self.stride, strict=True))
        apart = tuple(one * step for one, step in zip(grid.spacing, self.stride, strict=True))
        return Grid(sides, apart, grid.periodic, grid.origin)

    def forward(
        self, tokens: Float[Tensor, "batch tokens context"], grid: Grid
    ) -> Float[Tensor, "batch outputs dim"]:
        """Attend; a ValueError for tokens of another size or number, or a grid of other spacing or with other edges."""
        check_dense("tokens", tokens)
        check_tensor("tokens", tokens, "batch", "tokens", self.attention.context_dim)
        fits = isinstance(grid, Grid) and grid.num_axes == len(self.border)
        fits = fits and all(
            abs(one - two) <= SPACING_TOLERANCE * two
            for one, two in zip(grid.spacing, self.spacing, strict=True)
        )
        circular = self.padding_mode == "circular"
        if not fits or not all(one == circular for one in grid.periodic):
            edges = "that is periodic" if circular else "with edges"
            expected = f"a grid {edges} and a spacing of {self.spacing}, a number for each axis"
            raise wrong_value("grid", grid, expected)
        if circular and any(
            side % step for side, step in zip(grid.shape, self.stride, strict=True)
        ):
            raise wrong_value(
                "grid",
                grid,
                f"sides that are multiples of the stride {self.stride}, around a torus",
            )
        # Grids from 0 on: only differences count, and they are rounded least there.
        inside = Grid(grid.shape, self.spacing, grid.periodic)
        places = self.output_grid(inside)
        # What attends is not looked at: only its number and the size of the output count.
        attending = tokens.new_zeros(1).expand(
            tokens.shape[0], places.num_tokens, self.attention.dim
        )
        if circular:
            grid.unflatten(tokens)  # checks their number
            return self.attention(attending, places, context=tokens, context_grid=inside)
        outside = Grid(
            tuple(side + 2 * cells for side, cells in zip(grid.shape, self.border, strict=True)),
            self.spacing,
            origin=tuple(
                -cells * step for cells, step in zip(self.border, self.spacing, strict=True)
            ),
        )
        around = [cells for one in reversed(self.border) for cells in (one, one)]
        context = outside.flatten(pad(grid.unflatten(tokens), around))
        return self.attention(attending, places, context=context, context_grid=outside)

    def extra_repr(self) -> str:
        return f"border={self.border}, spacing={self.spacing}, stride={self.stride}, padding_mode={self.padding_mode!r}"


def attention_from_convolution(
    convolution: nn.Module,
    *,
    precision: float | None = None,
    tolerance: float | None = None,
    dim_head: int | None = None,
    spacing: float | Sequence[float] = 1.0,
) -> BorderedAttention:
    """Convert a convolution to an attention layer with one head for each offset of its kernel.

    Head h attends by position alone, with weights proportional to exp(−α ‖x_j − x_i − Δ_h‖²) around
    its offset Δ_h. The product of its value and output projections is the matrix of the convolution
    at this offset: W_h = O_h V_h. Outputs differ by at most `conversion_error_bound`. Hard heads are
    the limit α → ∞: their weights are exactly 1 and 0, so outputs differ by rounding only. Hard heads
    have no gradient with respect to centers and precisions.

    The layer takes tokens (B, L, D_in) and their grid. A stride becomes a coarser grid of queries,
    circular padding needs a periodic grid, and groups become zeros in W_h.

    Source: Cordonnier et al. 2020, Theorem 1, Lemmas 1 and 2, equation 9.

    >>> import torch, teka
    >>> convolution, images = torch.nn.Conv2d(3, 4, 3, padding=1), torch.randn(1, 3, 5, 6)
    >>> layer, grid = teka.convert.attention_from_convolution(convolution), teka.Grid((5, 6))
    >>> output = grid.unflatten(layer(grid.flatten(images), grid))
    >>> torch.allclose(output, convolution(images), atol=1e-5)
    True

    Args:
        convolution: A `torch.nn.Conv1d`, `Conv2d` or `Conv3d` with odd kernel sizes and "zeros" or
            "circular" padding that keeps the size, except for the stride.
        precision: Precision α > 0 in units of length⁻². By default heads are hard, as with `math.inf`.
        tolerance: Largest error as a share of the largest possible output, max|x| · max_o Σ|W_o|.
            Selects the precision, instead of `precision`.
        dim_head: Size of a head, at least the rank of every matrix W_h. Default: min(D_in, D_out).
        spacing: Distance between neighboring cells of the grid, one for all axes or one for each.

    Raises:
        ValueError: An unsupported convolution, both a precision and a tolerance, or a head that is
            too small.
    """
    convolution = check_same_convolution(convolution)
    weight = convolution.weight.detach()
    num_out, num_in, sides = convolution.out_channels, convolution.in_channels, weight.shape[2:]
    spacing = cell_spacing(spacing, len(sides))
    if precision is not None and tolerance is not None:
        raise wrong_argument("precision and tolerance", "both", "at most one of the two")
    if tolerance is not None:
        precision = precision_for_tolerance(tolerance, spacing)
    precision = math.inf if precision is None else precision
    check_precision(precision)
    dim_head = min(num_in, num_out) if dim_head is None else dim_head
    check_sizes({"dim_head": dim_head})
    values, outputs = factor_matrices(
        offset_matrices(convolution), dim_head, epsilon=torch.finfo(weight.dtype).eps
    )

    heads, width = values.shape[:2]
    relative = RelativeKernel("quadratic", num_axes=len(sides), heads=heads)
    options = {"dim_head": dim_head, "context_dim": num_in, "qkv_bias": False}
    attention = Attention(num_out, heads, kernel="constant", relative=relative, **options).to(
        weight
    )
    reach = window_reach(convolution)
    steps = tuple(one * step for one, step in zip(convolution.dilation, spacing, strict=True))
    first = tuple(-cells * step for cells, step in zip(reach, spacing, strict=True))
    with torch.no_grad():
        relative.center.copy_(
            Grid(tuple(sides), steps, origin=first).positions(dtype=torch.float64)
        )
        # From the hard one on, a larger precision changes nothing.
        size = torch.tensor(min(precision, hard_precision(spacing)), dtype=torch.float64)
        relative.raw_precision.copy_(inverse_softplus(size).expand(heads))
        if not relative.raw_precision.isfinite().all():
            raise wrong_value(
                "precision",
                float(size),
                f"a number that {weight.dtype} can hold; widen the spacing",
            )
        # What a head has beyond its factors keeps its first values, times 0 in the output, so that it can be trained.
        assert attention.value is not None
        attention.value.weight.unflatten(0, (heads, dim_head))[:, :width] = values.to(weight)
        parts = attention.output.weight.zero_().unflatten(1, (heads, dim_head))
        parts[..., :width] = outputs.transpose(0, 1).to(weight)
        if convolution.bias is None:
            attention.output.bias.zero_()
        else:
            attention.output.bias.copy_(convolution.bias)
    options = {"stride": convolution.stride, "padding_mode": convolution.padding_mode}
    return BorderedAttention(attention, reach, spacing, **options).train(convolution.training)


@dataclass(frozen=True)
class HeadOffset:
    """Where a head looks."""

    offset: tuple[
        int, ...
    ]  # the offset with the largest weight, key less query, in cells along each axis
    share: float  # its share of the weights of all offsets up to the grid's sides: the least that a query gives it


def head_offsets(attention: Attention, grid: Grid) -> tuple[HeadOffset, ...]:
    """Return the offset with the largest weight for each head, and the share of this weight.

    On a periodic axis, the offset is the shorter one of both directions.

    >>> import torch, teka
    >>> layer = teka.convert.attention_from_convolution(torch.nn.Conv1d(1, 1, 3, padding=1))
    >>> [head.offset for head in teka.convert.head_offsets(layer.attention, teka.Grid(8))]
    [(-1,), (0,), (1,)]

    Args:
        attention: Layer that attends by position alone.
        grid: Grid of its tokens.

    Returns:
        Offset and share of each head.

    Raises:
        ValueError: The layer depends on content, a head has no relative kernel, or the relative kernel
            depends on the query.
    """
    if not isinstance(grid, Grid):
        raise wrong_value("grid", grid, "a teka.Grid")
    check_instance("attention", attention, Attention)
    if attention.query is not None or attention.key is not None:
        came = (
            f"{attention.content_heads} heads that look at content, or a relative kernel that does"
        )
        raise wrong_value("attention", came, "attention by position alone, kernel='constant'")
    if attention.position_heads:
        raise wrong_value(
            "attention.position_heads",
            attention.position_heads,
            "0, for a relative kernel in every head",
        )
    relative = None if attention.relative is None else attention.relative()
    if not isinstance(relative, StationaryRelative):
        name = None if relative is None else relative.name
        raise wrong_value(
            "attention.relative", name, "a relative kernel of the offset alone, such as 'quadratic'"
        )
    heads = attention.heads
    relative.check_compatibility(
        heads=heads, dim=attention.dim_head, num_axes=grid.num_axes, kernel=Constant()
    )
    relative = relative.adapt_to_positions(Positions(grid))
    assert isinstance(relative, StationaryRelative)
    device = attention.output.weight.device
    # Offsets δ = x_j − x_i between cells are themselves a grid.
    axes = list(zip(grid.shape, grid.periodic, strict=True))
    sides = tuple(side if periodic else 2 * side + 1 for side, periodic in axes)
    lowest = tuple(-(side // 2) if periodic else -side for side, periodic in axes)
    first = tuple(cells * step for cells, step in zip(lowest, grid.spacing, strict=True))
    away = Grid(sides, grid.spacing, origin=first).positions(dtype=torch.float64, device=device)
    with torch.no_grad():
        shares, places = torch.softmax(relative.log_at(-away), dim=-1).max(dim=-1)
    cells = zip(*(one.tolist() for one in torch.unravel_index(places, sides)), strict=True)
    offsets = [
        tuple(cell + least for cell, least in zip(one, lowest, strict=True)) for one in cells
    ]
    return tuple(HeadOffset(*one) for one in zip(offsets, shares.tolist(), strict=True))


def convolution_from_attention(
    attention: Attention | BorderedAttention, grid: Grid, *, least_share: float = 0.99
) -> Convolution:
    """Convert attention by position alone to a convolution, if every head attends to one offset.

    The weight at offset Δ is Σ O_h V_h over the heads h that attend to Δ. The window is the smallest
    odd window with all offsets. Its padding is zero, or circular on a periodic grid. For queries whose
    heads attend inside the grid, outputs differ by at most 2 (1 − share) max|x| · Σ_h |O_h V_h|. At the
    edges, plain attention moves the weight of a head to the cells inside, and `BorderedAttention`
    finds zeros there, like the convolution. Dropout is ignored.

    Source: Cordonnier et al. 2020, Lemma 1, in the opposite direction.

    >>> import torch, teka
    >>> convolution, grid = torch.nn.Conv2d(3, 4, 3, padding=1), teka.Grid((5, 6))
    >>> layer = teka.convert.attention_from_convolution(convolution)
    >>> again = teka.convert.convolution_from_attention(layer, grid)
    >>> torch.allclose(again.weight, convolution.weight, atol=1e-6)
    True

    Args:
        attention: Layer, from `attention_from_convolution` or trained.
        grid: Grid of its tokens, with one to three axes.
        least_share: Smallest share of a head's weight, above ½, at one offset; see `HeadOffset`.

    Raises:
        ValueError: A layer that depends on content, is causal, or has a gate or a value convolution; a
            head below `least_share` or with an offset outside the grid; or an unsuitable grid.
    """
    layer = attention.attention if isinstance(attention, BorderedAttention) else attention
    check_instance("attention", layer, Attention)
    if not is_number(least_share) or not 0.5 < least_share <= 1:
        raise wrong_value("least_share", least_share, "above 0.5 and at most 1")
    if not isinstance(grid, Grid) or grid.num_axes not in CONVOLUTION_MODULES:
        raise wrong_value("grid", grid, "a teka.Grid of one to three axes")
    if len(set(grid.periodic)) > 1:
        raise wrong_value("grid", grid, "edges along all axes or along none")
    for name in ("causal", "gate", "value_convolution"):
        if getattr(layer, name):
            raise wrong_value(f"attention.{name}", True, "a layer without it")
    found = head_offsets(layer, grid)
    for head, one in enumerate(found):
        if not one.share >= least_share:
            expected = f"at least {least_share:g} at one offset; its largest is at {one.offset}, key less query"
            raise wrong_value(f"the share of head {head}", float(f"{one.share:.4g}"), expected)
        if any(abs(cells) >= side for cells, side in zip(one.offset, grid.shape, strict=True)):
            raise wrong_value(
                f"the offset of head {head}", one.offset, f"one between two cells of {grid.shape}"
            )
    along = list(zip(*(one.offset for one in found), strict=True))
    dilation = tuple(max(1, math.gcd(*cells)) for cells in along)
    reach = tuple(max(map(abs, cells)) for cells in along)
    middle = tuple(cells // step for cells, step in zip(reach, dilation, strict=True))
    outputs = layer.output.weight.detach().double()
    convolution = CONVOLUTION_MODULES[grid.num_axes](
        layer.context_dim,
        layer.dim,
        tuple(2 * cells + 1 for cells in middle),
        padding=reach,
        dilation=dilation,
        stride=attention.stride if isinstance(attention, BorderedAttention) else 1,
        padding_mode="circular" if grid.periodic[0] else "zeros",
    ).to(layer.output.weight)
    by_head = outputs.unflatten(1, (layer.heads, -1)).transpose(0, 1)
    # A layer whose values are the tokens themselves has its matrices in the output map.
    if layer.value is not None:
        by_head = by_head @ layer.value.weight.detach().double().unflatten(0, (layer.heads, -1))
    matrices = torch.zeros_like(convolution.weight, dtype=torch.float64)
    for one, matrix in zip(found, by_head, strict=True):
        place = (
            cells // step + half
            for cells, step, half in zip(one.offset, dilation, middle, strict=True)
        )
        matrices[(..., *place)] += matrix
    bias = layer.output.bias.detach().double()
    if layer.value is not None and layer.value.bias is not None:
        bias = bias + outputs @ layer.value.bias.detach().double()
    with torch.no_grad():
        convolution.weight.copy_(matrices)
        assert convolution.bias is not None
        convolution.bias.copy_(bias)
    return convolution.train(layer.training)
