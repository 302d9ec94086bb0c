"""Sums over the bins of a kernel of the signed offset, clipped along each axis: one of a cell, or of all beyond."""

import itertools
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from teka._compat import replace
from teka.functional.backends import (
    BYTES,
    LOWEST_LOG_SCALE,
    Cost,
    FeatureInputs,
    WeightedSums,
    checkpointed,
    with_ones,
)
from teka.functional.backends.linear import CHUNK_ELEMENTS, causal_rings
from teka.functional.shapes import Cells, Channels, Features, RingWeights
from teka.grid import Grid

LogBins = Float[
    Tensor, "batch heads tokens axes entries"
]  # log c of an offset along one axis, −k … k


def bins_cost(grid: Grid, num_features: int, dim_value: int, reach: int) -> Cost:
    """A product of pairs for each of (2k − 1)ⁿ offsets, and φ ⊗ [v, 1] moved and weighed for bins with a far end."""
    inner = (2 * reach - 1) ** grid.num_axes
    outer = (2 * reach + 1) ** grid.num_axes - inner
    near, far = inner * (num_features + dim_value + 1), outer * num_features * (dim_value + 1)
    # Measured on two axes: every addition writes a tensor of its own, and is made again in the backward pass.
    passes = 3 if grid.num_axes == 1 else 27
    return Cost(grid.num_tokens * (near + far), grid.num_tokens * (near + 2 * far) * passes * BYTES)


def line_sums(log_entries: RingWeights, tokens: FeatureInputs, grid: Grid) -> WeightedSums:
    """`bin_sums` on a line, by rings: those of a token and what is before it, and from the other end what is after."""
    reach = log_entries.shape[-1] // 2
    log_after = log_entries[..., : reach + 1].flip(-1)
    # The token itself is counted once: finite, for a difference with what is not there.
    log_after = torch.cat(
        [torch.full_like(log_after[..., :1], LOWEST_LOG_SCALE), log_after[..., 1:]], dim=-1
    )
    names = ("query", "query_features", "key_features", "value")
    flipped = {name: getattr(tokens, name).flip(2) for name in names}
    key_mask = None if tokens.key_mask is None else tokens.key_mask.flip(1)
    after = causal_rings(log_after.flip(2), replace(tokens, **flipped, key_mask=key_mask), grid)
    assert after.log_peak is not None
    after = WeightedSums(after.numerator.flip(2), after.denominator.flip(2), after.log_peak.flip(2))
    return causal_rings(log_entries[..., reach:], tokens, grid) + after


