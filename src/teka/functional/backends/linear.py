"""The linear backend: sums over keys of products of features, alone or with waves; if causal, in chunks of tokens."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from teka.errors import wrong_value
from teka.execution_mode import is_dynamic
from teka.functional.backends import (
    BYTES,
    LOWEST_LOG_SCALE,
    Cost,
    FeatureInputs,
    WeightedSums,
    checkpointed,
    with_ones,
)
from teka.functional.shapes import (
    Channels,
    Features,
    KeyFeatures,
    LogScale,
    QueryFeatures,
    RingWeights,
    Values,
)
from teka.grid import Grid

# Numbers of one chunk of φ ⊗ waves, made again in the backward pass: 4 MiB in float32, for a processor's cache.
CHUNK_ELEMENTS = 2**20
# Tokens of one chunk where attention is causal: within it every pair is computed, between chunks there is the state.
CHUNK_TOKENS = 64
# Number of chunks up to which a product with a triangular matrix adds them up faster than a cumulative sum.
MOST_CHUNKS_BY_MATRIX = 256
# Chunks that are computed at once: more take more memory, fewer make longer graphs.
BLOCK_CHUNKS = 16


@dataclass(frozen=True)
class Sizes:
    """Sizes of one attention to a fast backend."""

    num_queries: int
    num_keys: int
    num_features: int
    dim_value: int
    is_causal: bool


def linear_cost(sizes: Sizes, num_waves: int = 1) -> Cost:
    """The state and its product with the queries' features; if causal, every pair within a chunk in some passes too."""
    products = (sizes.num_queries + sizes.num_keys) * sizes.num_features * num_waves
    pairs = sizes.num_keys * min(CHUNK_TOKENS, sizes.num_keys) if sizes.is_causal else 0
    multiply_adds = products * (sizes.dim_value + 1) + pairs * (
        sizes.num_features + num_waves + sizes.dim_value + 1
    )
    return Cost(
        multiply_adds, (products * 2 if num_waves > 1 else 0) * BYTES + pairs * 3 * 2 * BYTES
    )


def linear(
    query_features: QueryFeatures, key_features: KeyFeatures, value: Values, *waves: Tensor | None
) -> WeightedSums:
    """Return φ(q_i)ᵀ (Σ_j φ(k_j) v_jᵀ) and φ(q_i)ᵀ Σ_j φ(k_j), or the same sums of φ ⊗ waves in chunks.

    Source: Katharopoulos et al. 2020, equation 5.
    """
    query_waves, key_waves = waves or (None, None)
    if query_waves is None or key_waves is None:
        return WeightedSums(
            value_sums(query_features, key_features, value, is_causal=False),
            weight_sums(query_features, key_features, is_causal=False),
        )
    # A short graph: the compiler decides what to keep for the gradients.
    if torch.compiler.is_compiling():
        return linear(
            product_features(query_features, query_waves),
            product_features(key_features, key_waves),
            value,
        )
    value = with_ones(value)
    state = torch.zeros((), dtype=value.dtype, device=value.device)
    for part in _chunks(key_features, key_waves, value):
        state = state + checkpointed(_state, *part)
    sums = [checkpointed(_read, *part, state) for part in _chunks(query_features, query_waves)]
    return WeightedSums.of_channels(torch.cat(sums, dim=2))


def value_sums(
    query: QueryFeatures, key: KeyFeatures, value: Values, *, is_causal: bool
) -> Float[Tensor, "batch heads queries dim"]:
    """Return Σ_j (query_i · key_j) value_j, over j ≤ i if causal.

    The causal sums take every pair within a chunk of tokens, and the state Σ_j key_j value_jᵀ of the chunks before.
    """
    if not is_causal:
        return query @ (key.transpose(-2, -1) @ value)
    num_tokens = value.shape[2]
    query, key, value = _in_chunks(query, key, value)
    within = (query @ key.transpose(-2, -1)).tril() @ value
    before = _sums_before(key.transpose(-2, -1) @ value)
    return (within + query @ before).flatten(2, 3)[:, :, :num_tokens]


