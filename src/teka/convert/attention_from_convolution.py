"""A convolution as attention: Theorem 1 of Cordonnier et al. 2020."""

import math
from collections.abc import Sequence

import torch
from torch import nn

from teka.convert.low_rank import factor_matrices
from teka.convert.same_convolution import check_same_convolution, offset_matrices, window_reach
from teka.convert.tolerance import hard_precision, precision_for_tolerance
from teka.convert.zero_bordered import ZeroBordered
from teka.errors import wrong_value
from teka.grid import Grid
from teka.nn import Attention, Quadratic
from teka.nn.relative.initial import inverse_softplus


def attention_from_convolution(
    convolution: nn.Module,
    *,
    precision: float | None = None,
    tolerance: float | None = None,
    dim_head: int | None = None,
    spacing: float | Sequence[float] = 1.0,
) -> ZeroBordered:
    """A layer of attention that computes a convolution: one head for each offset of its kernel.

    Head h attends by position alone, with weights ∝ exp(−α ‖δ − Δ_h‖²), δ = x_j − x_i, about its offset Δ_h, and its
    value and output projections multiply to the convolution's matrix there, W_h = O_h V_h. Outside the grid it finds
    zero tokens. Outputs differ from the convolution's by at most `conversion_error_bound`; hard heads, the limit
    α → ∞, have weights of exactly 1 and 0 in floating point, and differ by rounding alone.

    The layer has its own parameters and may be trained. Of hard heads no gradient reaches centres and precisions, as
    the weights do not change with them.

    Source: Cordonnier et al. 2020, Theorem 1, Lemmas 1 and 2, equation 9.

    Args:
        convolution: A torch.nn.Conv1d, Conv2d or Conv3d of stride 1, of odd sizes, of one group, with zero padding that
            keeps the size; dilated or not, with a bias or without.
        precision: α > 0 in units of length^−2. Without it and without a tolerance, or with math.inf, heads are hard.
        tolerance: Instead of a precision, the error as a share of the largest output that inputs up to max|x| can have,
            max|x| · max_o Σ|W_o|; the precision is the least for which it holds.
        dim_head: Size D_h of a head, min(D_in, D_out) by default, which suffices for every convolution; a smaller one
            for a convolution whose matrices W_h have a rank of at most that.
        spacing: Distance between neighbouring cells of the grids to come, one number or one for each axis.

    Returns:
        The layer; its `attention` is a `teka.nn.Attention`. It takes tokens (B, L, D_in) and their grid.

    Raises:
        ValueError: A convolution that this is not for, both a precision and a tolerance, one that is not positive or
            that the dtype cannot hold, or a dim_head below 1 or below the rank of a W_h.
    """
    convolution = check_same_convolution(convolution)
    weight = convolution.weight.detach()
    num_out, num_in, *sides = weight.shape
    spacing = Grid((1,) * len(sides), spacing).spacing
    if precision is not None and tolerance is not None:
        raise wrong_value("precision and tolerance", "both", "at most one of the two")
    if tolerance is not None:
        precision = precision_for_tolerance(tolerance, spacing)
    precision = math.inf if precision is None else precision
    if not precision > 0:
        raise wrong_value("precision", precision, "a positive number, or math.inf")
    dim_head = min(num_in, num_out) if dim_head is None else dim_head
    if dim_head < 1:
        raise wrong_value("dim_head", dim_head, "at least 1")
    values, outputs = factor_matrices(offset_matrices(convolution), dim_head, epsilon=torch.finfo(weight.dtype).eps)

    heads, width = values.shape[:2]
    relative = Quadratic(len(sides), heads)
    attention = Attention(
        num_out,
        heads,
        dim_head=dim_head,
        kernel="constant",
        relative=relative,
        context_dim=num_in,
        qkv_bias=False,
        num_axes=len(sides),
    ).to(weight)
    reach = window_reach(convolution)
    steps = tuple(one * step for one, step in zip(convolution.dilation, spacing, strict=True))
    first = tuple(-cells * step for cells, step in zip(reach, spacing, strict=True))
    with torch.no_grad():
        relative.center.copy_(Grid(tuple(sides), steps, origin=first).positions(dtype=torch.float64))
        # From the hard one on, a larger precision changes nothing.
        size = torch.tensor(min(precision, hard_precision(spacing)), dtype=torch.float64)
        relative.raw_precision.copy_(inverse_softplus(size).expand(heads))
        if not relative.raw_precision.isfinite().all():
            raise wrong_value("precision", float(size), f"a number that {weight.dtype} can hold; widen the spacing")
        # What a head has beyond its factors keeps its first values, times 0 in the output, so that it can be trained.
        assert attention.value is not None
        attention.value.weight.unflatten(0, (heads, dim_head))[:, :width] = values.to(weight)
        parts = attention.output.weight.zero_().unflatten(1, (heads, dim_head))
        parts[..., :width] = outputs.transpose(0, 1).to(weight)
        if convolution.bias is None:
            attention.output.bias.zero_()
        else:
            attention.output.bias.copy_(convolution.bias)
    return ZeroBordered(attention, reach, spacing).train(convolution.training)
