"""Triton kernels (GPU programs) of linear attention and of its gradients.

The output of a query is a numerator divided by a denominator. Both are products of the features of
the query with sums over keys j. These sums are called the state:

- Σ r_j v_jᵀ, where r_j are the features of the key, rotated by its position, and v_j is its value;
- Σ p_j, where p_j are the features of the key without a rotation;
- Σ l_j, where l_j are the lengths of its pairs of features that are rotated together.

The state is divided by 2^peak to prevent overflow, where peak is the largest exponent of the keys'
features.

A sequence is divided into segments, and a segment into blocks. One program processes one segment of
one head:

1. `compute_segment_states` computes the state of every segment of keys.
2. If causal, `scan_segments` replaces these states by the state of all earlier segments. Otherwise
   they are added.
3. `compute_outputs` computes the outputs. If causal, the state is updated block by block, and the
   pairs within a block are computed directly. The numerator and denominator of a query are divided
   by 2^m, where m is the largest exponent of the keys up to the query, so that no bit of an output
   depends on a later key.
4. `compute_query_gradients` computes gradients of the queries and of the states. After a second
   scan, from the last segment to the first, `compute_key_gradients` computes those of the keys and
   values.

These kernels have many parameters in common:

- `heads`: Number of heads of a sample.
- `num_tokens`, `segment`, `block`: Number of tokens of a sequence, a segment and a block.
- `query_cosine`, `query_sine`, `key_cosine`, `key_sine`: Cosines and sines of the rotary angles.
- `num_query_angles`, `num_key_angles`: Number of samples with angles of their own times `heads`.
- `states`, `peaks`: States of all segments, or their sum, and the exponents by which they are
  divided.
- `root_scale`: √scale of the kernel "elu".
- `floor_share`: ε/√d of the rectified kernels.
- `plain_root`, `length_root`: √(1 − λ) and √λ, as in `feature_maps`.
- `heads_first`: True if heads come before tokens in memory.
- `precision`: Precision of matrix products.
- `dim`, `dim_value`: Size of a key and of a value. `size` and `channels` are these sizes, padded to
  a power of 2.
- `length`: Number of elements of a state.
"""

import triton
import triton.language as tl

from teka.functional.backends.triton.feature_maps import (
    NO_KEY,
    TINY,
    clear_nonfinite_rows,
    compute_and_store_gradients,
    compute_memory_rows,
    load_and_map_features,
    load_and_mark_nonfinite,
    load_key_mask,
    load_rows,
    store_rows,
)


