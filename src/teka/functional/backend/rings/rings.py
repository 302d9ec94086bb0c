"""The ring backend: a relative kernel that sees only the Manhattan distance, clipped, on a grid."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka.functional.backend.cost import BYTES
from teka.functional.backend.rings.product_rings import product_rings
from teka.functional.backend.rings.ring_mix import ring_mix, ring_read
from teka.functional.backend.sums import Sums, with_ones
from teka.functional.relative import RingRelative
from teka.grid import Grid


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
    keep = value.new_ones(1, 1, grid.num_tokens, 1) if key_mask is None else key_mask[:, None, :, None].to(value)
    distance = relative.max_distance
    filled = ring_read(keep, torch.ones_like(keep), distance, grid) > 0.5  # the counts are whole numbers and so exact
    log_peak = log_rings.detach().masked_fill(~filled, -torch.inf).amax(dim=-1)
    log_peak = log_peak.masked_fill(~filled.any(dim=-1), 0.0)
    # A ring without keys has a sum of exactly 0, the last one apart: its weight must be 0.
    weights = torch.exp((log_rings - log_peak[..., None]).masked_fill(~filled, -torch.inf))
    if key_features.shape[-1] > 1:
        sums = product_rings(weights, query_features, key_features, with_ones(value), grid)
        return Sums(sums[..., :-1], sums[..., -1], log_peak)
    weights = weights * query_features
    # Apart, the values keep an even number of channels.
    # All terms are of one size, and the last ring is the total less the others without loss. Of the denominator, with
    # one channel, the rings themselves are kept: they are no larger than the weights.
    numerator = ring_mix(weights, key_features * value, grid)
    denominator = (weights * ring_read(key_features, torch.ones_like(key_features), distance, grid)).sum(dim=-1)
    return Sums(numerator, denominator, log_peak)


def rings_cost_terms(grid: Grid, num_features: int, dim_value: int, max_distance: int) -> tuple[int, int]:
    """Multiply-adds of one head, forward, and bytes of the maps that pass through memory.

    An addition of maps counts as a multiply-add, and reads two numbers and writes one. In n dimensions a ring takes
    3n − 2 of them and one product with its weights, which takes the time of five (measured in one to three dimensions).
    With one feature the last ring is a difference; with more it takes as much as the others together, two cumulative
    sums an axis, and φ ⊗ [v, 1] is made and read.
    """
    additions = a_ring = (3 * grid.num_axes - 2 + 5) * max_distance
    if num_features > 1:
        additions += a_ring + 2 * grid.num_axes + 3
    numbers = grid.num_tokens * num_features * (dim_value + 1)
    return numbers * additions, numbers * additions * 3 * BYTES
