"""Linear attention with weights that depend on the clipped distance (the backend "rings").

All keys at the same Manhattan distance from a query form a ring. They share one position-dependent
weight, so they are summed first.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from teka._compat import replace
from teka.errors import wrong_value
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
from teka.functional.shapes import Cells, Channels, Features, RingWeights
from teka.grid import Grid


def ring_attention_sums(
    log_rings: RingWeights, tokens: LinearAttentionInputs, grid: Grid
) -> WeightedSums:
    """Compute linear attention with weights that depend on the clipped Manhattan distance.

    All keys at the same distance from a query form a ring and share one position-dependent weight.
    The last ring holds all keys at the maximum distance or more. Rings without unmasked keys have
    weight 0, so that their rounding errors are not amplified.
    """
    key_mask = tokens.key_mask
    if key_mask is None:
        counts = torch.ones_like(tokens.value[:1, :1, :, :1])
    else:
        counts = key_mask[:, None, :, None].to(tokens.value)
    max_distance = log_rings.shape[-1] - 1
    rings_of_counts = ring_sums(counts.unflatten(2, grid.shape), max_distance, grid)
    is_filled = torch.cat(rings_of_counts, dim=-1).flatten(2, 1 + grid.num_axes) > 0.5
    log_peak = log_rings.detach().masked_fill(~is_filled, -torch.inf).amax(dim=-1)
    log_peak = log_peak.masked_fill(~is_filled.any(dim=-1), 0.0)
    weights = torch.exp((log_rings - log_peak[..., None]).masked_fill(~is_filled, -torch.inf))
    features = (tokens.query_features, tokens.key_features)
    sums = sum_over_features(
        _sum_weighted_rings,
        *features,
        append_ones(tokens.value),
        weights,
        grid,
        copies=max_distance + 1,
    )
    return WeightedSums.from_channels(sums, log_peak)


def causal_ring_attention_sums(
    log_rings: RingWeights, tokens: LinearAttentionInputs, grid: Grid
) -> WeightedSums:
    """Compute causal linear attention with weights that depend on the clipped distance.

    Each distance below the maximum has its own weight. All keys at the maximum distance or more
    share one weight, so they are added by ordinary causal linear attention. The result of a token
    is bitwise independent of all later tokens.

    Raises:
        ValueError: The grid has more than one axis, or a periodic axis.
    """
    if grid.num_axes != 1 or grid.periodic[0]:
        raise wrong_value("grid", grid, "a single non-periodic axis for causal attention")
    query_features, key_features, value = tokens.query_features, tokens.key_features, tokens.value
    log_scale = torch.zeros_like(value[..., 0]) if tokens.log_scale is None else tokens.log_scale
    if tokens.key_mask is not None:
        log_scale = log_scale.masked_fill(~tokens.key_mask[:, None], LOWEST_LOG_SCALE)
    max_distance = log_rings.shape[-1] - 1
    num_tokens = value.shape[2]

    # Distant keys are delayed by k tokens.
    far_scale = _shift_log_scale(log_scale, max_distance)
    far_keys, far_values = (
        pad(tensor, (0, 0, max_distance, 0))[:, :, :num_tokens] for tensor in (key_features, value)
    )
    far = causal_attention_sums(
        AttentionFeatures(query_features), AttentionFeatures(far_keys), far_values, far_scale
    )
    assert far.log_peak is not None
    scales = [_shift_log_scale(log_scale, distance) for distance in range(max_distance)]
    scales = torch.stack([*scales, far.log_peak], dim=-1)
    is_filled = scales > 0.5 * LOWEST_LOG_SCALE
    log_factor = (log_rings + scales).masked_fill(~is_filled, -torch.inf)
    log_peak = log_factor.detach().amax(dim=-1)
    log_peak = log_peak.masked_fill(~is_filled.any(dim=-1), LOWEST_LOG_SCALE)
    factor = torch.exp(log_factor - log_peak[..., None])

    numerator = factor[..., -1:] * far.numerator
    denominator = factor[..., -1] * far.denominator
    # The keys at each distance are a view of one padded copy.
    keys, values = (pad(tensor, (0, 0, max_distance - 1, 0)) for tensor in (key_features, value))
    for distance in range(max_distance):
        first = max_distance - 1 - distance
        product = (query_features * keys[:, :, first : first + num_tokens]).sum(dim=-1)
        weight = factor[..., distance] * product
        numerator = numerator + weight[..., None] * values[:, :, first : first + num_tokens]
        denominator = denominator + weight
    return WeightedSums(numerator, denominator, log_peak)


def signed_offset_attention_sums(
    log_entries: RingWeights, tokens: LinearAttentionInputs, grid: Grid
) -> WeightedSums:
    """Compute linear attention on a sequence, with one weight for each signed and clipped offset.

    Keys before and after the query have different weights. A causal pass covers the keys up to each
    query, and a second causal pass over the reversed sequence covers the later keys.

    Args:
        log_entries: log c of the offsets −k … k.
        tokens: Features and values.
        grid: A line that is not periodic.
    """
    max_distance = log_entries.shape[-1] // 2
    log_future = log_entries[..., : max_distance + 1].flip(-1)
    # The past already counts the token itself. Its weight is finite, so that differences are not
    # NaN.
    own = torch.full_like(log_future[..., :1], LOWEST_LOG_SCALE)
    log_future = torch.cat([own, log_future[..., 1:]], dim=-1)
    reversed_tokens = replace(
        tokens,
        query=tokens.query.flip(2),
        query_features=tokens.query_features.flip(2),
        key_features=tokens.key_features.flip(2),
        value=tokens.value.flip(2),
        key_mask=None if tokens.key_mask is None else tokens.key_mask.flip(1),
    )
    future = causal_ring_attention_sums(log_future.flip(2), reversed_tokens, grid)
    assert future.log_peak is not None
    future = WeightedSums(
        future.numerator.flip(2), future.denominator.flip(2), future.log_peak.flip(2)
    )
    return causal_ring_attention_sums(log_entries[..., max_distance:], tokens, grid) + future


def _shift_log_scale(
    log_scale: Float[Tensor, "batch heads tokens"], num_tokens: int
) -> Float[Tensor, "batch heads tokens"]:
    return pad(log_scale, (num_tokens, 0), value=LOWEST_LOG_SCALE)[..., : log_scale.shape[-1]]


def _sum_weighted_rings(
    query_features: Features, key_features: Features, value: Channels, weights: Tensor, grid: Grid
) -> Channels:
    maps = outer_product(key_features, value).unflatten(2, grid.shape)
    ring_weights = weights.unflatten(2, grid.shape)[..., None].unbind(-2)
    total = torch.zeros_like(maps)
    for weight, ring in zip(
        ring_weights, ring_sums(maps, len(ring_weights) - 1, grid), strict=True
    ):
        total = total + weight * ring
    return compute_numerators(query_features, total.flatten(2, 1 + grid.num_axes))


def ring_sums(cells: Cells, max_distance: int, grid: Grid) -> list[Cells]:
    """Return the sum of the vectors at each Manhattan distance from every cell of a grid.

    `cells` contains one vector for each cell. Entry r of the returned list contains the sums at
    distance r, and the last entry those at `max_distance` and beyond. No sum is computed as the
    difference of two others, because it would lose digits. A periodic axis must be longer than 2 ·
    (max_distance − 1) cells.
    """
    zeros = torch.zeros_like(cells)
    near = [cells] + [zeros] * (max_distance - 1)
    # far[j] is the sum at distance j or more, counted along the axes so far; far[0] holds all cells
    # there.
    far = [cells] + [zeros] * max_distance
    for axis in range(grid.num_axes):
        dim, periodic = 2 + axis, grid.periodic[axis]
        near = _add_axis_to_rings(near, dim, periodic=periodic)
        farthest = _one_sided_sums(far[0], max_distance, dim, periodic=periodic)
        beyond = [farthest + _one_sided_sums(far[0], -max_distance, dim, periodic=periodic)]
        for distance in range(max_distance - 1, 0, -1):
            before = _shift_cells(far[0], distance, dim, periodic=periodic)
            after = _shift_cells(far[0], -distance, dim, periodic=periodic)
            beyond.insert(0, beyond[0] + before + after)
        closer = _add_axis_to_rings([zeros, *far[1:]], dim, periodic=periodic)
        sums = [near_sum + far_sum for near_sum, far_sum in zip(closer[1:], beyond, strict=True)]
        far = [far[0].sum(dim=dim, keepdim=True).expand_as(cells), *sums]
    return [*near, far[-1]]


def _add_axis_to_rings(rings: Sequence[Cells], dim: int, *, periodic: bool) -> list[Cells]:
    """Extend the sums over rings by one more axis, where a ring is all cells at one distance.

    Entry r of `rings` contains the sums over the cells at Manhattan distance r along the previous
    axes. A step of length t along the new axis adds t to the distance. The new entry r is therefore
    the sum of the entries r − t of the cells that are t steps away along the new axis.
    """
    sums = [rings[0]]
    after = rings[0]
    before = torch.zeros_like(rings[0])
    for distance in range(1, len(rings)):
        after = rings[distance] + _shift_cells(after, -1, dim, periodic=periodic)
        before = _shift_cells(rings[distance - 1] + before, 1, dim, periodic=periodic)
        sums.append(after + before)
    return sums


def _one_sided_sums(cells: Cells, step: int, dim: int, *, periodic: bool) -> Cells:
    """Return, for each cell along an axis, the sum of the cells on one side of it.

    A positive `step` selects the cells that are at least `step` cells before it, and a negative one
    the cells that are at least −`step` cells after it. On a periodic axis, the shorter way around
    decides whether a cell is before or after. If both ways are equally long, the cell is after.
    """
    if not periodic:
        sums = cells.cumsum(dim) if step > 0 else cells.flip(dim).cumsum(dim).flip(dim)
        return _shift_cells(sums, step, dim, periodic=False)
    side = cells.shape[dim]
    sign = 1 if step > 0 else -1
    farthest = (side - 1) // 2 if step > 0 else side // 2
    length = farthest - abs(step) + 1
    # A window of any length is made of sums of 1, 2, 4, … neighbors.
    total, block, size = torch.zeros_like(cells), cells, 1
    while size <= length:
        if length & size:
            total = total + _shift_cells(block, step, dim, periodic=True)
            step += sign * size
        block = block + _shift_cells(block, sign * size, dim, periodic=True)
        size *= 2
    return total


def _shift_cells(cells: Cells, step: int, dim: int, *, periodic: bool) -> Cells:
    """Shift a tensor along a dimension by some steps.

    A periodic dimension is rolled. Otherwise, zeros are shifted in.
    """
    side = cells.shape[dim]
    if periodic:
        return cells.roll(step, dim)
    if abs(step) >= side:
        return torch.zeros_like(cells)
    kept = cells.narrow(dim, max(-step, 0), side - abs(step))
    before_and_after = (step, 0) if step > 0 else (0, -step)
    return pad(kept, (0, 0) * (cells.ndim - 1 - dim) + before_and_after)
