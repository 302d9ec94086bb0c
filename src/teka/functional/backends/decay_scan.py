"""Linear attention whose weights decay exponentially with the distance between query and key."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from teka.functional.backends.attention_sums import (
    LOWEST_LOG_SCALE,
    AttentionFeatures,
    LinearAttentionInputs,
    WeightedSums,
    append_ones,
)
from teka.functional.backends.feature_chunks import (
    compute_numerators,
    outer_product,
    sum_over_features,
)
from teka.functional.backends.linear import causal_attention_sums
from teka.functional.shapes import Channels, Features
from teka.grid import Grid

# Cells of an axis that are summed by one matrix. A scan passes the sums from block to block.
BLOCK = 16
# Rate r of the decay exp(−r) from a cell to the next.
Rate = Float[Tensor, "heads"]


def causal_decay_attention_sums(tokens: LinearAttentionInputs, rate: Rate) -> WeightedSums:
    """Compute causal linear attention in which the weights of old tokens decay exponentially.

    The weight of key j for query i is multiplied by exp(−rate · (i − j)). Each head has its own
    rate.

    Source: Sun et al. 2023 (RetNet), the chunkwise form.
    """
    log_scale = tokens.log_scale
    if tokens.key_mask is not None:
        log_scale = torch.zeros_like(tokens.value[..., 0]) if log_scale is None else log_scale
        log_scale = log_scale.masked_fill(~tokens.key_mask[:, None], LOWEST_LOG_SCALE)
    query, key = AttentionFeatures(tokens.query_features), AttentionFeatures(tokens.key_features)
    return causal_attention_sums(query, key, tokens.value, log_scale, rate)


def bidirectional_decay_attention_sums(tokens: LinearAttentionInputs, rate: Rate) -> WeightedSums:
    """Compute bidirectional linear attention whose weights decay exponentially with the distance.

    The weight of key j for query i is multiplied by exp(−rate · |i − j|). The result is the sum of
    a forward pass and a backward pass over the sequence. Both passes include the token itself, so
    its contribution is subtracted once.
    """
    query, key, value = tokens.query_features, tokens.key_features, tokens.value
    past = causal_attention_sums(AttentionFeatures(query), AttentionFeatures(key), value, rate=rate)
    reversed_query, reversed_key = AttentionFeatures(query.flip(2)), AttentionFeatures(key.flip(2))
    future = causal_attention_sums(reversed_query, reversed_key, value.flip(2), rate=rate)
    own = (query * key).sum(dim=-1)
    numerator = past.numerator + future.numerator.flip(2) - own[..., None] * value
    return WeightedSums(numerator, past.denominator + future.denominator.flip(2) - own)


def grid_decay_attention_sums(
    tokens: LinearAttentionInputs, rates: Sequence[Rate], grid: Grid
) -> WeightedSums:
    """Compute linear attention on an image or volume, with weights that decay along every axis.

    The weight of a key is multiplied by one factor exp(−rate · distance) for each axis. The axes
    are processed one after another, so the cost is linear in the number of tokens.
    """
    features = (tokens.query_features, tokens.key_features)
    sums = sum_over_features(_scan_axes, *features, append_ones(tokens.value), grid.shape, *rates)
    return WeightedSums.from_channels(sums)


def _scan_axes(
    query_features: Features,
    key_features: Features,
    value: Channels,
    shape: tuple[int, ...],
    *rates: Rate,
) -> Channels:
    maps = outer_product(key_features, value).unflatten(2, shape)
    for axis, rate in enumerate(rates):
        maps = decayed_sums(maps.movedim(2 + axis, 2), rate).movedim(2, 2 + axis)
    return compute_numerators(query_features, maps.flatten(2, 1 + len(shape)))


def decayed_sums(
    cells: Float[Tensor, "batch heads side *rest"], rate: Rate
) -> Float[Tensor, "batch heads side *rest"]:
    """Sum all vectors x_j along the third dimension, with weights that decay with the distance.

    The sum at position i is Σ_j exp(−rate · |i − j|) x_j.
    """
    flat = cells.flatten(3)
    if flat.shape[2] <= 2 * BLOCK:
        index = _indices(flat.shape[2], rate)
        matrix = torch.exp(-rate[:, None, None] * (index[:, None] - index).abs())
        return (matrix @ flat).reshape(cells.shape)
    before = _sum_earlier_cells(flat, rate)
    after = _sum_earlier_cells(flat.flip(2), rate).flip(2)
    return (flat + torch.exp(-rate)[:, None, None] * (before + after)).reshape(cells.shape)


def _sum_earlier_cells(
    cells: Float[Tensor, "batch heads side size"], rate: Rate
) -> Float[Tensor, "batch heads side size"]:
    """Return the decaying sum of the vectors at all earlier positions along an axis.

    The sum at position i is Σ_{j < i} exp(−rate · (i − 1 − j)) · cells[j]. Sums within a block of
    positions are matrix products. The sums of whole blocks are accumulated recursively.
    """
    side = cells.shape[2]
    length = side if side <= 2 * BLOCK else BLOCK
    index = _indices(length, rate)
    steps = (index[:, None] - index - 1).clamp_min(0.0)
    matrix = torch.exp(-rate[:, None, None] * steps).tril(-1)
    if length == side:
        return matrix @ cells
    num_blocks = -(-side // BLOCK)
    blocks = pad(cells, (0, 0, 0, num_blocks * BLOCK - side)).unflatten(2, (num_blocks, BLOCK))
    decay = torch.exp(-rate[:, None] * index)[:, None]
    block_sums = (decay.flip(-1)[:, None] @ blocks)[..., 0, :]
    from_blocks = _sum_earlier_cells(block_sums, rate * BLOCK)
    sums = matrix[:, None] @ blocks + decay.mT[:, None] * from_blocks[..., None, :]
    return sums.flatten(2, 3)[:, :, :side]


def _indices(length: int, like: Tensor) -> Float[Tensor, "length"]:
    return torch.arange(length, dtype=like.dtype, device=like.device)
