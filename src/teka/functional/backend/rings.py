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
    """Σ_j φ(q_i)ᵀφ(k_j) c_{r(i,j)}(q_i) [v_j, 1] = Σ_{r<k} c_ir φ(q_i)ᵀR_r(i) + c_ik φ(q_i)ᵀ(T − Σ_{r<k} R_r(i)).

    R_r(i) is the sum of φ(k_j) ⊗ [v_j, 1] over the cells j at distance r from i, and T the sum over all cells. A row's
    largest c_ir is taken over the rings that hold a kept key, so that an empty ring cannot push the others out of
    range; the last ring, which comes as a difference, is left out where it holds no key, so that rounding is not
    amplified.
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
        far = mapped.sum(dim=-2, keepdim=True) - sum(near[1:], near[0])
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