def weight_sums(
    query: QueryFeatures, key: KeyFeatures, *, is_causal: bool
) -> Float[Tensor, "batch heads queries"]:
    """Return Σ_j query_i · key_j, over j ≤ i if causal."""
    if not is_causal:
        return (query @ key.sum(dim=-2)[..., None]).squeeze(-1)
    num_tokens = key.shape[2]
    query, key = _in_chunks(query, key)
    size = key.shape[3]
    # A product with a triangular matrix is several times faster than a cumulative sum along the tokens.
    within = key.new_ones(size, size).tril() @ key
    before = _sums_before(key.sum(dim=3, keepdim=True))
    return (query * (within + before)).sum(dim=-1).flatten(2, 3)[:, :, :num_tokens]


def _in_chunks(*tensors: Tensor) -> list[Tensor]:
    """Split tokens into chunks, (batch, heads, chunks, tokens, size), with zeros after the last token."""
    num_tokens = tensors[0].shape[2]
    size = max(1, min(CHUNK_TOKENS, num_tokens))
    chunks = []
    for tensor in tensors:
        if num_tokens % size:
            tensor = pad(tensor, (0, 0, 0, size - num_tokens % size))
        chunks.append(tensor.unflatten(2, (-1, size)))
    return chunks


def _sums_before(
    chunks: Float[Tensor, "batch heads chunks rows columns"],
) -> Float[Tensor, "batch heads chunks rows columns"]:
    """Return for every chunk the sum of all chunks before it."""
    num_chunks = chunks.shape[2]
    if num_chunks <= MOST_CHUNKS_BY_MATRIX:
        earlier = chunks.new_ones(num_chunks, num_chunks).tril(-1)
        return (earlier @ chunks.flatten(3)).unflatten(3, chunks.shape[3:])
    # Not the cumulative sum minus the chunk itself: rounding would let a later token change an earlier output.
    return pad(chunks[:, :, :-1], (0, 0, 0, 0, 1, 0)).cumsum(dim=2)


def product_features(
    features: Float[Tensor, "*tokens features"],
    waves: Float[Tensor, "*#tokens waves"] | None = None,
) -> Float[Tensor, "*tokens products"]:
    """φ ⊗ waves, or φ where there are no waves."""
    return features if waves is None else (features[..., None, :] * waves[..., :, None]).flatten(-2)


def _state(features: Tensor, waves: Tensor, value: Tensor) -> Tensor:
    return product_features(features, waves).transpose(-2, -1) @ value


def _read(features: Tensor, waves: Tensor, state: Tensor) -> Tensor:
    return product_features(features, waves) @ state


