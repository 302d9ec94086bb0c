"""The FFT backend: any relative kernel that does not look at the query, between grids of one spacing."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from teka.functional.backend.sums import Sums, with_ones
from teka.functional.placement import Placement
from teka.functional.relative import StationaryRelative

# Numbers of φ ⊗ [v, 1] that are transformed at once: 64 MiB in float64, in which all of this is computed.
CHUNK_ELEMENTS = 2**23
# Share of a row's sum that rounding may make up; rows of which it may be more are computed again, pair by pair.
TOLERANCE = {torch.float32: 1e-7, torch.float64: 1e-11}


def fft_fits(placement: Placement) -> bool:
    """Whether offsets between the two grids are those of one grid: both have one spacing along every axis."""
    if placement.grids is None:
        return False
    query, key = placement.grids
    return all(abs(one - two) <= 1e-9 * two for one, two in zip(query.spacing, key.spacing, strict=True))


def fft(
    query_features: Float[Tensor, "batch heads queries features"],
    key_features: Float[Tensor, "batch heads keys features"],
    value: Float[Tensor, "batch heads keys dim_value"],
    relative: StationaryRelative,
    placement: Placement,
) -> Sums:
    """Σ_j φ(q_i)ᵀφ(k_j) c(x_i − x_j) [v_j, 1] as a convolution over the grid, O(L · log L · m · d) work.

    c is laid out at the offsets between the grids' cells, circularly along a periodic axis and padded by zeros along a
    bounded one, and multiplies the transform of T_j = φ(k_j) ⊗ [v_j, 1]. A transform errs by a share of the largest
    sum, and not of each: a row far from where c is large may have a sum of no more than that. Such rows are found by
    their denominators and computed again from every pair.
    """
    dtype = value.dtype
    value = with_ones(value).double()
    query_features, key_features = query_features.double(), key_features.double()
    log_table, sizes, index = _offset_table(relative, placement, value)
    log_peak = log_table.flatten(1).amax(dim=-1).detach()
    table = torch.exp(log_table - log_peak.reshape(-1, *[1] * len(sizes)))
    spectrum = torch.fft.rfftn(table, dim=_axes(table, placement.num_axes))
    assert placement.grids is not None
    shapes = (placement.grids[0].shape, placement.grids[1].shape)
    num_features = key_features.shape[-1]
    chunk = max(1, min(num_features, CHUNK_ELEMENTS // (value.numel() * math.prod(sizes) // math.prod(shapes[1]))))
    sums = torch.zeros((), dtype=value.dtype, device=value.device)
    for start in range(0, num_features, chunk):
        features = slice(start, start + chunk)
        arguments = (query_features[..., features], key_features[..., features], value, spectrum)
        recompute = chunk < num_features and torch.is_grad_enabled()
        if recompute:
            sums = sums + checkpoint(_convolve, *arguments, sizes, shapes, use_reentrant=False)
        else:
            sums = sums + _convolve(*arguments, sizes, shapes)
    with torch.no_grad():
        noise = _noise(query_features, key_features, table)
        rows = (noise > TOLERANCE[dtype] * sums[..., -1].abs()).flatten(0, 1).any(dim=0).nonzero().flatten()
    if len(rows):
        log_rows = log_table.flatten(1)[:, index(rows)]
        row_peak = log_rows.detach().amax(dim=-1)
        pairs = query_features[:, :, rows] @ key_features.transpose(-2, -1)
        again = (pairs * torch.exp(log_rows - row_peak[..., None])) @ value
        sums = sums.index_copy(2, rows, again)
        log_peak = log_peak[:, None].expand(-1, sums.shape[2]).index_copy(1, rows, row_peak)
    else:
        log_peak = log_peak[:, None]
    sums = sums.to(dtype)
    return Sums(sums[..., :-1], sums[..., -1], log_peak[None].to(dtype))


def _offset_table(relative: StationaryRelative, placement: Placement, like: Tensor):  # noqa: ANN202
    """log c at every offset between two cells, offset t of an axis at place t modulo its size; the sizes; the place of
    every pair of some rows."""
    assert placement.grids is not None
    query, key = placement.grids
    sizes, offsets = [], []
    for axis in range(query.num_axes):
        sides = query.shape[axis], key.shape[axis]
        size = sides[1] if query.periodic[axis] else sides[0] + sides[1] - 1
        steps = torch.arange(size, device=like.device)
        steps = torch.where(steps < sides[0], steps, steps - size).to(like)
        shift = query.origin[axis] - key.origin[axis]
        sizes.append(size)
        offsets.append(query.wrap_axis(axis, steps * query.spacing[axis] + shift))
    grid = torch.stack(torch.meshgrid(*offsets, indexing="ij"), dim=-1)

    def index(rows: Int[Tensor, "rows"]) -> Int[Tensor, "rows keys"]:
        place = torch.zeros((), dtype=torch.long, device=like.device)
        cells = torch.arange(key.num_tokens, device=like.device)
        for axis, size in enumerate(sizes):
            here, there = (
                torch.div(numbers, math.prod(one.shape[axis + 1 :]), rounding_mode="floor") % one.shape[axis]
                for numbers, one in ((rows, query), (cells, key))
            )
            place = place * size + (here[:, None] - there[None, :]) % size
        return place

    return relative.log_at(grid), sizes, index


def _axes(tensor: Tensor, num_axes: int) -> tuple[int, ...]:
    return tuple(range(tensor.ndim - num_axes, tensor.ndim))


def _convolve(
    query_features: Float[Tensor, "batch heads queries features"],
    key_features: Float[Tensor, "batch heads keys features"],
    value: Float[Tensor, "batch heads keys channels"],
    spectrum: Tensor,
    sizes: list[int],
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
) -> Float[Tensor, "batch heads queries channels"]:
    """The part of the sums that comes from some of the features."""
    tensor = (key_features[..., :, None] * value[..., None, :]).movedim(2, -1).unflatten(-1, shapes[1])
    axes = _axes(tensor, len(sizes))
    product = torch.fft.rfftn(tensor, s=sizes, dim=axes) * spectrum[:, None, None]
    mixed = torch.fft.irfftn(product, s=sizes, dim=axes)
    for axis, side in zip(axes, shapes[0], strict=True):
        mixed = mixed.narrow(axis, 0, side)
    mixed = mixed.flatten(-len(sizes)).movedim(-1, 2)
    return (query_features[..., None, :] @ mixed)[..., 0, :]


def _noise(
    query_features: Float[Tensor, "batch heads queries features"],
    key_features: Float[Tensor, "batch heads keys features"],
    table: Float[Tensor, "heads *offsets"],
) -> Float[Tensor, "batch heads queries"]:
    """Bound of the rounding of each row's denominator: ε log₂ n times the norms of what is convolved."""
    epsilon = torch.finfo(table.dtype).eps * max(1.0, math.log2(table[0].numel()))
    norms = key_features.norm(dim=2) * table.flatten(1).norm(dim=-1)[:, None]
    return epsilon * (query_features.abs() @ norms[..., None])[..., 0]
