"""Linear attention on regular grids, computed as a convolution by FFT (the backend "fft").

The position-dependent weight must be a function of the offset between query and key. Each product
of a key feature and a channel of the values is then convolved with this function over the grid.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from teka._compat import replace
from teka.functional.backends.attention_sums import (
    LinearAttentionInputs,
    WeightedSums,
    append_ones,
    selected_query_indices,
)
from teka.functional.backends.feature_chunks import sum_over_features
from teka.functional.shapes import (
    KeyChannels,
    KeyFeatures,
    QueryChannels,
    QueryFeatures,
    RowFunction,
)
from teka.grid import Grid
from teka.precision import to_float64

# Largest relative rounding error of a row's sum. Rows that may exceed it are recomputed
# from all pairs.
TOLERANCE = {torch.float32: 1e-7, torch.float64: 1e-11}


def have_same_spacing(query_grid: Grid, key_grid: Grid) -> bool:
    """Return True if two grids of tokens have the same distance between neighboring tokens.

    Attention between two grids is a convolution only if this holds for every axis.
    """
    spacings = zip(query_grid.spacing, key_grid.spacing, strict=True)
    return all(abs(query_step - key_step) <= 1e-9 * key_step for query_step, key_step in spacings)


def fft_attention_sums(
    tokens: LinearAttentionInputs,
    grids: tuple[Grid, Grid],
    log_weight_at: Callable[[Tensor], Tensor],
    log_weight_rows: RowFunction,
) -> WeightedSums:
    """Compute linear attention with position-dependent weights as a convolution, by FFT.

    The rounding error of an FFT is proportional to its largest result. Queries with a small
    denominator would therefore be inaccurate, and are computed again from every pair of tokens.

    Args:
        tokens: Features and values.
        grids: Grids of queries and keys.
        log_weight_at: Function that returns log c at the given offsets.
        log_weight_rows: Function that returns log c of some queries and all keys, in float64.
    """
    like = tokens.value
    names = ("query_features", "key_features", "value")
    tokens = replace(tokens, **{name: to_float64(getattr(tokens, name)) for name in names})
    query_features, key_features = tokens.query_features, tokens.key_features
    value = append_ones(tokens.value)
    log_table, sizes = _tabulate_log_weights(log_weight_at, *grids, value)
    log_peak = log_table.flatten(1).amax(dim=-1).detach()
    table = torch.exp(log_table - log_peak.reshape(-1, *[1] * len(sizes)))
    spectrum = torch.fft.rfftn(table, dim=tuple(range(1, table.ndim)))
    padding = -(-math.prod(sizes) // grids[1].num_tokens)
    sums = sum_over_features(
        _convolve, query_features, key_features, value, spectrum, sizes, grids, copies=padding
    )
    sums = WeightedSums.from_channels(sums, log_peak[None, :, None])
    with torch.no_grad():
        # The error of a denominator is at most ε log₂ n times the norms of both factors of the
        # convolution.
        epsilon = torch.finfo(table.dtype).eps * max(1.0, math.log2(table[0].numel()))
        norms = key_features.norm(dim=2) * table.flatten(1).norm(dim=-1)[:, None]
        noise = epsilon * (query_features.abs() @ norms[..., None])[..., 0]
        rows = selected_query_indices(noise > TOLERANCE[like.dtype] * sums.denominator.abs())
    sums = sums.recompute_outputs(rows, tokens, log_weight_rows)
    assert sums.log_peak is not None
    return WeightedSums(sums.numerator.to(like), sums.denominator.to(like), sums.log_peak.to(like))


def _tabulate_log_weights(
    log_weight_at: Callable[[Tensor], Tensor], query_grid: Grid, key_grid: Grid, like: Tensor
) -> tuple[Float[Tensor, "heads *sizes"], list[int]]:
    """Tabulate the log of the position-dependent attention weight for every offset of two grids.

    The table has one entry per offset, in the order that a circular convolution by FFT requires:
    negative offsets are at the end of each axis. The size of the table is returned as well.
    """
    sizes, offsets, occurs = [], [], []
    for axis in range(query_grid.num_axes):
        sides = query_grid.shape[axis], key_grid.shape[axis]
        size = (
            sides[1] if query_grid.periodic[axis] else find_fast_fft_length(sides[0] + sides[1] - 1)
        )
        steps = torch.arange(size, device=like.device)
        steps = torch.where(steps < sides[0], steps, steps - size).to(like)
        shift = query_grid.origin[axis] - key_grid.origin[axis]
        sizes.append(size)
        occurs.append((steps < sides[0]) & (steps > -sides[1]))
        offsets.append(query_grid.wrap_axis(axis, steps * query_grid.spacing[axis] + shift))
    log_table = log_weight_at(torch.stack(torch.meshgrid(*offsets, indexing="ij"), dim=-1))
    # Offsets that exist only in the padding must not determine the largest c.
    occurs = torch.stack(torch.meshgrid(*occurs, indexing="ij")).all(dim=0)
    return log_table.masked_fill(~occurs, -torch.inf), sizes


def find_fast_fft_length(least: int) -> int:
    """Return the smallest length, not below a minimum, for which an FFT is efficient.

    Efficient lengths have no prime factors other than 2, 3 and 5.
    """
    length = least
    while True:
        rest = length
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return length
        length += 1


def _convolve(
    query_features: QueryFeatures,
    key_features: KeyFeatures,
    value: KeyChannels,
    spectrum: Tensor,
    sizes: list[int],
    grids: tuple[Grid, Grid],
) -> QueryChannels:
    maps = key_features[..., :, None] * value[..., None, :]
    maps = maps.movedim(2, -1).unflatten(-1, grids[1].shape)
    dims, batch = tuple(range(4, maps.ndim)), maps.shape[0]
    if batch == 0:  # torch.fft refuses empty tensors
        maps = maps.new_zeros(1, *maps.shape[1:])
    product = torch.fft.rfftn(maps, s=sizes, dim=dims) * spectrum[:, None, None]
    sums = torch.fft.irfftn(product, s=sizes, dim=dims)[:batch]
    for dim, side in zip(dims, grids[0].shape, strict=True):
        sums = sums.narrow(dim, 0, side)
    sums = sums.flatten(-len(sizes)).movedim(-1, 2)
    return (query_features[..., None, :] @ sums)[..., 0, :]