def _chunks(features: Tensor, waves: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Features, waves and others in chunks of tokens; split, for the gradient of a slice is as long as the whole."""
    batch, heads, num_tokens, size = features.shape
    chunk = max(
        1, min(num_tokens, CHUNK_ELEMENTS // max(1, batch * heads * size * waves.shape[-1]))
    )
    return zip(*(tensor.split(chunk, dim=2) for tensor in (features, waves, *others)), strict=True)


@dataclass(frozen=True)
class LinearState:
    """Σ_j φ(k_j) ⊗ b(x_j) ⊗ [v_j, 1] over exp(log_peak), the largest exp(s_j) so far; −∞ before the first key."""

    total: Float[Tensor, "batch heads products channels"]
    log_peak: Float[Tensor, "batch heads"]


def empty_state(
    features: Float[Tensor, "batch heads tokens products"], value: Tensor
) -> LinearState:
    """The state before the first token, for features and values like these."""
    batch, heads, _, num_products = features.shape
    total = value.new_zeros(batch, heads, num_products, value.shape[-1] + 1)
    return LinearState(total, value.new_full((batch, heads), -torch.inf))


@dataclass(frozen=True)
class DecodingState:
    """What the tokens so far have left.

    >>> import torch
    >>> from teka.functional import decode
    >>> query, key, value = torch.randn(3, 1, 2, 5, 4)
    >>> prompt, state = decode(query, key, value, None, kernel="squared_relu", relative="decay")
    >>> next_token, later = decode(*torch.randn(3, 1, 2, 1, 4), state, kernel="squared_relu", relative="decay")
    >>> (state.num_tokens, later.num_tokens), state.total.total.shape == later.total.total.shape
    ((5, 6), True)

    Args:
        num_tokens: Their number.
        total: Sums over all keys, or with rings over those at least k steps back.
        unrotated: With rotary features, the sums over what no rotation changes, for the denominator.
        recent: With rings, features, s, and values with a column of ones of the last keys, newest first.
        count: With a kernel that counts keys, the same of the single feature 1.
        kernels: Names of the content kernel and of the relative kernel that the tokens have met.
    """

    num_tokens: int
    total: LinearState
    unrotated: LinearState | None = None
    recent: tuple[tuple[Tensor, Tensor, Tensor], ...] = ()
    count: "DecodingState | None" = None
    kernels: tuple[str, str | None] | None = None


def left_by(
    state: DecodingState | None,
    part: Literal["total", "unrotated"],
    features: Tensor,
    value: Tensor,
    num_waves: int = 1,
) -> LinearState:
    """A sum of the state, or an empty one before the first token; it has the sizes and the dtype of this token's."""
    batch, heads, _, num_features = features.shape
    if state is None:
        return empty_state(features.new_empty(batch, heads, 1, num_features * num_waves), value)
    left = state.total if part == "total" else state.unrotated
    expected = ((batch, heads, num_features * num_waves, value.shape[-1] + 1), value.dtype)
    came = None if left is None else (tuple(left.total.shape), left.total.dtype)
    if left is None or came != expected:
        raise wrong_value(
            f"state.{part}", came, f"{expected}, shape and dtype to fit the next token"
        )
    return left


def causal_linear(
    query_features: QueryFeatures,
    key_features: KeyFeatures,
    log_scale: LogScale,
    value: Values,
    *waves: Tensor,
    rate: Float[Tensor, "heads"] | None = None,
    state: LinearState | None = None,
) -> WeightedSums:
    """Σ_{j ≤ i} φ(q_i)ᵀφ(k_j) exp(s_j) c_ij [v_j, 1], from φ(q), φ(k) · exp(−s) and s, in O(L · (C + m) · d).

    C is the chunk. Row i is divided by exp(max_{j ≤ i} s_j), so that nothing in it depends on a later key. With a rate
    r the terms decay by exp(−r (i − j)): s_j + r j stands for s_j, j counted from the middle of the chunk. The state is
    that of tokens before these, if there are any.
    """
    is_plain = log_scale is None and rate is None and state is None and not waves
    if is_plain and not is_dynamic(value.shape[2]):
        return WeightedSums(
            value_sums(query_features, key_features, value, is_causal=True),
            weight_sums(query_features, key_features, is_causal=True),
        )
    channels = with_ones(value)
    log_scale = torch.zeros_like(channels[..., 0]) if log_scale is None else log_scale
    if state is None:
        state = empty_state(
            product_features(key_features[:, :, :0], *(one[:, :, :0] for one in waves[1:])), value
        )
    block, num_tokens = CHUNK_TOKENS * BLOCK_CHUNKS, value.shape[2]
    inputs = (query_features, key_features, log_scale, channels, *waves)
    if is_dynamic(num_tokens):
        # One block for any length, with keys of 0 after all others. An export takes no number of chunks that can be 1.
        first = (
            torch.arange(num_tokens // CHUNK_TOKENS + 2, device=value.device)[:, None]
            * CHUNK_TOKENS
        )
        token = (first + torch.arange(CHUNK_TOKENS, device=value.device)).clamp_max(num_tokens)
        padded = (
            torch.cat([one, torch.zeros_like(one[:, :, :1])], dim=2)[:, :, token] for one in inputs
        )
        query, key, scale, values, *rest = padded
        part, _ = _causal_block(query, key, scale, values, state, *rest, rate=rate)
        return WeightedSums.of_channels(
            part.index_select(2, torch.arange(num_tokens, device=value.device))
        )
    whole = num_tokens // CHUNK_TOKENS * CHUNK_TOKENS
    sizes = [min(block, whole - start) for start in range(0, whole, block)]
    sizes += [num_tokens - whole] if whole < num_tokens else []
    sums = []
    # Split and not sliced: the gradients of slices would each be as long as the whole.
    for block_inputs in zip(*(one.split(sizes, dim=2) for one in inputs), strict=True):
        chunk_size = min(CHUNK_TOKENS, block_inputs[0].shape[2])
        query, key, scale, values, *rest = (
            one.unflatten(2, (-1, chunk_size)) for one in block_inputs
        )
        part, state = _causal_block(query, key, scale, values, state, *rest, rate=rate)
        sums.append(part)
    return WeightedSums.of_channels(torch.cat(sums, dim=2))


def _causal_block(
    query: Float[Tensor, "batch heads chunks chunk features"],
    key: Float[Tensor, "batch heads chunks chunk features"],
    scale: Float[Tensor, "batch heads chunks chunk"],
    value: Float[Tensor, "batch heads chunks chunk channels"],
    state: LinearState,
    *waves: Tensor,
    rate: Float[Tensor, "heads"] | None,
) -> tuple[Channels, LinearState]:
    """Return the sums of features, s and values in chunks of tokens, and the state after them.

    Within each chunk of every pair; before chunk c there is Σ_{c' < c} exp(p_c' − P_c) S_c', of the chunks' own states
    over the largest exp(s) of each, p, and so far, P, and of what there was before: one product for all chunks.
    """
    query_waves, key_waves = waves or (None, None)
    num_chunks, size = value.shape[2:4]
    first, before_first, decay = state.log_peak, -(size // 2) - 1, None
    if rate is not None:
        place = torch.arange(size, dtype=rate.dtype, device=rate.device) - size // 2
        decay = rate[:, None, None] * place
        scale, first = scale + decay, first + rate * before_first
    # Peaks only keep numbers in range, and are constants to the gradient: where two are equal, a maximum has none.
    own_peak = scale.detach().amax(dim=-1)
    weighted = product_features(key, key_waves) * torch.exp(scale - own_peak[..., None])[..., None]
    own = torch.cat([state.total[:, :, None], weighted.transpose(-2, -1) @ value], dim=2)

    # Row c is what there is before chunk c, the last one after all; column 0 is the state.
    numbers = torch.arange(num_chunks + 1, device=value.device)
    ages = numbers[:, None] - (numbers - 1)
    peaks = torch.cat([first[..., None], own_peak], dim=-1)[:, :, None]
    if rate is not None:
        peaks = peaks - (rate * size)[:, None, None] * torch.cat(
            [ages[:, :1] - 1, ages[:, 1:]], dim=1
        )
    peaks = peaks.masked_fill(ages < 1, -torch.inf)
    peak = peaks.detach().amax(dim=-1)
    shares = torch.exp(peaks - peak.clamp_min(LOWEST_LOG_SCALE)[..., None])
    states = (shares @ own.flatten(3)).unflatten(3, own.shape[3:])
    before, last = (
        peak[..., :-1, None],
        peak[..., -1] if rate is None else peak[..., -1] - rate * before_first,
    )

    running = torch.maximum(before, running_maximum(scale.detach()))
    if (
        decay is not None
    ):  # row i is to be exact, and not only up to a factor: Σ_j exp(s_j − r (i − j) − constant)
        running = (running - decay.detach()) + decay
    pairs = query @ key.transpose(-2, -1)
    if query_waves is not None and key_waves is not None:
        pairs = pairs * (query_waves @ key_waves.transpose(-2, -1))
    # Later keys are masked before the exponential, where they might overflow.
    exponent = scale[..., None, :] - running[..., :, None]
    is_later = torch.ones(size, size, dtype=torch.bool, device=value.device).triu(1)
    within = (pairs * torch.exp(exponent.masked_fill(is_later, -torch.inf))) @ value
    old = torch.exp(before - running)[..., None] * (
        product_features(query, query_waves) @ states[:, :, :-1]
    )
    return (within + old).flatten(2, 3), LinearState(states[:, :, -1], last)


def causal_step(
    query_features: Features,
    key_features: Features,
    log_scale: Float[Tensor, "batch heads tokens"] | None,
    value: Channels,
    state: LinearState,
    query_waves: Float[Tensor, "#batch heads tokens waves"] | None = None,
    key_waves: Float[Tensor, "#batch heads tokens waves"] | None = None,
) -> tuple[Channels, LinearState]:
    """The sums of one token, whose value has a 1 at its end, and the state after it: the recurrence itself.

    Several tokens leave together what they leave one by one; each has the sums of all of them.
    """
    scale = torch.zeros_like(state.log_peak)[..., None] if log_scale is None else log_scale
    peak = torch.maximum(state.log_peak, scale.amax(dim=-1))
    key = product_features(key_features, key_waves) * torch.exp(scale - peak[..., None])[..., None]
    total = (
        torch.exp(state.log_peak - peak)[..., None, None] * state.total
        + key.transpose(-2, -1) @ value
    )
    return product_features(query_features, query_waves) @ total, LinearState(total, peak)


def running_maximum(numbers: Float[Tensor, "*batch tokens"]) -> Float[Tensor, "*batch tokens"]:
    """The largest number so far."""
    if not torch.compiler.is_compiling():
        return numbers.cummax(dim=-1).values
    # ONNX has no such function: the largest of the last 1, 2, 4, … numbers.
    steps = 1
    while steps < numbers.shape[-1]:
        numbers = torch.maximum(
            numbers, pad(numbers, (steps, 0), value=-torch.inf)[..., : numbers.shape[-1]]
        )
        steps *= 2
    return numbers


def causal_rings(log_rings: RingWeights, tokens: FeatureInputs, grid: Grid) -> WeightedSums:
    """Σ_{j ≤ i} φ(q_i)ᵀφ(k_j) exp(s_j) c_ij [v_j, 1] on a sequence, whose ring r holds one key.

        Σ_{r<k} c_ir φ(q_i)ᵀφ(k_{i−r}) exp(s_{i−r}) [v_{i−r}, 1] + c_ik φ(q_i)ᵀ Σ_{j ≤ i−k} φ(k_j) exp(s_j) [v_j, 1]

    Each row is divided by the largest exp(s) c of what it sees: nothing in it depends on a later key.
    """
    if grid.num_axes != 1 or grid.periodic[0]:
        raise wrong_value("grid", grid, "one axis that is not periodic where attention is causal")
    query_features, key_features, value = tokens.query_features, tokens.key_features, tokens.value
    log_scale = torch.zeros_like(value[..., 0]) if tokens.log_scale is None else tokens.log_scale
    if tokens.key_mask is not None:
        log_scale = log_scale.masked_fill(~tokens.key_mask[:, None], LOWEST_LOG_SCALE)
    distance, num_tokens = log_rings.shape[-1] - 1, value.shape[2]

    # Rows 0 … k − 1 have no far keys: those of key j begin to count k tokens later.
    far_scale = _later(log_scale, distance)
    far_log_peak = running_maximum(far_scale.detach())  # as `causal_linear` divides by it
    far_keys, far_values = (
        pad(one, (0, 0, distance, 0))[:, :, :num_tokens] for one in (key_features, value)
    )
    far = causal_linear(query_features, far_keys, far_scale, far_values)
    near_scale = torch.stack([_later(log_scale, ring) for ring in range(distance)], dim=-1)
    every_scale = torch.cat([near_scale, far_log_peak[..., None]], dim=-1)
    log_factor, filled = log_rings + every_scale, every_scale > 0.5 * LOWEST_LOG_SCALE
    log_peak = log_factor.detach().masked_fill(~filled, -torch.inf).amax(dim=-1)
    log_peak = log_peak.masked_fill(~filled.any(dim=-1), LOWEST_LOG_SCALE)
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
    return WeightedSums(numerator, denominator, log_peak)


def _later(
    log_scale: Float[Tensor, "batch heads tokens"], steps: int
) -> Float[Tensor, "batch heads tokens"]:
    """s_{i − steps} at token i, the lowest where there is none."""
    return pad(log_scale, (steps, 0), value=LOWEST_LOG_SCALE)[..., : log_scale.shape[-1]]
