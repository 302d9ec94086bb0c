"""Attention whose heads have become hard as the convolution that it computes."""

import math

import torch

from teka.convert.head_offset import head_offsets
from teka.convert.same_convolution import CONVOLUTIONS, Convolution
from teka.convert.zero_bordered import ZeroBordered
from teka.errors import wrong_value
from teka.grid import Grid
from teka.nn import Attention


def convolution_from_attention(
    attention: Attention | ZeroBordered, grid: Grid, *, least_share: float = 0.99
) -> Convolution:
    """The convolution that attention by position alone computes once every head looks at one offset.

    W_Δ = Σ O_h V_h over the heads that look at Δ, and its bias is that of the output and O_h times those of the values.
    The window is the smallest odd one that holds all offsets, dilated by what they have in common along each axis. For
    queries that see the places of all heads, outputs differ by at most 2 (1 − share) max|x| · Σ_h |O_h V_h| of a
    channel. Where a head looks over the edge of the grid the convolution finds 0: so does a `ZeroBordered` layer, and
    plain attention gives that weight to the cells inside. Dropout is left out.

    Source: Cordonnier et al. 2020, Lemma 1, read from right to left.

    Args:
        attention: The layer, such as `attention_from_convolution` gives, or one that was trained.
        grid: The grid it is used on, of one to three axes.
        least_share: Share of its weight, above ½, that each head has to give to one offset; see `HeadOffset`.

    Returns:
        A torch.nn.Conv1d, Conv2d or Conv3d with zero padding, in the layer's dtype and on its device.

    Raises:
        ValueError: A layer that looks at content, is causal, or has a gate or a value convolution; a head that is not
            hard or looks beyond the grid, with its number and share; a grid without edges or of other axes.
    """
    layer = attention.attention if isinstance(attention, ZeroBordered) else attention
    if not 0.5 < least_share <= 1:
        raise wrong_value("least_share", least_share, "above 0.5 and at most 1")
    if grid.num_axes not in CONVOLUTIONS:
        raise wrong_value("grid", grid, "one to three axes")
    for argument, given in (
        ("attention.causal", layer.causal),
        ("attention.gate", layer.gate is not None),
        ("attention.value_convolution", layer.value_convolution is not None),
    ):
        if given:
            raise wrong_value(argument, given, "a layer without it")
    found = head_offsets(layer, grid)
    for head, one in enumerate(found):
        if not one.share >= least_share:
            expected = f"at least {least_share:g} at one offset; its largest is at {one.offset}, key less query"
            raise wrong_value(f"the share of head {head}", float(f"{one.share:.4g}"), expected)
        if any(abs(cells) >= side for cells, side in zip(one.offset, grid.shape, strict=True)):
            raise wrong_value(f"the offset of head {head}", one.offset, f"one between two cells of {grid.shape}")
    along = list(zip(*(one.offset for one in found), strict=True))
    dilation = tuple(max(1, math.gcd(*cells)) for cells in along)
    reach = tuple(max(map(abs, cells)) for cells in along)
    middle = tuple(cells // step for cells, step in zip(reach, dilation, strict=True))
    outputs = layer.output.weight.detach().double()
    convolution = CONVOLUTIONS[grid.num_axes](
        layer.context_dim, layer.dim, tuple(2 * cells + 1 for cells in middle), padding=reach, dilation=dilation
    ).to(layer.output.weight)
    by_head = outputs.unflatten(1, (layer.heads, -1)).transpose(0, 1)
    # A layer whose values are the tokens themselves has its matrices in the output map.
    if layer.value is not None:
        by_head = by_head @ layer.value.weight.detach().double().unflatten(0, (layer.heads, -1))
    matrices = torch.zeros_like(convolution.weight, dtype=torch.float64)
    for one, matrix in zip(found, by_head, strict=True):
        place = (cells // step + half for cells, step, half in zip(one.offset, dilation, middle, strict=True))
        matrices[(..., *place)] += matrix
    bias = layer.output.bias.detach().double()
    if layer.value is not None and layer.value.bias is not None:
        bias = bias + outputs @ layer.value.bias.detach().double()
    with torch.no_grad():
        convolution.weight.copy_(matrices)
        assert convolution.bias is not None
        convolution.bias.copy_(bias)
    return convolution.train(layer.training)