def bin_sums(log_bins: LogBins, tokens: FeatureInputs, grid: Grid) -> WeightedSums:
    """Σ_b c_ib φ(q_i)ᵀR_b(i) over bins b in {−k, …, k}ⁿ, R_b(i) = Σ φ(k_j) ⊗ [v_j, 1] of the keys in bin b about i.

    A row's largest c_ib is over the bins that hold a kept key; others count for nothing, so no rounding is amplified.
    """
    query, key, value = tokens.query_features, tokens.key_features, with_ones(tokens.value)
    reach = log_bins.shape[-1] // 2
    keep = (
        torch.ones_like(value[:1, :1, :, :1])
        if tokens.key_mask is None
        else tokens.key_mask[:, None, :, None]
    )
    counts = [part for _, part in _bins(keep.to(value).unflatten(2, grid.shape), grid, reach)]
    filled = (
        torch.stack(counts, dim=-1).flatten(2, 1 + grid.num_axes)[..., 0, :] > 0.5
    )  # whole numbers, and so exact
    log_all = log_bins[..., 0, :]
    for axis in range(1, grid.num_axes):
        log_all = (log_all[..., :, None] + log_bins[..., axis, None, :]).flatten(-2)
    log_peak = log_all.detach().masked_fill(~filled, -torch.inf).amax(dim=-1)
    log_peak = log_peak.masked_fill(log_peak == -torch.inf, 0.0)
    weights = torch.exp((log_all - log_peak[..., None]).masked_fill(~filled, -torch.inf))
    near, far = [], []
    for place, offset in enumerate(itertools.product(*[range(-reach, reach + 1)] * grid.num_axes)):
        (far if any(abs(step) == reach for step in offset) else near).append(place)
    sums = checkpointed(_near, weights[..., near], query, key, value, grid, reach)
    size = max(1, CHUNK_ELEMENTS // max(1, value.numel()))
    for one, other in zip(query.split(size, dim=-1), key.split(size, dim=-1), strict=True):
        sums = sums + checkpointed(_far, weights[..., far], one, other, value, grid, reach)
    return WeightedSums.of_channels(sums, log_peak)


def _near(
    weights: Tensor, query: Features, key: Features, value: Channels, grid: Grid, reach: int
) -> Channels:
    """The bins of one cell each, from the product of each query with the key there."""
    query, key, value = (one.unflatten(2, grid.shape) for one in (query, key, value))
    offsets = itertools.product(*[range(1 - reach, reach)] * grid.num_axes)
    total = torch.zeros_like(value)
    for offset, weight in zip(offsets, weights.unflatten(2, grid.shape).unbind(-1), strict=True):
        key_there, value_there = key, value
        for axis, step in enumerate(offset):
            key_there = _moved(key_there, step, 2 + axis, periodic=grid.periodic[axis])
            value_there = _moved(value_there, step, 2 + axis, periodic=grid.periodic[axis])
        total = total + (weight * (query * key_there).sum(dim=-1))[..., None] * value_there
    return total.flatten(2, 1 + grid.num_axes)


def _far(
    weights: Tensor, query: Features, key: Features, value: Channels, grid: Grid, reach: int
) -> Channels:
    """The bins with a far end along some axis, from sums of φ(k) ⊗ [v, 1]."""
    maps = (key[..., :, None] * value[..., None, :]).flatten(-2).unflatten(2, grid.shape)
    parts = (part for is_far, part in _bins(maps, grid, reach) if is_far)
    total = torch.zeros_like(value)
    for weight, part in zip(weights.unbind(-1), parts, strict=True):
        mixed = part.flatten(2, 1 + grid.num_axes).unflatten(-1, (key.shape[-1], -1))
        total = total + ((weight[..., None] * query)[..., None, :] @ mixed)[..., 0, :]
    return total


def _bins(cells: Cells, grid: Grid, reach: int, axis: int = 0) -> Iterator[tuple[bool, Cells]]:
    """The sums of cells over every bin, the last axis fastest, and whether a bin has a far end along any axis."""
    if axis == grid.num_axes:
        yield False, cells
        return
    dim, periodic = 2 + axis, grid.periodic[axis]
    for step in range(-reach, reach + 1):
        is_end = abs(step) == reach
        part = (
            _beyond(cells, step, dim, periodic=periodic)
            if is_end
            else _moved(cells, step, dim, periodic=periodic)
        )
        for is_far, inner in _bins(part, grid, reach, axis + 1):
            yield is_end or is_far, inner


def _moved(cells: Cells, step: int, dim: int, *, periodic: bool) -> Cells:
    """At cell i what was at i − step, which on a torus is that many steps away the shorter way round; 0 for nothing."""
    side = cells.shape[dim]
    if step == 0:
        return cells
    if periodic:
        return (
            cells.roll(step, dim)
            if -(side // 2) <= step <= (side - 1) // 2
            else torch.zeros_like(cells)
        )
    if abs(step) >= side:
        return torch.zeros_like(cells)
    kept = cells.narrow(dim, max(-step, 0), side - abs(step))
    before_and_after = (step, 0) if step > 0 else (0, -step)
    return pad(kept, (0, 0) * (cells.ndim - 1 - dim) + before_and_after)


def _beyond(cells: Cells, step: int, dim: int, *, periodic: bool) -> Cells:
    """At cell i the sum of all that lie `step` cells before it or farther, or after it if the step is negative."""
    if not periodic:
        sums = cells.cumsum(dim) if step > 0 else cells.flip(dim).cumsum(dim).flip(dim)
        return _moved(sums, step, dim, periodic=False)
    side = cells.shape[dim]
    place = torch.arange(side, device=cells.device)
    away = (place[:, None] - place + side // 2) % side - side // 2
    matrix = (away >= step if step > 0 else away <= step).to(cells)
    return (matrix @ cells.movedim(dim, -2)).movedim(-2, dim)
