"""Triton kernels of sums over all keys: sums of segments of keys, what queries make of them, and the gradients."""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from teka.functional.backend.gpu.maps import (
    NO_KEY,
    TINY,
    feature_map,
    feature_map_gradient,
    kept_tokens,
    load_tokens,
    store_tokens,
)
from teka.functional.backend.gpu.products import (
    add_block,
    load_places,
    meet_sums,
    meet_sums_gradient,
    store_sums,
    sums_asked,
)


@triton.jit
def row_of(pointer, row, heads, batch_stride, head_stride):
    """Where the tokens of one head of one sample begin."""
    return pointer + row // heads * batch_stride + row % heads * head_stride


@triton.jit
def sum_over_keys(
    key, value, key_mask, places, sums, peaks,
    key_batch, key_head, key_token, value_batch, value_head, value_token, places_batch, places_head,
    heads, num_tokens, dim, dim_value, num_places, num_waves, factor, floor_share, segment,
    kernel: tl.constexpr, form: tl.constexpr, precision: tl.constexpr, masked: tl.constexpr, block: tl.constexpr,
    size: tl.constexpr, channels: tl.constexpr, width: tl.constexpr, length: tl.constexpr,
):  # fmt: skip
    """Σ φ̃(k_j) v_jᵀ and Σ φ(k_j) of a segment over 2^e, for one wave; and the largest e. A program a segment."""
    row, number, wave = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.program_id(2)
    key = row_of(key, row, heads, key_batch, key_head)
    value = row_of(value, row, heads, value_batch, value_head)
    places = row_of(places, row, heads, places_batch, places_head)
    columns, value_columns = tl.arange(0, size), tl.arange(0, channels)
    inside, value_inside = columns < dim, value_columns < dim_value
    state, total = tl.zeros((size, channels), tl.float32), tl.zeros((size,), tl.float32)
    lengths, peak = tl.zeros((size // 2,), tl.float32), tl.max(tl.full((block,), NO_KEY, tl.float32), axis=0)
    for start in range(number * segment, tl.minimum((number + 1) * segment, num_tokens), block):
        tokens = start + tl.arange(0, block)
        kept = kept_tokens(key_mask, row // heads, tokens, num_tokens, masked)
        vectors = load_tokens(key, tokens, columns, key_token, kept, inside)
        values = load_tokens(value, tokens, value_columns, value_token, kept, value_inside)
        features, exponent = feature_map(vectors, inside, factor, floor_share, kernel)
        largest = tl.maximum(tl.max(tl.where(kept, exponent, NO_KEY), axis=0), peak)
        features *= tl.where(kept, tl.exp2(tl.minimum(exponent - largest, 0.0)), 0.0)[:, None]
        cosine, sine = load_places(places, tokens, kept, num_places, form, width)
        of_wave = tl.zeros((block,), tl.float32) + 1
        if form == "fourier":
            of_wave = tl.load(places + tokens * num_places + wave, mask=kept, other=0.0)
        counts, keep = tl.zeros((block,), tl.float32) + 1, tl.exp2(peak - largest)
        state, total, lengths = add_block(
            state, total, lengths, features, cosine, sine, of_wave, values, counts, keep, form, precision, size
        )
        peak = largest
    segments = tl.num_programs(1)
    sums += ((row * num_waves + wave) * segments + number) * length
    store_sums(sums, state, total, lengths, form, size, channels)
    tl.store(peaks + row * segments + number, peak, mask=wave == 0)


@triton.jit
def weighted_means(
    query, places, sums, output, inverse,
    query_batch, query_head, query_token, output_batch, output_head, output_token, places_batch, places_head,
    heads, num_tokens, dim, dim_value, num_places, num_waves, factor, floor_share, share,
    kernel: tl.constexpr, form: tl.constexpr, precision: tl.constexpr, block: tl.constexpr,
    size: tl.constexpr, channels: tl.constexpr, width: tl.constexpr, length: tl.constexpr,
):  # fmt: skip
    """out_i = N_i / D_i from the sums over all keys, and 1/D_i. A program a block of queries."""
    row, number = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    query = row_of(query, row, heads, query_batch, query_head)
    output = row_of(output, row, heads, output_batch, output_head)
    places = row_of(places, row, heads, places_batch, places_head)
    columns, value_columns = tl.arange(0, size), tl.arange(0, channels)
    inside, value_inside = columns < dim, value_columns < dim_value
    tokens = number * block + tl.arange(0, block)
    there = tokens < num_tokens
    vectors = load_tokens(query, tokens, columns, query_token, there, inside)
    features, _ = feature_map(vectors, inside, factor, floor_share, kernel)
    cosine, sine = load_places(places, tokens, there, num_places, form, width)
    above, below = meet_sums(
        features, cosine, sine, places, tokens, there, sums + row * num_waves * length, length, num_places, share,
        form, precision, size, channels,
    )  # fmt: skip
    over = 1 / tl.maximum(below, TINY)
    store_tokens(output, above * over[:, None], tokens, value_columns, output_token, there, value_inside)
    tl.store(inverse + row * num_tokens + tokens, over, mask=there)


@triton.jit
def query_gradients(
    query, places, sums, output, inverse, gradient, of_query, of_places, of_sums,
    query_batch, query_head, query_token, output_batch, output_head, output_token, places_batch, places_head,
    heads, num_tokens, dim, dim_value, num_places, num_waves, factor, floor_share, segment, share,
    kernel: tl.constexpr, form: tl.constexpr, precision: tl.constexpr, block: tl.constexpr,
    size: tl.constexpr, channels: tl.constexpr, width: tl.constexpr, length: tl.constexpr,
):  # fmt: skip
    """The gradients of a segment of queries and of their places, and its part of those of the sums for one wave.

    A program a segment and a wave; what is of all waves the first one computes.
    """
    row, number, wave = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.program_id(2)
    query = row_of(query, row, heads, query_batch, query_head)
    of_query = row_of(of_query, row, heads, query_batch, query_head)
    output = row_of(output, row, heads, output_batch, output_head)
    gradient = row_of(gradient, row, heads, output_batch, output_head)
    places = row_of(places, row, heads, places_batch, places_head)
    of_places += row * num_tokens * num_places
    columns, value_columns, place_columns = tl.arange(0, size), tl.arange(0, channels), tl.arange(0, width)
    inside, value_inside = columns < dim, value_columns < dim_value
    state, total = tl.zeros((size, channels), tl.float32), tl.zeros((size,), tl.float32)
    lengths = tl.zeros((size // 2,), tl.float32)
    for start in range(number * segment, tl.minimum((number + 1) * segment, num_tokens), block):
        tokens = start + tl.arange(0, block)
        there = tokens < num_tokens
        vectors = load_tokens(query, tokens, columns, query_token, there, inside)
        features, _ = feature_map(vectors, inside, factor, floor_share, kernel)
        cosine, sine = load_places(places, tokens, there, num_places, form, width)
        of_above, of_below = sums_asked(
            load_tokens(gradient, tokens, value_columns, output_token, there, value_inside),
            load_tokens(output, tokens, value_columns, output_token, there, value_inside),
            tl.load(inverse + row * num_tokens + tokens, mask=there, other=0.0),
        )
        of_wave = tl.zeros((block,), tl.float32) + 1
        if form == "fourier":
            of_wave = tl.load(places + tokens * num_places + wave, mask=there, other=0.0)
        state, total, lengths = add_block(
            state, total, lengths, features, cosine, sine, of_wave, of_above, of_below, 1.0, form, precision, size
        )
        if wave == 0:
            of_features, asked = meet_sums_gradient(
                features, cosine, sine, places, tokens, there, of_above, of_below, sums + row * num_waves * length,
                length, num_places, share, form, precision, size, channels, width,
            )  # fmt: skip
            of_vectors = feature_map_gradient(vectors, of_features, inside, factor, floor_share, kernel)
            store_tokens(of_query, of_vectors, tokens, columns, query_token, there, inside)
            if form != "none":
                store_tokens(of_places, asked, tokens, place_columns, num_places, there, place_columns < num_places)
    of_sums += ((row * num_waves + wave) * tl.num_programs(1) + number) * length
    store_sums(of_sums, state, total, lengths, form, size, channels)


@triton.jit
def key_gradients(
    key, value, key_mask, places, sums, peaks, of_key, of_value, of_places,
    key_batch, key_head, key_token, value_batch, value_head, value_token, places_batch, places_head,
    heads, num_tokens, dim, dim_value, num_places, num_waves, factor, floor_share, share,
    kernel: tl.constexpr, form: tl.constexpr, precision: tl.constexpr, masked: tl.constexpr, block: tl.constexpr,
    size: tl.constexpr, channels: tl.constexpr, width: tl.constexpr, length: tl.constexpr,
):  # fmt: skip
    """The gradients of a block of keys, of values and of the keys' places from those of the sums over all of them."""
    row, number = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    key = row_of(key, row, heads, key_batch, key_head)
    of_key = row_of(of_key, row, heads, key_batch, key_head)
    value = row_of(value, row, heads, value_batch, value_head)
    of_value = row_of(of_value, row, heads, value_batch, value_head)
    places = row_of(places, row, heads, places_batch, places_head)
    of_places += row * num_tokens * num_places
    columns, value_columns, place_columns = tl.arange(0, size), tl.arange(0, channels), tl.arange(0, width)
    inside, value_inside = columns < dim, value_columns < dim_value
    tokens = number * block + tl.arange(0, block)
    there = tokens < num_tokens
    kept = kept_tokens(key_mask, row // heads, tokens, num_tokens, masked)
    vectors = load_tokens(key, tokens, columns, key_token, kept, inside)
    values = load_tokens(value, tokens, value_columns, value_token, kept, value_inside)
    features, exponent = feature_map(vectors, inside, factor, floor_share, kernel)
    weight = tl.where(kept, tl.exp2(tl.minimum(exponent - tl.load(peaks + row), 0.0)), 0.0)
    features *= weight[:, None]
    cosine, sine = load_places(places, tokens, kept, num_places, form, width)
    sums += row * num_waves * length
    of_values, _ = meet_sums(
        features, cosine, sine, places, tokens, kept, sums, length, num_places, share,
        form, precision, size, channels,
    )  # fmt: skip
    of_features, of_block = meet_sums_gradient(
        features, cosine, sine, places, tokens, kept, values, tl.zeros((block,), tl.float32) + 1, sums, length,
        num_places, share, form, precision, size, channels, width,
    )  # fmt: skip
    of_vectors = feature_map_gradient(vectors, of_features * weight[:, None], inside, factor, floor_share, kernel)
    store_tokens(of_key, of_vectors, tokens, columns, key_token, there, inside)
    store_tokens(of_value, of_values, tokens, value_columns, value_token, there, value_inside)
    if form != "none":
        store_tokens(of_places, of_block, tokens, place_columns, num_places, there, place_columns < num_places)
