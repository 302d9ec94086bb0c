"""The ring backend where no query sees a later key: a sequence, whose ring r holds one key."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from teka.errors import wrong_value
from teka.functional.backend.linear.causal import causal_linear
from teka.functional.backend.sums import Sums
from teka.functional.relative import RingRelative
from teka.grid import Grid

# In place of s of a key that is dropped or not there: below every other, and finite, so that differences are no NaN.
LOWEST_LOG_SCALE = -1e30


def causal_rings(
    query: Float[Tensor, "batch heads tokens dim"],
    query_features: Float[Tensor, "batch heads tokens features"],
    key_features: Float[Tensor, "batch heads tokens features"],
    key_log_scale: Float[Tensor, "batch heads tokens"] | None,
    value: Float[Tensor, "batch heads tokens dim_value"],
    relative: RingRelative,
    grid: Grid,
    *,
    scale: float,
    key_mask: Bool[Tensor, "batch tokens"] | None,
) -> Sums:
    """Σ_{j ≤ i} φ(q_i)ᵀφ(k_j) exp(s_j) c_ij [v_j, 1] on a sequence.

        Σ_{r<k} c_ir φ(q_i)ᵀφ(k_{i−r}) exp(s_{i−r}) [v_{i−r}, 1] + c_ik φ(q_i)ᵀ Σ_{j ≤ i−k} φ(k_j) exp(s_j) [v_j, 1]

    The near keys are taken one by one; the far ones are a prefix sum, chunk by chunk. Each row is divided by the
    largest exp(s) c of what it sees, for the far ones with the largest s among them: nothing in it depends on a later
    key.

    Args:
        query: Queries.
        query_features: φ(q).
        key_features: φ(k) · exp(−s), 0 where dropped.
        key_log_scale: s, or None for s = 0.
        value: Values.
        relative: The relative kernel.
        grid: A grid of one axis that does not wrap.
        scale: Factor of inner products with the query.
        key_mask: True where a key is kept, or None for all.

    Raises:
        ValueError: The grid has more axes, or wraps.
    """
    if grid.num_axes != 1 or grid.axis_periodic(0):
        raise wrong_value("grid", grid, "one axis that is not periodic where attention is causal")
    log_rings = relative.log_rings(query, scale=scale)
    log_scale = torch.zeros_like(value[..., 0]) if key_log_scale is None else key_log_scale
    if key_mask is not None:
        log_scale = log_scale.masked_fill(~key_mask[:, None], LOWEST_LOG_SCALE)
    distance, num_tokens = relative.max_distance, value.shape[2]

    # Rows 0 … k − 1 have no far keys: those of key j begin to count k tokens later.
    far_scale = _later(log_scale, distance)
    far_log_peak = far_scale.cummax(dim=-1).values
    far = causal_linear(
        query_features,
        pad(key_features, (0, 0, distance, 0))[:, :, :num_tokens],
        far_scale,
        pad(value, (0, 0, distance, 0))[:, :, :num_tokens],
    )
    near_scale = torch.stack([_later(log_scale, ring) for ring in range(distance)], dim=-1)
    log_factor = log_rings + torch.cat([near_scale, far_log_peak[..., None]], dim=-1)
    filled = torch.cat([near_scale, far_log_peak[..., None]], dim=-1) > 0.5 * LOWEST_LOG_SCALE
    log_peak = log_factor.detach().masked_fill(~filled, -torch.inf).amax(dim=-1)
    log_peak = log_peak.masked_fill(~filled.any(dim=-1), 0.0)
    factor = torch.exp((log_factor - log_peak[..., None]).masked_fill(~filled, -torch.inf))

    numerator = factor[..., -1:] * far.numerator
    denominator = factor[..., -1] * far.denominator
    # One copy of each, of which the rings are views.
    keys, values = (pad(tensor, (0, 0, distance - 1, 0)) for tensor in (key_features, value))
    for ring in range(distance):
        first = distance - 1 - ring
        product = (query_features * keys[:, :, first : first + num_tokens]).sum(dim=-1)
        weight = factor[..., ring] * product
        numerator = numerator + weight[..., None] * values[:, :, first : first + num_tokens]
        denominator = denominator + weight
    return Sums(numerator, denominator, log_peak)


def _later(log_scale: Float[Tensor, "batch heads tokens"], steps: int) -> Float[Tensor, "batch heads tokens"]:
    """s_{i − steps} at token i, the lowest where there is none."""
    return pad(log_scale, (steps, 0), value=LOWEST_LOG_SCALE)[..., : log_scale.shape[-1]]
