"""Sums that decay with the distance along every axis, by scans: each cell takes on what its neighbour has, times λ."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from teka._compat import records_graph, replace
from teka.functional.backends import (
    BYTES,
    LOWEST_LOG_SCALE,
    Cost,
    FeatureInputs,
    WeightedSums,
    checkpointed,
    with_ones,
)
from teka.functional.backends.linear import (
    CHUNK_ELEMENTS,
    DecodingState,
    Sizes,
    causal_linear,
    causal_step,
    left_by,
    linear_cost,
)
from teka.functional.shapes import Channels, Features
from teka.grid import Grid

BLOCK = 16  # cells of an axis that are summed by one matrix; between blocks their sums are scanned
Rate = Float[Tensor, "heads"]  # of decay from a cell to the next


def decay_cost(sizes: Sizes, grid: Grid) -> Cost:
    """Two causal passes along a line; on more axes φ ⊗ [v, 1] in blocks, read and written some times an axis."""
    if grid.num_axes == 1:
        cost = linear_cost(replace(sizes, is_causal=True))
        passes = 1 if sizes.is_causal else 2
        return Cost(passes * cost.multiply_adds, passes * cost.bytes)
    numbers = sizes.num_keys * sizes.num_features * (sizes.dim_value + 1)
    multiply_adds = sum(min(side, 3 * BLOCK) for side in grid.shape) * numbers
    return Cost(multiply_adds + 2 * numbers, 6 * grid.num_axes * numbers * BYTES)


def causal_decay(tokens: FeatureInputs, rate: Rate) -> WeightedSums:
    """Σ_{j ≤ i} φ(q_i)ᵀφ(k_j) exp(s_j − r (i − j)) [v_j, 1] along a line (Sun et al. 2023, chunkwise form)."""
    log_scale = tokens.log_scale
    if tokens.key_mask is not None:
        log_scale = torch.zeros_like(tokens.value[..., 0]) if log_scale is None else log_scale
        log_scale = log_scale.masked_fill(~tokens.key_mask[:, None], LOWEST_LOG_SCALE)
    return causal_linear(
        tokens.query_features, tokens.key_features, log_scale, tokens.value, rate=rate
    )


def decay_step(
    tokens: FeatureInputs, state: DecodingState | None, rate: Rate
) -> tuple[WeightedSums, DecodingState]:
    """The sums of one more token, for which all that was has decayed once, and what it leaves."""
    total = left_by(state, "total", tokens.key_features, tokens.value)
    total = replace(total, log_peak=total.log_peak - rate)
    features = (tokens.query_features, tokens.key_features, tokens.log_scale)
    sums, total = causal_step(*features, with_ones(tokens.value), total)
    return WeightedSums.of_channels(sums), DecodingState(0, total)


def line_decay(tokens: FeatureInputs, rate: Rate) -> WeightedSums:
    """Σ_j φ(q_i)ᵀφ(k_j) exp(−r |i − j|) [v_j, 1]: from the left, from the right, less the token itself."""
    query, key, value = tokens.query_features, tokens.key_features, tokens.value
    ahead = causal_linear(query, key, None, value, rate=rate)
    behind = causal_linear(query.flip(2), key.flip(2), None, value.flip(2), rate=rate)
    own = (query * key).sum(dim=-1)
    numerator = ahead.numerator + behind.numerator.flip(2) - own[..., None] * value
    return WeightedSums(numerator, ahead.denominator + behind.denominator.flip(2) - own)


def grid_decay(tokens: FeatureInputs, rates: Sequence[Rate], grid: Grid) -> WeightedSums:
    """Σ_j φ(q_i)ᵀφ(k_j) Π_a exp(−r_a |i_a − j_a|) [v_j, 1], with φ(k) ⊗ [v, 1] of a few features at a time."""
    value, query, key = with_ones(tokens.value), tokens.query_features, tokens.key_features
    # A graph that is recorded is for any number of samples.
    num_samples = 1 if records_graph() else value.shape[0]
    size = max(1, CHUNK_ELEMENTS // max(1, num_samples * value.shape[1:].numel()))
    parts = zip(query.split(size, dim=-1), key.split(size, dim=-1), strict=True)
    sums = [checkpointed(_scanned, *part, value, grid.shape, *rates) for part in parts]
    return WeightedSums.of_channels(sum(sums[1:], sums[0]))


def _scanned(
    query: Features, key: Features, value: Channels, shape: tuple[int, ...], *rates: Rate
) -> Channels:
    maps = (key[..., :, None] * value[..., None, :]).unflatten(2, shape)
    for axis, rate in enumerate(rates):
        maps = scan(maps.movedim(2 + axis, 2), rate).movedim(2, 2 + axis)
    maps = maps.flatten(2, 1 + len(shape))
    return (query[..., None, :] @ maps)[..., 0, :]


def scan(
    cells: Float[Tensor, "batch heads side *rest"], rate: Rate
) -> Float[Tensor, "batch heads side *rest"]:
    """Σ_j exp(−r |i − j|) x_j along an axis."""
    flat = cells.flatten(3)
    if flat.shape[2] <= 2 * BLOCK:
        place = _places(flat.shape[2], rate)
        matrix = torch.exp(-rate[:, None, None] * (place[:, None] - place).abs())
        return (matrix @ flat).reshape(cells.shape)
    arrived = _arrived(flat, rate) + _arrived(flat.flip(2), rate).flip(2)
    return (flat + torch.exp(-rate)[:, None, None] * arrived).reshape(cells.shape)


def _arrived(
    cells: Float[Tensor, "batch heads side size"], rate: Rate
) -> Float[Tensor, "batch heads side size"]:
    """Σ_{j<i} exp(−r (i − 1 − j)) x_j: by a matrix within blocks, and likewise from what every block leaves."""
    side = cells.shape[2]
    length = side if side <= 2 * BLOCK else BLOCK
    place = _places(length, rate)
    steps = (place[:, None] - place - 1).clamp_min(0.0)
    matrix = torch.exp(-rate[:, None, None] * steps).tril(-1)
    if length == side:
        return matrix @ cells
    num_blocks = -(-side // BLOCK)
    blocks = pad(cells, (0, 0, 0, num_blocks * BLOCK - side)).unflatten(2, (num_blocks, BLOCK))
    fading = torch.exp(-rate[:, None] * place)[:, None]
    left = (fading.flip(-1)[:, None] @ blocks)[..., 0, :]
    before = _arrived(left, rate * BLOCK)
    return (matrix[:, None] @ blocks + fading.mT[:, None] * before[..., None, :]).flatten(2, 3)[
        :, :, :side
    ]


def _places(side: int, like: Tensor) -> Float[Tensor, "side"]:
    return torch.arange(side, dtype=like.dtype, device=like.device)