@triton.jit
def load_state(pointer, size: tl.constexpr, channels: tl.constexpr):
    """Load the three sums of a recurrent state from contiguous GPU memory."""
    rows = tl.arange(0, size)
    value_sum = tl.load(pointer + rows[:, None] * channels + tl.arange(0, channels)[None, :])
    pointer += size * channels
    return value_sum, tl.load(pointer + rows), tl.load(pointer + size + tl.arange(0, size // 2))


@triton.jit
def store_state(
    pointer, value_sum, plain_sum, length_sum, size: tl.constexpr, channels: tl.constexpr
):
    """Store the three sums of a recurrent state in contiguous GPU memory."""
    rows = tl.arange(0, size)
    tl.store(pointer + rows[:, None] * channels + tl.arange(0, channels)[None, :], value_sum)
    pointer += size * channels
    tl.store(pointer + rows, plain_sum)
    tl.store(pointer + size + tl.arange(0, size // 2), length_sum)


@triton.jit
def empty_state(size: tl.constexpr, channels: tl.constexpr):
    """Return the recurrent state of a sequence without tokens."""
    value_sum = tl.zeros((size, channels), tl.float32)
    return value_sum, tl.zeros((size,), tl.float32), tl.zeros((size // 2,), tl.float32)


@triton.jit
def decay_and_add_to_state(
    value_sum,
    plain_sum,
    length_sum,
    decay,
    rotated,
    plain,
    lengths,
    values,
    weights,
    rotary: tl.constexpr,
    precision: tl.constexpr,
):
    """Decay the recurrent state of linear attention, and add sums over a block of tokens to it.

    The state is multiplied by `decay`. The sums over keys are Σ features · valueᵀ for the
    numerators and Σ features · weight for the denominators, where masked keys have weight 0. The
    backward pass adds queries and gradients in the same way to the gradient of the state.
    """
    product = tl.dot(tl.trans(rotated), values, input_precision=precision)
    value_sum = value_sum * decay + product
    plain_sum = plain_sum * decay + tl.sum(plain * weights[:, None], axis=0)
    if rotary:
        length_sum = length_sum * decay + tl.sum(lengths * weights[:, None], axis=0)
    return value_sum, plain_sum, length_sum


@triton.jit
def add_keys_without_overflow(
    value_sum,
    plain_sum,
    length_sum,
    peak,
    rotated,
    plain,
    lengths,
    exponent,
    keep,
    values,
    rotary: tl.constexpr,
    precision: tl.constexpr,
):
    """Accumulate a block of keys into the state of linear attention, without overflow.

    The features of each key are divided by 2^exponent, and the state is divided by 2^peak. The peak
    is the largest exponent of all keys in the state, so that the sums do not overflow. Return the
    updated state and its peak.
    """
    new_peak = tl.maximum(tl.max(tl.where(keep, exponent, NO_KEY), axis=0), peak)
    weights = tl.where(keep, tl.exp2(tl.minimum(exponent - new_peak, 0.0)), 0.0)
    values = values * weights[:, None]
    decay = tl.exp2(peak - new_peak)
    value_sum, plain_sum, length_sum = decay_and_add_to_state(
        value_sum,
        plain_sum,
        length_sum,
        decay,
        rotated,
        plain,
        lengths,
        values,
        weights,
        rotary,
        precision,
    )
    return value_sum, plain_sum, length_sum, new_peak


@triton.jit
def compute_query_feature_gradients(
    grad_numerator, grad_denominator, value_sum, plain_sum, length_sum, precision: tl.constexpr
):
    """Compute the gradients of query features from those of numerators and denominators.

    In linear attention, numerators and denominators are products of query features with sums over
    keys.
    """
    grad_rotated = tl.dot(grad_numerator, tl.trans(value_sum), input_precision=precision)
    grad_plain = grad_denominator[:, None] * plain_sum[None, :]
    grad_lengths = grad_denominator[:, None] * length_sum[None, :]
    return grad_rotated, grad_plain, grad_lengths


@triton.jit
def compute_causal_pair_scales(exponent, keep, peak):
    """Return the factor by which each key counts for each query in a block of causal attention.

    The features of a key have been divided by a power of 2, which the factor restores. To prevent
    overflow, the factors of a query are relative to the largest power of all keys up to the query,
    whose exponent is returned as well. The factors of later and masked keys are 0.
    """
    tokens = tl.arange(0, exponent.shape[0])
    is_seen = (tokens[:, None] >= tokens[None, :]) & keep[None, :]
    largest = tl.max(tl.where(is_seen, exponent[None, :], NO_KEY), axis=1)
    largest = tl.maximum(largest, peak)
    decay = tl.exp2(tl.minimum(exponent[None, :] - largest[:, None], 0.0))
    return tl.where(is_seen, decay, 0.0), largest


@triton.jit
def compute_pair_weights(
    rotated,
    plain,
    lengths,
    key_rotated,
    key_plain,
    key_lengths,
    decay,
    rotary: tl.constexpr,
    precision: tl.constexpr,
):
    """Return the attention weights of all query–key pairs in a block of tokens.

    The first result is the matrix of weights for the numerators, and the second that for the
    denominators. They differ only with rotary position embedding.
    """
    weights = tl.dot(rotated, tl.trans(key_rotated), input_precision=precision)
    totals = weights
    if rotary:
        totals = tl.dot(plain, tl.trans(key_plain), input_precision=precision)
        totals += tl.dot(lengths, tl.trans(key_lengths), input_precision=precision)
    return weights * decay, totals * decay


@triton.jit
def compute_pair_feature_gradients(
    grad_weights,
    grad_totals,
    rotated,
    plain,
    lengths,
    rotary: tl.constexpr,
    precision: tl.constexpr,
):
    """Compute the gradients of the features in a block from the gradients of attention weights.

    An attention weight is an inner product of the features of a query and of a key.
    """
    if rotary:
        grad_rotated = tl.dot(grad_weights, rotated, input_precision=precision)
        grad_plain = tl.dot(grad_totals, plain, input_precision=precision)
        grad_lengths = tl.dot(grad_totals, lengths, input_precision=precision)
    else:
        grad_rotated = tl.dot(grad_weights + grad_totals, rotated, input_precision=precision)
        grad_plain = tl.zeros_like(plain)
        grad_lengths = tl.zeros_like(lengths)
    return grad_rotated, grad_plain, grad_lengths


@triton.jit
def load_output_gradients(
    gradient,
    output,
    inverse,
    rows,
    head_rows,
    keep,
    is_causal: tl.constexpr,
    dim_value: tl.constexpr,
    channels: tl.constexpr,
):
    """Load the gradients of outputs, and compute the gradients of numerators and denominators.

    Each output of linear attention is a numerator divided by a denominator.
    """
    grad_output = load_rows(gradient, rows, keep, dim_value, channels)
    outputs = load_rows(output, rows, keep, dim_value, channels)
    inverses = tl.load(inverse + head_rows, mask=keep, other=0.0)
    if is_causal:
        # Outputs of NaN have no gradient.
        grad_output = clear_nonfinite_rows(grad_output, inverses)
        outputs = clear_nonfinite_rows(outputs, inverses)
        inverses = tl.where(inverses == inverses, inverses, 0.0)
    grad_numerator = grad_output * inverses[:, None]
    return grad_numerator, -tl.sum(grad_numerator * outputs, axis=1)


@triton.jit
def load_peak_of_earlier_blocks(block_peaks, head, token, num_tokens, block: tl.constexpr):
    """Load the peak of the earlier blocks of tokens, the largest exponent of their key features.

    The state of these blocks is stored divided by 2^peak, so that it does not overflow.
    """
    index = token // block
    pointer = block_peaks + head * tl.cdiv(num_tokens, block) + index - 1
    return tl.load(pointer, mask=index > 0, other=NO_KEY)


@triton.jit
def scan_segments(
    states, decays, weights, num_segments, length, is_reversed: tl.constexpr, tile: tl.constexpr
):
    """Replace the sums over the keys of each segment by the sums over all earlier segments.

    The kernel goes through the segments and accumulates their sums. At each segment, it multiplies
    the accumulated sums by the segment's decay, and adds the sums of the segment times its weight.
    With `is_reversed`, it starts at the last segment.
    """
    head = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * tile + tl.arange(0, tile)
    inside = columns < length
    state = tl.zeros((tile,), tl.float32)
    for step in range(num_segments):
        segment = head * num_segments + step
        if is_reversed:
            segment = (head + 1) * num_segments - 1 - step
        pointer = states + segment * length + columns
        own = tl.load(pointer, mask=inside, other=0.0)
        tl.store(pointer, state, mask=inside)
        state = state * tl.load(decays + segment) + own * tl.load(weights + segment)


@triton.jit
def compute_segment_states(
    key,
    value,
    key_mask,
    cosine,
    sine,
    states,
    peaks,
    heads,
    num_tokens,
    segment,
    num_query_angles,
    num_key_angles,
    root_scale,
    floor_share,
    plain_root,
    length_root,
    kernel: tl.constexpr,
    rotary: tl.constexpr,
    is_causal: tl.constexpr,
    is_masked: tl.constexpr,
    heads_first: tl.constexpr,
    precision: tl.constexpr,
    block: tl.constexpr,
    dim: tl.constexpr,
    dim_value: tl.constexpr,
    size: tl.constexpr,
    channels: tl.constexpr,
    length: tl.constexpr,
):
    """Compute the recurrent state of linear attention for one segment of a sequence.

    The state sums the products of key features and values over the keys of the segment. It is
    stored divided by 2^peak to avoid overflow, where the peak is the largest exponent of the key
    features. In causal attention, keys and values with NaN or infinity are left out, and mark the
    segment by a peak of NaN. The module describes the parameters.
    """
    head = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1).to(tl.int64)
    value_sum, plain_sum, length_sum = empty_state(size, channels)
    peak = tl.max(tl.full((block,), NO_KEY, tl.float32), axis=0)
    past_poison = peak * 0.0
    for start in range(index * segment, tl.minimum((index + 1) * segment, num_tokens), block):
        tokens = start + tl.arange(0, block)
        rows = compute_memory_rows(head, tokens, num_tokens, heads, heads_first)
        keep = load_key_mask(key_mask, head, tokens, num_tokens, heads, is_masked)
        angle_rows = head % num_key_angles * num_tokens + tokens
        values, value_poison = load_and_mark_nonfinite(
            value, rows, keep, is_causal, dim_value, channels
        )
        _, poison, _, exponent, rotated, plain, lengths, _, _ = load_and_map_features(
            key,
            cosine,
            sine,
            rows,
            angle_rows,
            keep,
            root_scale,
            floor_share,
            plain_root,
            length_root,
            kernel,
            rotary,
            is_causal,
            dim,
            size,
        )
        if is_causal:
            poison += value_poison
            keep = keep & (poison == poison)
            past_poison += tl.sum(poison, axis=0)
        value_sum, plain_sum, length_sum, peak = add_keys_without_overflow(
            value_sum,
            plain_sum,
            length_sum,
            peak,
            rotated,
            plain,
            lengths,
            exponent,
            keep,
            values,
            rotary,
            precision,
        )
    segment_index = head * tl.num_programs(1) + index
    store_state(states + segment_index * length, value_sum, plain_sum, length_sum, size, channels)
    tl.store(peaks + segment_index, peak + past_poison)


@triton.jit
def compute_outputs(
    query,
    key,
    value,
    key_mask,
    query_cosine,
    query_sine,
    key_cosine,
    key_sine,
    states,
    state_peaks,
    output,
    inverse,
    block_peaks,
    heads,
    num_tokens,
    segment,
    num_query_angles,
    num_key_angles,
    root_scale,
    floor_share,
    plain_root,
    length_root,
    kernel: tl.constexpr,
    rotary: tl.constexpr,
    is_causal: tl.constexpr,
    is_masked: tl.constexpr,
    heads_first: tl.constexpr,
    precision: tl.constexpr,
    block: tl.constexpr,
    dim: tl.constexpr,
    dim_value: tl.constexpr,
    size: tl.constexpr,
    channels: tl.constexpr,
    length: tl.constexpr,
):
    """Compute the outputs of linear attention for one segment of queries, from sums over keys.

    For the backward pass, the inverses of the denominators are stored as well. In causal attention,
    so is the largest exponent of the key features up to the end of each block. The module describes
    the parameters.
    """
    head = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1).to(tl.int64)
    state_index = head
    if is_causal:
        state_index = head * tl.num_programs(1) + index
    value_sum, plain_sum, length_sum = load_state(states + state_index * length, size, channels)
    peak = tl.load(state_peaks + state_index)
    past_poison = peak * 0.0
    peak = tl.where(past_poison == past_poison, peak, NO_KEY)
    for start in range(index * segment, tl.minimum((index + 1) * segment, num_tokens), block):
        tokens = start + tl.arange(0, block)
        rows = compute_memory_rows(head, tokens, num_tokens, heads, heads_first)
        inside = tokens < num_tokens
        angle_rows = head % num_query_angles * num_tokens + tokens
        _, poison, _, _, rotated, plain, lengths, _, _ = load_and_map_features(
            query,
            query_cosine,
            query_sine,
            rows,
            angle_rows,
            inside,
            root_scale,
            floor_share,
            plain_root,
            length_root,
            kernel,
            rotary,
            is_causal,
            dim,
            size,
        )
        numerator = tl.dot(rotated, value_sum, input_precision=precision)
        denominator = tl.sum(plain * plain_sum[None, :], axis=1)
        if rotary:
            denominator += tl.sum(lengths * length_sum[None, :], axis=1)
        if is_causal:
            keep = load_key_mask(key_mask, head, tokens, num_tokens, heads, is_masked)
            angle_rows = head % num_key_angles * num_tokens + tokens
            values, value_poison = load_and_mark_nonfinite(
                value, rows, keep, is_causal, dim_value, channels
            )
            _, key_poison, _, exponent, key_rotated, key_plain, key_lengths, _, _ = (
                load_and_map_features(
                    key,
                    key_cosine,
                    key_sine,
                    rows,
                    angle_rows,
                    keep,
                    root_scale,
                    floor_share,
                    plain_root,
                    length_root,
                    kernel,
                    rotary,
                    is_causal,
                    dim,
                    size,
                )
            )
            key_poison += value_poison
            keep = keep & (key_poison == key_poison)
            decay, largest = compute_causal_pair_scales(exponent, keep, peak)
            weights, totals = compute_pair_weights(
                rotated,
                plain,
                lengths,
                key_rotated,
                key_plain,
                key_lengths,
                decay,
                rotary,
                precision,
            )
            fading = tl.exp2(peak - largest)
            products = tl.dot(weights, values, input_precision=precision)
            numerator = numerator * fading[:, None] + products
            denominator = denominator * fading + tl.sum(totals, axis=1)
            # A key that is not finite makes its own output and all later ones NaN.
            order = tl.arange(0, block)
            is_seen = order[:, None] >= order[None, :]
            poison += past_poison + tl.sum(tl.where(is_seen, key_poison[None, :], 0.0), axis=1)
            past_poison += tl.sum(key_poison, axis=0)
            value_sum, plain_sum, length_sum, peak = add_keys_without_overflow(
                value_sum,
                plain_sum,
                length_sum,
                peak,
                key_rotated,
                key_plain,
                key_lengths,
                exponent,
                keep,
                values,
                rotary,
                precision,
            )
            tl.store(block_peaks + head * tl.cdiv(num_tokens, block) + start // block, peak)
        inverses = tl.where(denominator < TINY, 0.0, 1 / tl.maximum(denominator, TINY))
        if is_causal:
            inverses += poison
        store_rows(output, numerator * inverses[:, None], rows, inside, dim_value, channels)
        tl.store(inverse + head * num_tokens + tokens, inverses, mask=inside)


@triton.jit
def compute_query_gradients(
    query,
    key,
    value,
    key_mask,
    query_cosine,
    query_sine,
    key_cosine,
    key_sine,
    states,
    peaks,
    output,
    inverse,
    gradient,
    grad_query,
    grad_angles,
    grad_states,
    heads,
    num_tokens,
    segment,
    num_query_angles,
    num_key_angles,
    root_scale,
    floor_share,
    plain_root,
    length_root,
    kernel: tl.constexpr,
    rotary: tl.constexpr,
    is_causal: tl.constexpr,
    is_masked: tl.constexpr,
    heads_first: tl.constexpr,
    precision: tl.constexpr,
    block: tl.constexpr,
    dim: tl.constexpr,
    dim_value: tl.constexpr,
    size: tl.constexpr,
    channels: tl.constexpr,
    length: tl.constexpr,
):
    """Compute the gradients of the queries in one segment, and of the sums over earlier keys.

    The sums over the keys before the segment are the recurrent state of linear attention. The
    module describes the parameters.
    """
    head = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1).to(tl.int64)
    segment_index = head * tl.num_programs(1) + index
    state_index = head
    peak = 0.0
    if is_causal:
        state_index = segment_index
        peak = load_peak_of_earlier_blocks(peaks, head, index * segment, num_tokens, block)
    first_peak = peak
    value_sum, plain_sum, length_sum = load_state(states + state_index * length, size, channels)
    grad_value_sum, grad_plain_sum, grad_length_sum = empty_state(size, channels)
    for start in range(index * segment, tl.minimum((index + 1) * segment, num_tokens), block):
        tokens = start + tl.arange(0, block)
        rows = compute_memory_rows(head, tokens, num_tokens, heads, heads_first)
        head_rows = head * num_tokens + tokens
        inside = tokens < num_tokens
        angle_rows = head % num_query_angles * num_tokens + tokens
        vectors, _, features, _, rotated, plain, lengths, cosines, sines = load_and_map_features(
            query,
            query_cosine,
            query_sine,
            rows,
            angle_rows,
            inside,
            root_scale,
            floor_share,
            plain_root,
            length_root,
            kernel,
            rotary,
            is_causal,
            dim,
            size,
        )
        grad_numerator, grad_denominator = load_output_gradients(
            gradient, output, inverse, rows, head_rows, inside, is_causal, dim_value, channels
        )
        fading = tl.full((block,), 1.0, tl.float32)
        first_fading = fading
        if is_causal:
            keep = load_key_mask(key_mask, head, tokens, num_tokens, heads, is_masked)
            angle_rows = head % num_key_angles * num_tokens + tokens
            values, value_poison = load_and_mark_nonfinite(
                value, rows, keep, is_causal, dim_value, channels
            )
            _, key_poison, _, exponent, key_rotated, key_plain, key_lengths, _, _ = (
                load_and_map_features(
                    key,
                    key_cosine,
                    key_sine,
                    rows,
                    angle_rows,
                    keep,
                    root_scale,
                    floor_share,
                    plain_root,
                    length_root,
                    kernel,
                    rotary,
                    is_causal,
                    dim,
                    size,
                )
            )
            key_poison += value_poison
            keep = keep & (key_poison == key_poison)
            decay, largest = compute_causal_pair_scales(exponent, keep, peak)
            fading = tl.exp2(peak - largest)
            first_fading = tl.exp2(first_peak - largest)
        grad_rotated, grad_plain, grad_lengths = compute_query_feature_gradients(
            grad_numerator * fading[:, None],
            grad_denominator * fading,
            value_sum,
            plain_sum,
            length_sum,
            precision,
        )
        grad_value_sum, grad_plain_sum, grad_length_sum = decay_and_add_to_state(
            grad_value_sum,
            grad_plain_sum,
            grad_length_sum,
            1.0,
            rotated,
            plain,
            lengths,
            grad_numerator * first_fading[:, None],
            grad_denominator * first_fading,
            rotary,
            precision,
        )
        if is_causal:
            grad_weights = (
                tl.dot(grad_numerator, tl.trans(values), input_precision=precision) * decay
            )
            grad_totals = grad_denominator[:, None] * decay
            pair_rotated, pair_plain, pair_lengths = compute_pair_feature_gradients(
                grad_weights, grad_totals, key_rotated, key_plain, key_lengths, rotary, precision
            )
            grad_rotated += pair_rotated
            grad_plain += pair_plain
            grad_lengths += pair_lengths
            value_sum, plain_sum, length_sum, peak = add_keys_without_overflow(
                value_sum,
                plain_sum,
                length_sum,
                peak,
                key_rotated,
                key_plain,
                key_lengths,
                exponent,
                keep,
                values,
                rotary,
                precision,
            )
        compute_and_store_gradients(
            grad_query,
            grad_angles,
            rows,
            head_rows,
            inside,
            vectors,
            features,
            rotated,
            cosines,
            sines,
            grad_rotated,
            grad_plain,
            grad_lengths,
            root_scale,
            floor_share,
            plain_root,
            length_root,
            kernel,
            rotary,
            dim,
            size,
        )
    store_state(
        grad_states + segment_index * length,
        grad_value_sum,
        grad_plain_sum,
        grad_length_sum,
        size,
        channels,
    )


@triton.jit
def compute_key_gradients(
    query,
    key,
    value,
    key_mask,
    query_cosine,
    query_sine,
    key_cosine,
    key_sine,
    grad_states,
    peaks,
    output,
    inverse,
    gradient,
    grad_key,
    grad_value,
    grad_angles,
    heads,
    num_tokens,
    segment,
    num_query_angles,
    num_key_angles,
    root_scale,
    floor_share,
    plain_root,
    length_root,
    kernel: tl.constexpr,
    rotary: tl.constexpr,
    is_causal: tl.constexpr,
    is_masked: tl.constexpr,
    heads_first: tl.constexpr,
    precision: tl.constexpr,
    block: tl.constexpr,
    dim: tl.constexpr,
    dim_value: tl.constexpr,
    size: tl.constexpr,
    channels: tl.constexpr,
    length: tl.constexpr,
):
    """Compute the gradients of the keys and values in one segment of a sequence.

    The segment is processed from its last block to its first. In causal attention, the gradients of
    later queries are accumulated from block to block. The module describes the parameters.
    """
    head = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1).to(tl.int64)
    state_index = head
    if is_causal:
        state_index = head * tl.num_programs(1) + index
    grad_value_sum, grad_plain_sum, grad_length_sum = load_state(
        grad_states + state_index * length, size, channels
    )
    stop = tl.minimum((index + 1) * segment, num_tokens)
    for step in range(0, tl.cdiv(stop - index * segment, block)):
        start = (tl.cdiv(stop, block) - 1 - step) * block
        tokens = start + tl.arange(0, block)
        rows = compute_memory_rows(head, tokens, num_tokens, heads, heads_first)
        head_rows = head * num_tokens + tokens
        inside = tokens < num_tokens
        keep = load_key_mask(key_mask, head, tokens, num_tokens, heads, is_masked)
        angle_rows = head % num_key_angles * num_tokens + tokens
        values, value_poison = load_and_mark_nonfinite(
            value, rows, keep, is_causal, dim_value, channels
        )
        vectors, poison, features, exponent, rotated, plain, lengths, cosines, sines = (
            load_and_map_features(
                key,
                key_cosine,
                key_sine,
                rows,
                angle_rows,
                keep,
                root_scale,
                floor_share,
                plain_root,
                length_root,
                kernel,
                rotary,
                is_causal,
                dim,
                size,
            )
        )
        if is_causal:
            poison += value_poison
            keep = keep & (poison == poison)
            peak = load_peak_of_earlier_blocks(peaks, head, start + block, num_tokens, block)
        else:
            peak = tl.load(peaks + head)
        weights = tl.where(keep, tl.exp2(tl.minimum(exponent - peak, 0.0)), 0.0)
        grad_values = tl.dot(rotated, grad_value_sum, input_precision=precision) * weights[:, None]
        grad_rotated, grad_plain, grad_lengths = compute_query_feature_gradients(
            values * weights[:, None],
            weights,
            grad_value_sum,
            grad_plain_sum,
            grad_length_sum,
            precision,
        )
        if is_causal:
            angle_rows = head % num_query_angles * num_tokens + tokens
            _, _, _, _, query_rotated, query_plain, query_lengths, _, _ = load_and_map_features(
                query,
                query_cosine,
                query_sine,
                rows,
                angle_rows,
                inside,
                root_scale,
                floor_share,
                plain_root,
                length_root,
                kernel,
                rotary,
                is_causal,
                dim,
                size,
            )
            grad_numerator, grad_denominator = load_output_gradients(
                gradient, output, inverse, rows, head_rows, inside, is_causal, dim_value, channels
            )
            first_peak = load_peak_of_earlier_blocks(peaks, head, start, num_tokens, block)
            decay, largest = compute_causal_pair_scales(exponent, keep, first_peak)
            pairs, _ = compute_pair_weights(
                query_rotated,
                query_plain,
                query_lengths,
                rotated,
                plain,
                lengths,
                decay,
                rotary,
                precision,
            )
            grad_values += tl.dot(tl.trans(pairs), grad_numerator, input_precision=precision)
            grad_weights = (
                tl.dot(grad_numerator, tl.trans(values), input_precision=precision) * decay
            )
            grad_totals = grad_denominator[:, None] * decay
            pair_rotated, pair_plain, pair_lengths = compute_pair_feature_gradients(
                tl.trans(grad_weights),
                tl.trans(grad_totals),
                query_rotated,
                query_plain,
                query_lengths,
                rotary,
                precision,
            )
            grad_rotated += pair_rotated
            grad_plain += pair_plain
            grad_lengths += pair_lengths
            fading = tl.exp2(first_peak - largest)
            grad_value_sum, grad_plain_sum, grad_length_sum = decay_and_add_to_state(
                grad_value_sum,
                grad_plain_sum,
                grad_length_sum,
                tl.exp2(first_peak - peak),
                query_rotated,
                query_plain,
                query_lengths,
                grad_numerator * fading[:, None],
                grad_denominator * fading,
                rotary,
                precision,
            )
        compute_and_store_gradients(
            grad_key,
            grad_angles,
            rows,
            head_rows,
            inside,
            vectors,
            features,
            rotated,
            cosines,
            sines,
            grad_rotated,
            grad_plain,
            grad_lengths,
            root_scale,
            floor_share,
            plain_root,
            length_root,
            kernel,
            rotary,
            dim,
            size,
        )
        store_rows(grad_value, grad_values, rows, inside, dim_value, channels)
