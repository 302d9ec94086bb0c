"""The FFT backend: any relative kernel that does not look at the query, between grids of one spacing."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from teka._compat import in_float64, replace
from teka.functional.backends import (
    BYTES,
    Cost,
    FeatureInputs,
    WeightedSums,
    checkpointed,
    rows_of,
    with_ones,
)
from teka.functional.shapes import RowTerm
from teka.grid import Grid

# Numbers of φ ⊗ [v, 1] that are transformed at once: 64 MiB in float64, in which all of this is computed.
CHUNK_ELEMENTS = 2**23
# Share of a row's sum that rounding may make up; rows of which it may be more are computed again, pair by pair.
TOLERANCE = {torch.float32: 1e-7, torch.float64: 1e-11}


def fft_cost(query: Grid, key: Grid, num_features: int, dim_value: int) -> Cost:
    """A transform and its inverse of φ ⊗ [v, 1] in float64, about 2.5 n log₂ n multiply-adds each."""
    axes = zip(query.shape, key.shape, query.periodic, strict=True)
    sizes = [one if periodic else one + two - 1 for one, two, periodic in axes]
    size = math.prod(sizes) * num_features * (dim_value + 1)
    transforms = 2 * 2.5 * math.log2(max(2, math.prod(sizes)))
    return Cost(int(2 * size * transforms), size * 2 * BYTES * (4 + 2 * len(sizes)))


def fft_fits(query: Grid, key: Grid) -> bool:
    """Whether offsets between the two grids are those of one grid: both have one spacing along every axis."""
    return all(
        abs(one - two) <= 1e-9 * two for one, two in zip(query.spacing, key.spacing, strict=True)
    )


def fft(
    tokens: FeatureInputs,
    grids: tuple[Grid, Grid],
    log_at: Callable[[Tensor], Tensor],
    log_rows: RowTerm,
) -> WeightedSums:
    """Σ_j φ(q_i)ᵀφ(k_j) c(x_i − x_j) [v_j, 1] as a convolution over the grid, O(L · log L · m · d) work.

    A transform errs by a share of the largest sum, and not of each: rows far from where c is large are found by their
    denominators and made again from every pair, for which `log_rows` gives log c in float64.
    """
    like = tokens.value
    parts = ("query_features", "key_features", "value")
    tokens = replace(tokens, **{name: in_float64(getattr(tokens, name)) for name in parts})
    query_features, key_features, channels = (
        tokens.query_features,
        tokens.key_features,
        with_ones(tokens.value),
    )
    log_table, sizes = _offset_table(log_at, *grids, channels)
    log_peak = log_table.flatten(1).amax(dim=-1).detach()
    table = torch.exp(log_table - log_peak.reshape(-1, *[1] * len(sizes)))
    spectrum = torch.fft.rfftn(table, dim=tuple(range(1, table.ndim)))
    shapes = (grids[0].shape, grids[1].shape)
    num_features = key_features.shape[-1]
    chunk = CHUNK_ELEMENTS // max(1, channels.numel() * math.prod(sizes) // math.prod(shapes[1]))
    chunk = max(1, min(num_features, chunk))
    convolved = channels.new_zeros(())
    for start in range(0, num_features, chunk):
        features = slice(start, start + chunk)
        arguments = (
            query_features[..., features],
            key_features[..., features],
            channels,
            spectrum,
            sizes,
            shapes,
        )
        part = (
            checkpointed(_convolve, *arguments) if chunk < num_features else _convolve(*arguments)
        )
        convolved = convolved + part
    sums = WeightedSums.of_channels(convolved, log_peak[None, :, None])
    with torch.no_grad():
        # Rounding of each row's denominator is at most ε log₂ n times the norms of what is convolved.
        epsilon = torch.finfo(table.dtype).eps * max(1.0, math.log2(table[0].numel()))
        norms = key_features.norm(dim=2) * table.flatten(1).norm(dim=-1)[:, None]
        noise = epsilon * (query_features.abs() @ norms[..., None])[..., 0]
        rows = rows_of(noise > TOLERANCE[like.dtype] * sums.denominator.abs())
    sums = sums.with_rows_again(rows, log_rows, tokens)
    assert sums.log_peak is not None
    return WeightedSums(sums.numerator.to(like), sums.denominator.to(like), sums.log_peak.to(like))


def _offset_table(
    log_at: Callable[[Tensor], Tensor], query: Grid, key: Grid, like: Tensor
) -> tuple[Float[Tensor, "heads *sizes"], list[int]]:
    """log c at every offset between two cells, offset t of an axis at place t modulo its size; and the sizes."""
    sizes, offsets, occurs = [], [], []
    for axis in range(query.num_axes):
        sides = query.shape[axis], key.shape[axis]
        size = sides[1] if query.periodic[axis] else fast_length(sides[0] + sides[1] - 1)
        steps = torch.arange(size, device=like.device)
        steps = torch.where(steps < sides[0], steps, steps - size).to(like)
        shift = query.origin[axis] - key.origin[axis]
        sizes.append(size)
        occurs.append((steps < sides[0]) & (steps > -sides[1]))
        offsets.append(query.wrap_axis(axis, steps * query.spacing[axis] + shift))
    log_table = log_at(torch.stack(torch.meshgrid(*offsets, indexing="ij"), dim=-1))
    # What the padding has beyond the offsets that occur must not count as the largest c.
    every = torch.stack(torch.meshgrid(*occurs, indexing="ij")).all(dim=0)
    return log_table.masked_fill(~every, -torch.inf), sizes


def fast_length(least: int) -> int:
    """The least such number without prime factors but 2, 3 and 5: other transforms take many times as long."""
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
    query_features: Tensor,
    key_features: Tensor,
    value: Tensor,
    spectrum: Tensor,
    sizes: list[int],
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
) -> Float[Tensor, "batch heads queries channels"]:
    tensor = (
        (key_features[..., :, None] * value[..., None, :]).movedim(2, -1).unflatten(-1, shapes[1])
    )
    axes, batch = tuple(range(4, tensor.ndim)), len(tensor)
    if batch == 0:  # which torch transforms not
        tensor = torch.cat([tensor, tensor.new_zeros(1, *tensor.shape[1:])])
    product = torch.fft.rfftn(tensor, s=sizes, dim=axes) * spectrum[:, None, None]
    mixed = torch.fft.irfftn(product, s=sizes, dim=axes)[:batch]
    for axis, side in zip(axes, shapes[0], strict=True):
        mixed = mixed.narrow(axis, 0, side)
    mixed = mixed.flatten(-len(sizes)).movedim(-1, 2)
    return (query_features[..., None, :] @ mixed)[..., 0, :]
