"""Conversion of convolutions to attention layers and back (Cordonnier et al. 2020)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from teka.checks import check_dense_tensor, check_instance, check_number, check_sizes
from teka.convert.convolutions import (
    HARD_PRECISION,
    Convolution,
    check_supported_convolution,
    compute_kernel_radius,
    factor_matrices,
    off_center_weight,
    split_weight_by_offset,
)
from teka.errors import wrong_argument, wrong_value
from teka.functional import Constant
from teka.functional.positions import Positions
from teka.functional.relative.stationary import StationaryRelativeKernel
from teka.grid import Grid
from teka.nn import Attention, LearnedRelativeKernel
from teka.nn.local_conv import CONVOLUTION_MODULES
from teka.nn.relative import inverse_softplus


class BorderedAttention(nn.Module):
    """Attention layer with the stride and the zero padding of a convolution.

    `attention_from_convolution` returns this layer. Its attention weights depend only on the
    positions of the tokens, not on their content.

    - Stride: there is one query at every s-th position of the grid, where s is the stride.
    - Padding: the keys are the tokens of the grid and a border of zero tokens around it. Without a
      border, a head that attends to a position outside the grid would attend to the nearest tokens
      inside. A periodic grid needs no border, because its opposite edges meet.
    - Distances are counted in tokens, so that the spacing of the grid has no effect.

    Args:
        attention: Attention by position alone, with kernel="constant".
        stride: Step between queries along each axis.
        border: Number of border cells along each axis, or None for periodic grids.

    Raises:
        ValueError: The attention depends on content, or a number is out of range.

    Source: Cordonnier et al. 2020, Theorem 1.
    """

    def __init__(
        self, attention: Attention, stride: Sequence[int], border: Sequence[int] | None
    ) -> None:
        super().__init__()
        _check_ignores_content(attention)
        self.attention = attention
        self.stride = tuple(stride)
        self.border = None if border is None else tuple(border)
        check_sizes({f"stride[{axis}]": step for axis, step in enumerate(self.stride)})
        check_sizes({f"border[{axis}]": size for axis, size in enumerate(self.border or ())}, 0)

    def output_grid(self, grid: Grid) -> Grid:
        """Return the grid of the output tokens: every s-th position of the input grid."""
        axes = list(zip(grid.shape, grid.spacing, self.stride, strict=True))
        sides = tuple(-(-side // step) for side, _, step in axes)
        spacing = tuple(distance * step for _, distance, step in axes)
        return Grid(sides, spacing, grid.periodic, grid.origin)

    def forward(
        self, tokens: Float[Tensor, "batch tokens context"], grid: Grid
    ) -> Float[Tensor, "batch outputs dim"]:
        """Return the output tokens, one for each position of `output_grid(grid)`.

        Args:
            tokens: Tokens on the grid.
            grid: Grid that is periodic if the layer has no border, and has edges otherwise. The
                stride must divide the sides of a periodic grid.

        Raises:
            ValueError: The tokens do not fit the layer and the grid, or the grid has other edges.
        """
        check_dense_tensor("tokens", tokens, "batch", "tokens", self.attention.context_dim)
        num_axes = len(self.stride)
        is_periodic = self.border is None
        if not isinstance(grid, Grid) or grid.periodic != (is_periodic,) * num_axes:
            edges = "that is periodic" if is_periodic else "with edges"
            raise wrong_value("grid", grid, f"a grid of {num_axes} axes {edges}")
        if is_periodic and any(
            side % step for side, step in zip(grid.shape, self.stride, strict=True)
        ):
            raise wrong_value("grid.shape", grid.shape, f"multiples of the stride {self.stride}")
        # Positions start at 0, where rounding is smallest. Only differences matter.
        cells = Grid(grid.shape, 1.0, grid.periodic)
        query_grid = self.output_grid(cells)
        # The outputs depend on the number of queries but not on their values.
        queries = tokens.new_zeros(1).expand(len(tokens), query_grid.num_tokens, self.attention.dim)
        border = self.border or (0,) * num_axes
        margins = [size for size in reversed(border) for _ in range(2)]
        padded = pad(cells.unflatten(tokens), margins)
        padded_grid = Grid(
            tuple(padded.shape[2:]), 1.0, grid.periodic, [-float(size) for size in border]
        )
        return self.attention(
            queries, query_grid, context=padded_grid.flatten(padded), context_grid=padded_grid
        )

    def extra_repr(self) -> str:
        return f"stride={self.stride}, border={self.border}"


def _check_ignores_content(attention: Attention) -> None:
    """Raise an error if the attention weights of a layer depend on the content of the tokens."""
    check_instance("attention", attention, Attention)
    if attention.query is not None or attention.key is not None:
        raise wrong_argument(
            "attention",
            "a layer that depends on the content",
            "attention by position alone, kernel='constant'",
        )


def attention_from_convolution(
    convolution: nn.Module, *, precision: float = math.inf, dim_head: int | None = None
) -> BorderedAttention:
    """Convert a convolution to an attention layer that has one head for each kernel position.

    Head h attends to the token at one offset Δ_h from the query: the attention weight of a key at
    the offset δ is proportional to exp(−α ‖δ − Δ_h‖²), with lengths in cells. The value projection
    V_h and the output projection O_h of the head are factors of the convolution's matrix at this
    offset, W_h = O_h V_h. Tokens outside the grid are zero.

    By default, the heads are hard: the precision α is so large that each head attends to exactly
    one token, with the weights 1 and 0 in floating point. The layer then differs from the
    convolution only by rounding, and the gradients of centers and precisions are 0. With a smaller
    α, the difference is at most `conversion_error_bound`.

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
        precision: Precision α > 0, see `precision_for_tolerance`. By default, each head attends to
            exactly one token.
        dim_head: Size D_h of a head, at least the rank of every W_h and at most min(D_in, D_out),
            which is the default.

    Raises:
        ValueError: The convolution is not supported, or an option is out of range.

    Source: Cordonnier et al. 2020, Theorem 1, Lemmas 1 and 2, equation 9.
    """
    convolution = check_supported_convolution(convolution)
    weight = convolution.weight.detach()
    num_out = convolution.out_channels
    num_in = convolution.in_channels
    kernel_size = convolution.kernel_size
    off_center_weight(precision, len(kernel_size))  # checks the precision
    full_size = min(num_in, num_out)
    dim_head = full_size if dim_head is None else dim_head
    check_sizes({"dim_head": dim_head}, most=full_size)
    matrices = split_weight_by_offset(convolution)
    tolerance = torch.finfo(weight.dtype).eps * max(num_in, num_out)
    rank = int(torch.linalg.matrix_rank(matrices, rtol=tolerance).max())
    if rank > dim_head:
        raise wrong_value(
            "dim_head",
            dim_head,
            f"at least {rank}, the rank of the weights",
            "teka.convert.low_rank_convolution returns the nearest convolution of a lower rank.",
        )
    values, outputs = factor_matrices(matrices, dim_head)

    heads = len(values)
    relative = LearnedRelativeKernel("quadratic", num_axes=len(kernel_size), heads=heads)
    attention = Attention(
        num_out,
        heads,
        kernel="constant",
        relative=relative,
        dim_head=dim_head,
        context_dim=num_in,
        qkv_bias=False,
    ).to(weight)
    reach = compute_kernel_radius(convolution)
    steps = [float(cells) for cells in convolution.dilation]
    offsets = Grid(kernel_size, steps, origin=[-float(cells) for cells in reach]).positions()
    # A larger precision than that of hard heads changes nothing.
    raw_precision = inverse_softplus(torch.tensor(min(precision, HARD_PRECISION)).double())
    with torch.no_grad():
        relative.center.copy_(offsets)
        relative.raw_precision.fill_(raw_precision)
        assert attention.value is not None
        attention.value.weight.copy_(values.flatten(0, 1))
        attention.output.weight.copy_(outputs.transpose(0, 1).flatten(1))
        attention.output.bias.zero_()
        if convolution.bias is not None:
            attention.output.bias.copy_(convolution.bias)
    return BorderedAttention(
        attention, convolution.stride, None if convolution.padding_mode == "circular" else reach
    ).train(convolution.training)


class HeadOffset(NamedTuple):
    """Offset at which an attention head has its largest attention weight.

    Attributes:
        offset: Position of the key minus position of the query, in cells along each axis.
        share: Weight at this offset, divided by the sum of the weights at all possible offsets on
            the grid. Each query gives at least this share of its attention to the key at this
            offset, if there is one.
    """

    offset: tuple[int, ...]
    share: float


def head_offsets(attention: Attention, grid: Grid) -> tuple[HeadOffset, ...]:
    """Return the offset from query to key at which each head has its largest attention weight.

    The attention weights must depend only on positions. On a periodic grid, the offset is the
    shorter way around.

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
    check_instance("grid", grid, Grid)
    _check_ignores_content(attention)
    if attention.position_heads:
        raise wrong_value(
            "attention.position_heads",
            attention.position_heads,
            "0, for a relative kernel in every head",
        )
    relative = None if attention.relative is None else attention.relative()
    if not isinstance(relative, StationaryRelativeKernel):
        raise wrong_value(
            "attention.relative",
            None if relative is None else relative.name,
            "a relative kernel that depends only on the offset, such as 'quadratic'",
        )
    relative.check_kernel_and_positions(
        heads=attention.heads, dim=attention.dim_head, num_axes=grid.num_axes, kernel=Constant()
    )
    relative = relative.adapt_to_positions(Positions(grid))
    assert isinstance(relative, StationaryRelativeKernel)
    # The offsets between cells form another grid.
    axes = list(zip(grid.shape, grid.periodic, strict=True))
    sides = tuple(side if periodic else 2 * side + 1 for side, periodic in axes)
    origin = [-float(side // 2 if periodic else side) for side, periodic in axes]
    cells = Grid(sides, origin=origin).positions(
        dtype=torch.float64, device=attention.output.weight.device
    )
    offsets = cells * cells.new_tensor(grid.spacing)
    with torch.no_grad():
        shares, indices = torch.softmax(relative.log_weight_at(-offsets), dim=-1).max(dim=-1)
    heads = zip(cells[indices].long().tolist(), shares.tolist(), strict=True)
    return tuple(HeadOffset(tuple(offset), share) for offset, share in heads)


def convolution_from_attention(
    attention: Attention | BorderedAttention, grid: Grid, *, least_share: float = 0.99
) -> Convolution:
    """Convert an attention layer to a convolution, if each of its heads attends to one offset.

    - The convolution matrix at the offset Δ is W_Δ = Σ O_h V_h, summed over the heads with this
      offset. O_h is the output projection of a head, and V_h is its value projection.
    - The kernel is the smallest kernel of odd sizes that contains all offsets, without dilation.
    - The padding is circular on a periodic grid and zero otherwise.
    - The stride is taken from a `BorderedAttention` and is otherwise 1. Dropout is ignored.

    In the interior of the grid, the outputs of both layers differ by at most
    2 (1 − share) max|x| · Σ_h |O_h V_h| per channel. At the edges, an attention layer without a
    border differs more, because it attends to cells inside the grid where the convolution reads
    zeros.

    >>> import torch, teka
    >>> convolution, grid = torch.nn.Conv2d(3, 4, 3, padding=1), teka.Grid((5, 6))
    >>> layer = teka.convert.attention_from_convolution(convolution)
    >>> again = teka.convert.convolution_from_attention(layer, grid)
    >>> torch.allclose(again.weight, convolution.weight, atol=1e-6)
    True

    Args:
        attention: Trained attention layer, or the result of `attention_from_convolution`.
        grid: Grid of the tokens, with one to three axes.
        least_share: Smallest share of its weight, above ½, that each head must give to one offset;
            see `HeadOffset`.

    Raises:
        ValueError: The layer depends on content, is causal, or has a gate or a value convolution. A
            head has no offset with this share, or its offset exceeds the grid. The grid has
            other axes, or only some of its axes are periodic.

    Source: Cordonnier et al. 2020, Lemma 1, read from right to left.
    """
    check_number(
        "least_share", least_share, "above 0.5 and at most 1", low=0.5, high=1, exclude=(0.5,)
    )
    if not isinstance(grid, Grid) or grid.num_axes not in CONVOLUTION_MODULES:
        raise wrong_value("grid", grid, "a teka.Grid of one to three axes")
    if len(set(grid.periodic)) > 1:
        raise wrong_value("grid", grid, "periodic along all axes or along none")
    if isinstance(attention, BorderedAttention):
        layer = attention.attention
        stride = attention.stride
        grid = Grid(grid.shape, 1.0, grid.periodic)
    else:
        layer = attention
        stride = 1
    heads = head_offsets(layer, grid)
    for name in ("causal", "gate", "value_convolution"):
        if getattr(layer, name):
            hint = "A convolution cannot compute it."
            raise wrong_value(f"attention.{name}", True, "None or False", hint)
    for index, head in enumerate(heads):
        if not head.share >= least_share:
            share = float(f"{head.share:.4g}")
            raise wrong_value(
                f"the largest attention weight of head {index}",
                share,
                f"at least {least_share:g}",
                f"It is at the offset {head.offset} from query to key.",
            )
        if any(abs(cells) >= side for cells, side in zip(head.offset, grid.shape, strict=True)):
            raise wrong_value(
                f"the offset of head {index}",
                head.offset,
                f"an offset between two cells of a grid of shape {grid.shape}",
            )

    offsets = torch.tensor([head.offset for head in heads])
    reach = offsets.abs().amax(dim=0)
    convolution = CONVOLUTION_MODULES[grid.num_axes](
        layer.context_dim,
        layer.dim,
        (2 * reach + 1).tolist(),
        padding=reach.tolist(),
        stride=stride,
        padding_mode="circular" if grid.periodic[0] else "zeros",
    ).to(layer.output.weight)
    weight = torch.zeros_like(convolution.weight, dtype=torch.float64)
    with torch.no_grad():
        outputs = layer.output.weight.double()
        bias = layer.output.bias.double()
        head_matrices = outputs.unflatten(1, (layer.heads, -1)).transpose(0, 1)
        if layer.value is not None:  # otherwise the values are the tokens themselves
            head_matrices = head_matrices @ layer.value.weight.double().unflatten(
                0, (layer.heads, -1)
            )
            if layer.value.bias is not None:
                bias = bias + outputs @ layer.value.bias.double()
        for index, matrix in zip((offsets + reach).tolist(), head_matrices, strict=True):
            weight[(..., *index)] += matrix
        convolution.weight.copy_(weight)
        assert convolution.bias is not None
        convolution.bias.copy_(bias)
    return convolution.train(layer.training)
