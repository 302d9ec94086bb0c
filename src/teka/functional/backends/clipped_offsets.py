"""Sums over the bins of a relative kernel of the signed offset, clipped to −k … k along every axis of a grid."""

import itertools
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from teka._compat import replace
from teka.functional.backends import (
    BYTES,
    LOWEST_LOG_SCALE,
    Cost,
    FeatureInputs,
    WeightedSums,
    with_ones,
)
from teka.functional.backends.feature_chunks import contract, outer_product, sum_over_features
from teka.functional.backends.linear import causal_rings
from teka.functional.backends.rings import shift, sum_beyond
from teka.functional.shapes import Cells, Channels, Features, RingWeights
from teka.grid import Grid

# log c of every offset −k … k along every axis.
LogBins = Float[Tensor, "batch heads tokens axes entries"]


def bins_cost(grid: Grid, num_features: int, dim_value: int, max_distance: int) -> Cost:
    """Return the cost of pair products for (2k − 1)ⁿ near bins, and of sums of φ(k) ⊗ [v, 1] for the others."""
    num_near = (2 * max_distance - 1) ** grid.num_axes
    num_far = (2 * max_distance + 1) ** grid.num_axes - num_near
    near = num_near * (num_features + dim_value + 1)
    far = num_far * num_features * (dim_value + 1)
    # Measured on two axes: every addition writes a tensor, and is recomputed in the backward pass.
    passes = 3 if grid.num_axes == 1 else 27
    return Cost(grid.num_tokens * (near + far), grid.num_tokens * (near + 2 * far) * passes * BYTES)


def line_sums(log_entries: RingWeights, tokens: FeatureInputs, grid: Grid) -> WeightedSums:
    """Return the sums over bins on a line by two causal passes: the past with the token itself, then the future."""
    max_distance = log_entries.shape[-1] // 2
    log_future = log_entries[..., : max_distance + 1].flip(-1)
    # The past already counts the token itself. Its weight is finite, so that differences are not NaN.
    own = torch.full_like(log_future[..., :1], LOWEST_LOG_SCALE)
    log_future = torch.cat([own, log_future[..., 1:]], dim=-1)
    names = ("query", "query_features", "key_features", "value")
    reversed_tensors = {name: getattr(tokens, name).flip(2) for name in names}
    key_mask = None if tokens.key_mask is None else tokens.key_mask.flip(1)
    reversed_tokens = replace(tokens, **reversed_tensors, key_mask=key_mask)
    future = causal_rings(log_future.flip(2), reversed_tokens, grid)
    assert future.log_peak is not None
    future = WeightedSums(
        future.numerator.flip(2), future.denominator.flip(2), future.log_peak.flip(2)
    )
    return causal_rings(log_entries[..., max_distance:], tokens, grid) + future


def bin_sums(log_bins: LogBins, tokens: FeatureInputs, grid: Grid) -> WeightedSums:
    """Return Σ_b c_ib φ(q_i)ᵀR_b(i) over the bins b ∈ {−k, …, k}ⁿ.

    R_b(i) = Σ φ(k_j) ⊗ [v_j, 1] over the keys whose clipped offset from i is b. The largest c_ib of a row is taken
    over bins that hold a kept key. Empty bins have weight 0, so that rounding errors are not amplified.
    """
    value = with_ones(tokens.value)
    max_distance = log_bins.shape[-1] // 2
    if tokens.key_mask is None:
        counts = torch.ones_like(value[:1, :1, :, :1])
    else:
        counts = tokens.key_mask[:, None, :, None].to(value)
    counts = [cells for _, cells in _bins(counts.unflatten(2, grid.shape), grid, max_distance)]
    is_filled = torch.cat(counts, dim=-1).flatten(2, 1 + grid.num_axes) > 0.5
    log_all = log_bins[..., 0, :]
    for axis in range(1, grid.num_axes):
        log_all = (log_all[..., :, None] + log_bins[..., axis, None, :]).flatten(-2)
    log_peak = log_all.detach().masked_fill(~is_filled, -torch.inf).amax(dim=-1)
    log_peak = log_peak.masked_fill(log_peak == -torch.inf, 0.0)
    weights = torch.exp((log_all - log_peak[..., None]).masked_fill(~is_filled, -torch.inf))
    features = (tokens.query_features, tokens.key_features)
    near = _near_bins(*features, value, weights, grid)
    num_far = weights.shape[-1] - (2 * max_distance - 1) ** grid.num_axes
    far = sum_over_features(_far_bins, *features, value, weights, grid, copies=num_far)
    return WeightedSums.of_channels(near + far, log_peak)


def _near_bins(
    query_features: Features, key_features: Features, value: Channels, weights: Tensor, grid: Grid
) -> Channels:
    """Return the sums over bins that hold a single cell, from products of each query with the key there."""
    query, key, value = (
        tensor.unflatten(2, grid.shape) for tensor in (query_features, key_features, value)
    )
    max_distance = _max_distance(weights, grid)
    offsets = itertools.product(*[range(-max_distance, max_distance + 1)] * grid.num_axes)
    total = torch.zeros_like(value)
    for offset, weight in zip(offsets, weights.unflatten(2, grid.shape).unbind(-1), strict=True):
        if any(abs(step) == max_distance for step in offset):
            continue
        key_there, value_there = key, value
        for axis, step in enumerate(offset):
            key_there = _cell_at(key_there, step, grid, axis)
            value_there = _cell_at(value_there, step, grid, axis)
        total = total + (weight * (query * key_there).sum(dim=-1))[..., None] * value_there
    return total.flatten(2, 1 + grid.num_axes)


def _far_bins(
    query_features: Features, key_features: Features, value: Channels, weights: Tensor, grid: Grid
) -> Channels:
    """Return the sums over bins that are unbounded along some axis."""
    maps = outer_product(key_features, value).unflatten(2, grid.shape)
    bins = _bins(maps, grid, _max_distance(weights, grid))
    total = torch.zeros_like(value)
    for weight, (is_far, cells) in zip(weights.unbind(-1), bins, strict=True):
        if is_far:
            cells = cells.flatten(2, 1 + grid.num_axes)
            total = total + weight[..., None] * contract(query_features, cells)
    return total


def _max_distance(weights: Tensor, grid: Grid) -> int:
    return round(weights.shape[-1] ** (1 / grid.num_axes)) // 2


def _bins(
    cells: Cells, grid: Grid, max_distance: int, axis: int = 0
) -> Iterator[tuple[bool, Cells]]:
    """Yield for every bin, the last axis fastest, whether it is unbounded along any axis, and its sums."""
    if axis == grid.num_axes:
        yield False, cells
        return
    for step in range(-max_distance, max_distance + 1):
        is_end = abs(step) == max_distance
        if is_end:
            along = sum_beyond(cells, step, 2 + axis, periodic=grid.periodic[axis])
        else:
            along = _cell_at(cells, step, grid, axis)
        for is_far, sums in _bins(along, grid, max_distance, axis + 1):
            yield is_end or is_far, sums


def _cell_at(cells: Cells, step: int, grid: Grid, axis: int) -> Cells:
    """Return at cell i what is at i − step; 0 if there is no such cell, or a shorter way to it round the axis."""
    side, periodic = grid.shape[axis], grid.periodic[axis]
    if periodic and not -(side // 2) <= step <= (side - 1) // 2:
        return torch.zeros_like(cells)
    return shift(cells, step, 2 + axis, periodic=periodic)
