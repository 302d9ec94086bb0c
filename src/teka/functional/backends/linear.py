"""Attention in linear time, by sums of products of features (the backend "linear").

Bidirectional, causal and recurrent attention are supported.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, distributed
from torch.autograd import Function
from torch.nn.functional import pad

from teka._compat import ProcessGroup, replace
from teka.errors import wrong_value
from teka.execution_mode import has_dynamic_size
from teka.functional.backends.attention_sums import (
    LOWEST_LOG_SCALE,
    AttentionFeatures,
    LinearAttentionInputs,
    WeightedSums,
    append_ones,
)
from teka.functional.kernels.content_kernel import FeatureKernel
from teka.functional.shapes import (
    Channels,
    KeyFeatures,
    KeyMask,
    Keys,
    LogScale,
    Queries,
    QueryFeatures,
    Values,
)
from teka.precision import backward_without_autocast

# Causal attention computes every pair of tokens within a chunk, and sums over the chunks before it.
CHUNK_TOKENS = 64
# Number of chunks up to which a product with a triangular matrix is faster than a cumulative sum.
MAX_CHUNKS_OF_MATRIX = 256
# Chunks with log scales that are computed at once. More need more memory, fewer need larger graphs.
BLOCK_CHUNKS = 16


def multiply_by_sinusoids(
    features: Float[Tensor, "*tokens features"], sinusoids: Float[Tensor, "*#tokens sinusoids"]
) -> Float[Tensor, "*tokens products"]:
    """Multiply each feature of a token with each sinusoid of its position.

    The inner product of the results of a query and a key is their similarity times a sum of cosines
    of the offset between them. Attention weights therefore depend on the positions, at linear cost.
    """
    return (features[..., None, :] * sinusoids[..., :, None]).flatten(-2)


@dataclass(frozen=True)
class LinearState:
    """Sums over the keys of linear attention, from which the output of any query can be computed.

    The size of the sums does not depend on the number of keys.

    Args:
        values: Σ_j key_j v_jᵀ exp(s_j − p), with the keys' vectors of the numerator.
        weights: Σ_j key_j exp(s_j − p) for every term of the denominator, shape (batch, heads,
            features).
        log_peak: p, the largest log scale s_j, or None for 0.
    """

    values: Float[Tensor, "batch heads features dim_value"]
    weights: tuple[Tensor, ...]
    log_peak: Float[Tensor, "batch heads"] | None = None

    @property
    def all_sums(self) -> tuple[Tensor, ...]:
        """All sums over keys: that of the numerator, then one for each term of the denominator."""
        return (self.values, *self.weights)

    @classmethod
    def from_keys(
        cls, key: AttentionFeatures, value: Values, log_scale: LogScale = None
    ) -> "LinearState":
        """Compute the sums over some keys from their features and values."""
        if log_scale is None:
            weights = tuple(vectors.sum(dim=-2) for _, vectors in key.denominator_terms)
            return cls(key.numerator.mT @ value, weights)
        log_peak = log_scale.detach().amax(dim=-1)
        factor = torch.exp(log_scale - log_peak[..., None])[..., None]
        weights = tuple((vectors * factor).sum(dim=-2) for _, vectors in key.denominator_terms)
        return cls(key.numerator.mT @ (value * factor), weights, log_peak)

    def empty_copy(self) -> "LinearState":
        """Return a state without keys: sums of the same shape that are 0."""
        weights = tuple(torch.zeros_like(total) for total in self.weights)
        log_peak = self.values.new_full(self.values.shape[:2], -torch.inf)
        return LinearState(torch.zeros_like(self.values), weights, log_peak)

    def __add__(self, other: "LinearState") -> "LinearState":
        """Return the sums over the keys of both operands."""
        pairs = list(zip(self.all_sums, other.all_sums, strict=True))
        if self.log_peak is None and other.log_peak is None:
            values, *weights = (first + second for first, second in pairs)
            return LinearState(values, tuple(weights))
        zero = torch.zeros((), dtype=self.values.dtype, device=self.values.device)
        first_peak = zero if self.log_peak is None else self.log_peak
        second_peak = zero if other.log_peak is None else other.log_peak
        log_peak = torch.maximum(first_peak, second_peak).detach()
        factors = torch.exp(first_peak - log_peak), torch.exp(second_peak - log_peak)
        values, *weights = (
            _multiply_per_head(first, factors[0]) + _multiply_per_head(second, factors[1])
            for first, second in pairs
        )
        return LinearState(values, tuple(weights), log_peak)

    def weighted_sums(self, query: AttentionFeatures) -> WeightedSums:
        """Compute the numerator and denominator of each query from the sums over keys."""
        totals = [
            weight * (vectors @ total[..., None]).squeeze(-1)
            for (weight, vectors), total in zip(query.denominator_terms, self.weights, strict=True)
        ]
        log_peak = None if self.log_peak is None else self.log_peak[..., None]
        return WeightedSums(query.numerator @ self.values, sum(totals[1:], totals[0]), log_peak)


def _multiply_per_head(sums: Tensor, factor: Float[Tensor, "batch heads"]) -> Tensor:
    return sums * factor[(...,) + (None,) * (sums.ndim - factor.ndim)]


@dataclass(frozen=True)
class DecodingState:
    """State of causal linear attention for generating a sequence token by token.

    The state holds sums over all earlier keys and values, so its size does not grow with the number
    of tokens. The function `decode` returns it.

    >>> import torch
    >>> from teka.functional import decode
    >>> query, key, value = torch.randn(3, 1, 2, 5, 4)
    >>> options = {"kernel": "squared_relu", "relative": "decay"}
    >>> _, state = decode(query, key, value, None, **options)
    >>> _, next_state = decode(*torch.randn(3, 1, 2, 1, 4), state, **options)
    >>> state.num_tokens, state.sums.values.shape
    (5, torch.Size([1, 2, 4, 4]))
    >>> next_state.num_tokens, next_state.sums.values.shape
    (6, torch.Size([1, 2, 4, 4]))

    Args:
        num_tokens: Number of tokens so far.
        sums: Sums over all keys or, with a kernel of clipped distances, over the distant keys.
        recent: With a kernel of clipped distances, the features, log scales and values of the last
            keys, newest first.
        count: With a kernel that divides by the number of keys, the state that counts them.
        kernels: Names of the content kernel and of the relative kernel.

    Raises:
        ValueError: A token does not fit the state, such as a token of another batch size.
    """

    num_tokens: int
    sums: LinearState
    recent: tuple[tuple[Tensor, Tensor, Tensor], ...] = ()
    count: "DecodingState | None" = None
    kernels: tuple[str, str | None] | None = None

    def check_compatible(self, new_sums: LinearState) -> None:
        """Check that sums over new keys have the shape and dtype of those in this state.

        Raises:
            ValueError: The sums have another shape or dtype, and cannot be added to the state.
        """
        old_values, new_values = self.sums.values, new_sums.values
        if old_values.shape != new_values.shape or old_values.dtype != new_values.dtype:
            raise wrong_value(
                "state.sums.values",
                f"{tuple(old_values.shape)} and {old_values.dtype}",
                f"of shape {tuple(new_values.shape)} and {new_values.dtype}",
            )


def decode_linear_attention(
    tokens: LinearAttentionInputs,
    query: AttentionFeatures,
    key: AttentionFeatures,
    state: DecodingState | None,
    rate: Float[Tensor, "heads"] | None = None,
) -> tuple[WeightedSums, DecodingState]:
    """Compute causal linear attention for the next token, and add the token to the recurrent state.

    Return the numerator and denominator of the output, and the new state. If several tokens are
    added in one call, the query of each attends to the keys of all.

    Args:
        tokens: Values and log scales of the next token.
        query: Vectors of its query.
        key: Vectors of its key.
        state: The state after the previous tokens, or None before the first.
        rate: Decay rate r of every head, or None. The old sums are multiplied by exp(−r).
    """
    sums = LinearState.from_keys(key, tokens.value, tokens.log_scale)
    if state is not None:
        state.check_compatible(sums)
        old = state.sums
        if rate is not None:
            log_peak = -rate if old.log_peak is None else old.log_peak - rate
            old = replace(old, log_peak=log_peak.expand(old.values.shape[:2]))
        sums = old + sums
    return sums.weighted_sums(query), DecodingState(0, sums)


def decode_without_positions(
    tokens: LinearAttentionInputs, state: DecodingState | None
) -> tuple[WeightedSums, DecodingState]:
    """Compute causal linear attention without positions for the next token.

    Return the numerator and denominator of the output, and the recurrent state to which the token
    has been added.
    """
    query = AttentionFeatures(tokens.query_features)
    return decode_linear_attention(tokens, query, AttentionFeatures(tokens.key_features), state)


def causal_attention_sums(
    query: AttentionFeatures,
    key: AttentionFeatures,
    value: Values,
    log_scale: LogScale = None,
    rate: Float[Tensor, "heads"] | None = None,
) -> WeightedSums:
    """Compute the numerator and denominator of each output of causal linear attention.

    The sequence is divided into chunks. Pairs of tokens within a chunk are computed directly, and
    earlier chunks contribute through sums over their keys. The result of a token is bitwise
    independent of all later tokens.

    Args:
        query: Vectors of the queries.
        key: Vectors of the keys, divided by exp(s_j).
        value: Values.
        log_scale: s_j, or None for 0.
        rate: Decay rate r of every head, or None. The weight of key j is multiplied by
            exp(−r (i − j)). With a rate and without log scales, sums are not divided by a peak.
    """
    if log_scale is None and rate is None and not has_dynamic_size(value.shape[2]):
        totals = [
            weight * _causal_weight_sums(query_vectors, key_vectors)
            for (weight, query_vectors), (_, key_vectors) in zip(
                query.denominator_terms, key.denominator_terms, strict=True
            )
        ]
        numerator = _causal_value_sums(query.numerator, key.numerator, value)
        return WeightedSums(numerator, sum(totals[1:], totals[0]))
    log_scale = torch.zeros_like(value[..., 0]) if log_scale is None else log_scale
    # torch.export must not loop over a number of tokens that may change.
    has_log_peak = rate is None and not has_dynamic_size(value.shape[2])
    log_peak = running_maximum(log_scale.detach()) if has_log_peak else None
    if not query.denominator:
        sums = _scaled_causal_attention_sums(
            query.numerator, key.numerator, log_scale, append_ones(value), rate
        )
        return WeightedSums.from_channels(sums, log_peak)
    query_vectors, key_vectors = (
        query.concatenate_denominator_features(),
        key.concatenate_denominator_features(),
    )
    ones = torch.ones_like(log_scale)[..., None]
    denominator = _scaled_causal_attention_sums(query_vectors, key_vectors, log_scale, ones, rate)[
        ..., 0
    ]
    numerator = _scaled_causal_attention_sums(
        query.numerator, key.numerator, log_scale, value, rate
    )
    return WeightedSums(numerator, denominator, log_peak)


def _causal_value_sums(
    query: QueryFeatures, key: KeyFeatures, value: Values
) -> Float[Tensor, "batch heads queries dim"]:
    """Return the sum Σ_{j ≤ i} (query_i · key_j) value_j for each query i."""
    num_tokens = value.shape[2]
    query, key, value = _split_into_chunks(query, key, value)
    within = (query @ key.mT).tril() @ value
    before = _sums_before(key.mT @ value)
    return (within + query @ before).flatten(2, 3)[:, :, :num_tokens]


def _causal_weight_sums(
    query: QueryFeatures, key: KeyFeatures
) -> Float[Tensor, "batch heads queries"]:
    """Return the sum Σ_{j ≤ i} query_i · key_j for each query i."""
    num_tokens = key.shape[2]
    query, key = _split_into_chunks(query, key)
    size = key.shape[3]
    # A product with a triangular matrix is several times faster than a cumulative sum along the
    # tokens.
    within = key.new_ones(size, size).tril() @ key
    before = _sums_before(key.sum(dim=3, keepdim=True))
    return (query * (within + before)).sum(dim=-1).flatten(2, 3)[:, :, :num_tokens]


def _split_into_chunks(*tensors: Tensor) -> list[Tensor]:
    """Split the tokens of each tensor into chunks of equal size, and pad the last chunk with zeros.

    The results have the shape (batch, heads, chunks, tokens, size).
    """
    num_tokens = tensors[0].shape[2]
    if has_dynamic_size(num_tokens):
        # A gather, because torch.export must not assume that there is more than one chunk.
        chunk = torch.arange(num_tokens // CHUNK_TOKENS + 2, device=tensors[0].device)
        token = chunk[:, None] * CHUNK_TOKENS + torch.arange(CHUNK_TOKENS, device=chunk.device)
        token = token.clamp_max(num_tokens)
        return [
            torch.cat([tensor, torch.zeros_like(tensor[:, :, :1])], dim=2)[:, :, token]
            for tensor in tensors
        ]
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
    """Return the sum of all earlier chunks for every chunk."""
    num_chunks = chunks.shape[2]
    if num_chunks <= MAX_CHUNKS_OF_MATRIX:
        earlier = chunks.new_ones(num_chunks, num_chunks).tril(-1)
        return (earlier @ chunks.flatten(3)).unflatten(3, chunks.shape[3:])
    # Not the cumulative sum minus the chunk itself: rounding would let a later token change an
    # earlier output.
    return pad(chunks[:, :, :-1], (0, 0, 0, 0, 1, 0)).cumsum(dim=2)


def _scaled_causal_attention_sums(
    query: QueryFeatures,
    key: KeyFeatures,
    log_scale: Float[Tensor, "batch heads tokens"],
    channels: Channels,
    rate: Float[Tensor, "heads"] | None,
) -> Channels:
    """Compute causal linear attention of features that were scaled to avoid overflow.

    The results are the numerators of attention if `channels` contains the values, and the
    denominators if it contains ones. The features of key j have been divided by exp(log_scale_j).
    The result of query i is divided by the largest exp(log_scale_j) of the keys j ≤ i. `rate` is
    the rate at which weights decay with the distance.
    """
    num_tokens = channels.shape[2]
    state = channels.new_zeros(*channels.shape[:2], key.shape[-1], channels.shape[-1])
    log_peak = channels.new_full(channels.shape[:2], -torch.inf)
    chunks = _split_into_chunks(query, key, log_scale[..., None], channels)
    if has_dynamic_size(num_tokens):
        sums, _, _ = _causal_attention_sums_of_block(chunks, state, log_peak, rate)
        return sums.index_select(2, torch.arange(num_tokens, device=sums.device))
    blocks = []
    # Split and not sliced, because the gradients of slices are as large as the whole tensor.
    for block in zip(*(tensor.split(BLOCK_CHUNKS, dim=2) for tensor in chunks), strict=True):
        sums, state, log_peak = _causal_attention_sums_of_block(block, state, log_peak, rate)
        blocks.append(sums)
    return torch.cat(blocks, dim=2)[:, :, :num_tokens]


def _causal_attention_sums_of_block(
    tokens: Sequence[Float[Tensor, "batch heads chunks chunk _"]],
    state: Float[Tensor, "batch heads features channels"],
    log_peak: Float[Tensor, "batch heads"],
    rate: Float[Tensor, "heads"] | None,
) -> tuple[Channels, Tensor, Tensor]:
    """Compute causal linear attention for some chunks of tokens, given a state of earlier chunks.

    Pairs of tokens within a chunk are computed directly. Keys of earlier chunks contribute through
    the recurrent state, which is a sum over these keys. To avoid overflow, the state is divided by
    the largest scale of their features.

    Args:
        tokens: Vectors of queries and keys, log scales, and channels: values or ones.
        state: Sums over the keys before the block, divided by exp(log_peak).
        log_peak: The largest log scale before the block, −∞ if there are no keys.
        rate: Decay of every head per token, or None.

    Returns:
        Causal sums, and the state and its log peak after the block.
    """
    query, key, log_scale, channels = tokens
    num_chunks, size = channels.shape[2:4]
    scale = log_scale[..., 0]
    decay = None
    if rate is not None:
        # Positions are counted from the middle of each chunk, so that exponents stay small.
        position = torch.arange(size, dtype=rate.dtype, device=rate.device) - size // 2
        decay = rate[:, None, None] * position
        scale = scale + decay
        log_peak = log_peak - rate * (size // 2 + 1)
    # Peaks only keep numbers in range, so they are constants for the gradient.
    own_peak = scale.detach().amax(dim=-1)
    weighted_keys = key * torch.exp(scale - own_peak[..., None])[..., None]
    own = torch.cat([state[:, :, None], weighted_keys.mT @ channels], dim=2)

    # Row c stands for the sums before chunk c, and the last row for those after the block. Column 0
    # is the state before the block, column c + 1 is chunk c.
    index = torch.arange(num_chunks + 1, device=channels.device)
    peaks = torch.cat([log_peak[..., None], own_peak], dim=-1)[:, :, None]
    if rate is not None:
        elapsed_chunks = index[:, None] - (index - 1).clamp_min(0)
        peaks = peaks - (rate * size)[:, None, None] * elapsed_chunks
    peaks = peaks.masked_fill(index[:, None] < index, -torch.inf)
    peak = peaks.detach().amax(dim=-1)
    shares = torch.exp(peaks - peak.clamp_min(LOWEST_LOG_SCALE)[..., None])
    states = (shares @ own.flatten(3)).unflatten(3, own.shape[3:])
    peak_before = peak[..., :-1, None]
    last_peak = peak[..., -1]
    if rate is not None:
        last_peak = last_peak + rate * (size // 2 + 1)

    row_peak = torch.maximum(peak_before, running_maximum(scale.detach()))
    if decay is not None:
        # The gradient of the decay of row i, which must not be lost with that of its peak.
        row_peak = (row_peak - decay.detach()) + decay
    # Later keys are masked before the exponential, which they might overflow.
    is_later = torch.ones(size, size, dtype=torch.bool, device=channels.device).triu(1)
    exponent = (scale[..., None, :] - row_peak[..., :, None]).masked_fill(is_later, -torch.inf)
    within = (query @ key.mT * torch.exp(exponent)) @ channels
    before = torch.exp(peak_before - row_peak)[..., None] * (query @ states[:, :, :-1])
    return (within + before).flatten(2, 3), states[:, :, -1], last_peak


def running_maximum(values: Float[Tensor, "*batch tokens"]) -> Float[Tensor, "*batch tokens"]:
    """Return the largest value so far, along the last dimension."""
    if not torch.compiler.is_compiling():
        return values.cummax(dim=-1).values
    # ONNX has no cumulative maximum. The maximum is taken over the last 1, 2, 4, … values instead.
    num_values = 1
    while num_values < values.shape[-1]:
        shifted = pad(values, (num_values, 0), value=-torch.inf)[..., : values.shape[-1]]
        values = torch.maximum(values, shifted)
        num_values *= 2
    return values


def make_linear_attention_inputs(
    kernel: FeatureKernel,
    query: Queries,
    key: Keys,
    value: Values,
    *,
    scale: float,
    key_mask: KeyMask,
    is_causal: bool,
    group: ProcessGroup | None = None,
) -> LinearAttentionInputs:
    """Map queries and keys to features, and return them with the values as one object."""
    # The sums of several processes need a log scale for each key, because a factor of all keys
    # would be different in every process.
    query_features, key_features, log_scale = kernel.map_to_features(
        query, key, scale=scale, key_mask=key_mask, is_causal=is_causal or group is not None
    )
    if log_scale is not None and key_mask is not None:
        log_scale = log_scale.masked_fill(~key_mask[:, None], LOWEST_LOG_SCALE)
    return LinearAttentionInputs(
        query=query,
        query_features=query_features,
        key_features=key_features,
        value=value,
        log_scale=log_scale,
        key_mask=key_mask,
        scale=scale,
        is_causal=is_causal,
        group=group,
    )


def attention_sums_without_positions(tokens: LinearAttentionInputs) -> WeightedSums:
    """Compute numerators and denominators of linear attention without a relative kernel."""
    query, key = AttentionFeatures(tokens.query_features), AttentionFeatures(tokens.key_features)
    return linear_attention_sums(tokens, query, key)


def linear_attention_sums(
    tokens: LinearAttentionInputs, query: AttentionFeatures, key: AttentionFeatures
) -> WeightedSums:
    """Compute the numerator and denominator of each output of linear attention.

    Both are sums over all keys, or over the keys up to the query if attention is causal. If the
    tokens are divided among several processes, the keys of all processes are included.

    Args:
        tokens: Values and log scales. Its features are not used.
        query: Features of the queries, which may contain positions.
        key: Features of the keys.
    """
    if tokens.group is not None:
        return _attention_sums_over_processes(tokens, query, key, tokens.group)
    if tokens.is_causal:
        return causal_attention_sums(query, key, tokens.value, tokens.log_scale)
    return LinearState.from_keys(key, tokens.value, tokens.log_scale).weighted_sums(query)


def _attention_sums_over_processes(
    tokens: LinearAttentionInputs,
    query: AttentionFeatures,
    key: AttentionFeatures,
    group: ProcessGroup,
) -> WeightedSums:
    """Compute linear attention from the queries of this process to the keys of all processes.

    In causal attention, queries attend to the keys of earlier processes, and to the keys of this
    process up to their own position. Processes exchange only sums over their keys, whose size does
    not depend on the number of tokens.
    """
    rank = group.rank()
    log_scale = tokens.log_scale
    log_scale = torch.zeros_like(tokens.value[..., 0]) if log_scale is None else log_scale
    own = LinearState.from_keys(key, tokens.value, log_scale)
    assert own.log_peak is not None
    peaks = own.log_peak.new_full((group.size(), *own.log_peak.shape), -torch.inf)
    peaks[rank] = own.log_peak
    distributed.all_reduce(peaks, distributed.ReduceOp.MAX, group)
    ranks = torch.arange(group.size(), device=peaks.device)
    if tokens.is_causal:
        peaks = peaks.masked_fill((ranks >= rank).view(-1, 1, 1), -torch.inf)
    log_peak = peaks.amax(dim=0)
    shares = torch.exp(peaks - log_peak.clamp_min(LOWEST_LOG_SCALE))

    def total(sums: Tensor) -> Tensor:
        shape = (*shares.shape, *[1] * (sums.ndim - 2))
        if not tokens.is_causal:
            return _AllReduceSum.apply(shares.view(shape)[rank] * sums, group)
        # The first process has no earlier keys, but takes part in the exchange.
        is_own = (ranks == rank).to(sums).view(-1, *[1] * sums.ndim)
        return (shares.view(shape) * _AllReduceSum.apply(is_own * sums, group)).sum(dim=0)

    state = LinearState(total(own.values), tuple(map(total, own.weights)), log_peak)
    if not tokens.is_causal:
        return state.weighted_sums(query)
    return causal_attention_sums(query, key, tokens.value, log_scale) + state.weighted_sums(query)


class _AllReduceSum(Function):
    """Differentiable all-reduce, which sums a tensor over all processes of a group.

    The backward pass sums the gradients over the processes as well.
    """

    @staticmethod
    def forward(ctx, tensor, group):
        ctx.group = group
        total = tensor.clone()
        distributed.all_reduce(total, group=group)
        return total

    @staticmethod
    @backward_without_autocast
    def backward(ctx, *grad_outputs):
        return _AllReduceSum.apply(grad_outputs[0], ctx.group), None
