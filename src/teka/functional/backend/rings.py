"""The ring backend: a relative kernel that sees only the Manhattan distance, clipped, on a grid."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from teka.functional.backend.sums import Sums
from teka.functional.relative import RingRelative
from teka.grid import Grid

# Numbers of one chunk of φ ⊗ [v, 1] on the grid: 16 MiB in float32.
CHUNK_ELEMENTS = 2**22


def rings(
    query: Float[Tensor, "batch heads tokens dim"],
    query_features: Float[Tensor, "batch heads tokens features"],
    key_features: Float[Tensor, "batch heads tokens features"],
    value: Float[Tensor, "batch heads tokens dim_value"],
    relative: RingRelative,
    grid: Grid,
    *,
    scale: float,
    key_mask: Bool[Tensor, "batch tokens"] | None,
) -> Sums:
    """Σ_j φ(q_i)ᵀφ(k_j) c_{r(i,j)}(q_i) [v_j, 1] = Σ_r c_ir φ(q_i)ᵀR_r(i).

    R_r(i) is the sum of φ(k_j) ⊗ [v_j, 1] over the cells j at distance r from i, and R_k that over all cells at least k
    away. A row's largest c_ir is taken over the rings that hold a kept key, so that an empty ring cannot push the
    others out of range; a ring without one counts for nothing, so that rounding in it is not amplified.
    """
    log_rings = relative.log_rings(query, scale=scale)
    keep = torch.ones_like(value[:, :1, :, :1]) if key_mask is None else key_mask[:, None, :, None].to(value)
    filled = _filled_rings(keep, relative.max_distance, grid)[:, None]
    log_peak = log_rings.detach().masked_fill(~filled, -torch.inf).amax(dim=-1)
    log_peak = log_peak.masked_fill(~filled.any(dim=-1), 0.0)
    # A ring without keys has a sum of exactly 0, the last one apart: its weight must be 0.
    weights = torch.exp((log_rings - log_peak[..., None]).masked_fill(~filled, -torch.inf))
    value = torch.cat([value, torch.ones_like(value[..., :1])], dim=-1)
    num_features = key_features.shape[-1]
    chunk = max(1, min(num_features, CHUNK_ELEMENTS // value.numel()))
    sums = torch.zeros_like(value)
    for start in range(0, num_features, chunk):
        features = slice(start, start + chunk)
        mapped = (key_features[..., features, None] * value[..., None, :]).flatten(-2)
        near = ring_sums(mapped, relative.max_distance, grid)
        if num_features == 1:
            # The constant kernel: all terms are of one size, and the difference loses nothing.
            far = mapped.sum(dim=-2, keepdim=True) - sum(near[1:], near[0])
        else:
            far = far_sums(mapped, relative.max_distance, grid)
        mixed = weights[..., -1:] * far
        for distance, ring in enumerate(near):
            mixed = mixed + weights[..., distance, None] * ring
        mixed = mixed.unflatten(-1, (-1, value.shape[-1]))
        sums = sums + (query_features[..., None, features] @ mixed)[..., 0, :]
    return Sums(sums[..., :-1], sums[..., -1], log_peak)


def _filled_rings(
    keep: Float[Tensor, "batch 1 tokens 1"], max_distance: int, grid: Grid
) -> Bool[Tensor, "batch tokens rings"]:
    """Whether ring r about token i holds a kept key; the counts are whole numbers and so exact."""
    near = torch.cat(ring_sums(keep, max_distance, grid), dim=-1)[:, 0]
    far = keep[:, 0].sum(dim=-2, keepdim=True) - near.sum(dim=-1, keepdim=True)
    return torch.cat([near, far], dim=-1) > 0.5


def ring_sums(
    tokens: Float[Tensor, "batch heads tokens channels"], max_distance: int, grid: Grid
) -> list[Float[Tensor, "batch heads tokens channels"]]:
    """R_r(i) = Σ of the tokens at Manhattan distance r = 0 … max_distance − 1 steps from i, on a grid of any dimension.

    One axis at a time: a ring of radius r in n dimensions is, for every step t along the last axis, a ring of radius
    r − |t| in the others. That is Σ_{r<k} (2r + 1) = k² additions a token and axis, with no cancellation.
    """
    rings = [tokens.unflatten(-2, grid.shape)]
    for axis in range(grid.num_axes):
        dim = axis + 2
        reach = max_distance - 1
        wider = [_extend(ring, dim, reach, periodic=grid.axis_periodic(axis)) for ring in rings]
        side = grid.shape[axis]
        grown = []
        for distance in range(max_distance):
            total = None
            for step in range(-distance, distance + 1):
                inner = distance - abs(step)
                if inner < len(wider):
                    part = wider[inner].narrow(dim, reach + step, side)
                    total = part if total is None else total + part
            assert total is not None
            grown.append(total)
        rings = grown
    return [ring.flatten(2, -2) for ring in rings]


def far_sums(
    tokens: Float[Tensor, "batch heads tokens channels"], max_distance: int, grid: Grid
) -> Float[Tensor, "batch heads tokens channels"]:
    """Σ of the tokens at Manhattan distance max_distance or more, with no difference that rounding could dominate.

    One axis at a time: at least r steps away in n dimensions is, for a step t along the last axis with |t| < r, at
    least r − |t| away in the others, and any place in the others for the steps beyond, which are cumulative sums.
    """
    first = tokens.unflatten(-2, grid.shape)
    far = [first, *[torch.zeros_like(first)] * max_distance]  # at least 0, 1, … steps away in no dimension
    for axis in range(grid.num_axes):
        dim, side = axis + 2, grid.shape[axis]
        periodic = grid.axis_periodic(axis)
        grown = [far[0].sum(dim=dim, keepdim=True).expand_as(far[0])]
        wider = [_extend(part, dim, max_distance - 1, periodic=periodic) for part in far]
        for distance in range(1, max_distance + 1):
            total = _beyond(far[0], dim, distance, periodic=periodic)
            for step in range(1 - distance, distance):
                total = total + wider[distance - abs(step)].narrow(dim, max_distance - 1 + step, side)
            grown.append(total)
        far = grown
    return far[max_distance].flatten(2, -2)


def _beyond(tensor: Tensor, dim: int, distance: int, *, periodic: bool) -> Tensor:
    """Sum over the cells of one axis that are at least `distance` steps away."""
    side = tensor.shape[dim]
    if periodic:
        index = torch.arange(side, device=tensor.device)
        steps = (index[:, None] - index[None, :]).abs()
        outside = (torch.minimum(steps, side - steps) >= distance).to(tensor)
        return (outside @ tensor.movedim(dim, -2)).movedim(-2, dim)
    margin = [0, 0] * (tensor.ndim - 1 - dim)
    before = pad(tensor.cumsum(dim), [*margin, distance, 0]).narrow(dim, 0, side)
    after = pad(tensor.flip(dim).cumsum(dim), [*margin, distance, 0]).narrow(dim, 0, side).flip(dim)
    return before + after


def _extend(tensor: Tensor, dim: int, reach: int, *, periodic: bool) -> Tensor:
    """The tensor with `reach` more cells on both sides of one axis: zeros, or the other side's where periodic."""
    if reach == 0:
        return tensor
    if periodic:
        side = tensor.shape[dim]
        index = torch.arange(-reach, side + reach, device=tensor.device) % side
        return tensor.index_select(dim, index)
    return pad(tensor, [0, 0] * (tensor.ndim - 1 - dim) + [reach, reach])


def rings_multiplications(grid: Grid, num_features: int, dim_value: int, max_distance: int) -> int:
    """Operations of one head: k² additions a token, channel and axis, and the weighted sum of the rings."""
    channels = num_features * (dim_value + 1)
    return grid.num_tokens * channels * (grid.num_axes * max_distance**2 + 2 * max_distance + 2)
