"""The linear backend where no query sees a later key: in chunks of tokens, or token by token."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from teka.functional.backend.linear.linear import product_features
from teka.functional.backend.sums import Sums, with_ones

# Tokens of one chunk: within it every pair is computed, between chunks there is the state.
CHUNK_TOKENS = 128


@dataclass(frozen=True)
class LinearState:
    """What the keys so far have left: Σ_j φ(k_j) ⊗ b(x_j) ⊗ [v_j, 1], divided by exp(log_peak).

    Args:
        total: The sum, shape (B, H, m · waves, d_v + 1).
        log_peak: Largest logarithm s_j of a factor so far, shape (B, H); −∞ before the first key.
    """

    total: Float[Tensor, "batch heads products channels"]
    log_peak: Float[Tensor, "batch heads"]


def empty_state(
    features: Float[Tensor, "batch heads tokens products"], value: Float[Tensor, "batch heads tokens dim_value"]
) -> LinearState:
    """The state before the first token, for features and values like these."""
    batch, heads, _, num_products = features.shape
    total = value.new_zeros(batch, heads, num_products, value.shape[-1] + 1)
    return LinearState(total, value.new_full((batch, heads), -torch.inf))


def causal_linear(
    query_features: Float[Tensor, "batch heads tokens features"],
    key_features: Float[Tensor, "batch heads tokens features"],
    key_log_scale: Float[Tensor, "batch heads tokens"] | None,
    value: Float[Tensor, "batch heads tokens dim_value"],
    query_waves: Float[Tensor, "#batch heads tokens waves"] | None = None,
    key_waves: Float[Tensor, "#batch heads tokens waves"] | None = None,
) -> Sums:
    """Σ_{j ≤ i} φ(q_i)ᵀφ(k_j) exp(s_j) c_ij [v_j, 1], chunk by chunk.

    Within a chunk every pair is computed; what lies before it is read from the state. Row i is divided by exp(M_i) with
    M_i = max_{j ≤ i} s_j, the running maximum, so that nothing in it depends on a later key. Cost O(L · (C + m) · d)
    for chunks of C tokens.

    Args:
        query_features: φ(q).
        key_features: φ(k) · exp(−s).
        key_log_scale: s, or None for s = 0.
        value: Values.
        query_waves: a(x) of the queries, or None for c = 1.
        key_waves: b(x) of the keys, or None for c = 1.
    """
    none_yet = product_features(key_features[:, :, :0], None if key_waves is None else key_waves[:, :, :0])
    state = empty_state(none_yet, value[:, :, :0])
    inputs = (query_features, key_features, key_log_scale, with_ones(value), query_waves, key_waves)
    sums = []
    # Split and not sliced: the gradients of slices would each be as long as the whole.
    for query_part, key_part, log_scale, values, *waves in zip(*(_split(one, value) for one in inputs), strict=True):
        assert query_part is not None
        assert key_part is not None
        assert values is not None
        part, state = causal_chunk(query_part, key_part, log_scale, values, state, *waves)
        sums.append(part)
    joined = torch.cat(sums, dim=2)
    return Sums(joined[..., :-1], joined[..., -1])


def _split(tensor: Tensor | None, value: Tensor) -> Sequence[Tensor | None]:
    """A tensor in chunks of tokens; None for each of them where there is none."""
    if tensor is not None:
        return tensor.split(CHUNK_TOKENS, dim=2)
    return [None] * -(-value.shape[2] // CHUNK_TOKENS)


def causal_chunk(
    query_features: Float[Tensor, "batch heads tokens features"],
    key_features: Float[Tensor, "batch heads tokens features"],
    key_log_scale: Float[Tensor, "batch heads tokens"] | None,
    value: Float[Tensor, "batch heads tokens channels"],
    state: LinearState,
    query_waves: Float[Tensor, "#batch heads tokens waves"] | None = None,
    key_waves: Float[Tensor, "#batch heads tokens waves"] | None = None,
) -> tuple[Float[Tensor, "batch heads tokens channels"], LinearState]:
    """The sums of one chunk of tokens, or of one token, and the state after it.

    Args:
        query_features: φ(q).
        key_features: φ(k) · exp(−s).
        key_log_scale: s, or None for s = 0.
        value: Values with a column of ones.
        state: What the tokens before have left.
        query_waves: a(x), or None for c = 1.
        key_waves: b(x), or None for c = 1.
    """
    if key_log_scale is None:
        key_log_scale = torch.zeros_like(value[..., 0])
    peak = torch.cummax(torch.cat([state.log_peak[..., None], key_log_scale], dim=-1), dim=-1).values
    before, running, last = peak[..., :1], peak[..., 1:], peak[..., -1:]
    pairs = query_features @ key_features.transpose(-2, -1)
    if query_waves is not None and key_waves is not None:
        pairs = pairs * (query_waves @ key_waves.transpose(-2, -1))
    # exp of a number that is at most 0 wherever it counts; clamped where it does not, against infinity times zero.
    decay = torch.exp((key_log_scale[..., None, :] - running[..., :, None]).clamp_max(0.0))
    within = (pairs * decay).tril() @ value
    old = torch.exp(before - running)[..., None] * (product_features(query_features, query_waves) @ state.total)
    weighted = product_features(key_features, key_waves) * torch.exp(key_log_scale - last)[..., None]
    total = torch.exp(before - last)[..., None] * state.total + weighted.transpose(-2, -1) @ value
    return within + old, LinearState(total, last[..., 0])
