"""Triton kernels of sums over all keys: sums of segments of keys, what queries make of them, and the gradients."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from teka.functional.backends.triton.block_ops import (
    add_block,
    add_keys,
    load_places,
    load_sums,
    meet,
    meet_gradient,
    meet_sums,
    meet_sums_gradient,
    store_sums,
    sums_asked,
)
from teka.functional.backends.triton.feature_maps import (
    NO_KEY,
    TINY,
    feature_map,
    feature_map_gradient,
    kept_tokens,
    known_exponents,
    load_tokens,
    row_of,
    soundness,
    store_tokens,
    where_sound,
    within,
)
from teka.functional.backends.triton.launch import Heads, new_output, place_steps, run, steps

# Numbers of sums that one program adds.
ADDED = 256


@triton.jit
def sum_over_keys(
    key, value, key_mask, exponents, places, sums, peaks,
    key_batch, key_head, key_token, value_batch, value_head, value_token, places_batch, places_head,
    heads, num_tokens, dim, dim_value, num_places, num_waves, factor, floor_share, segment,
    kernel: tl.constexpr, form: tl.constexpr, precision: tl.constexpr, masked: tl.constexpr, block: tl.constexpr,
    size: tl.constexpr, channels: tl.constexpr, width: tl.constexpr, length: tl.constexpr,
    whole: tl.constexpr, checked: tl.constexpr,
):  # fmt: skip
    """Σ φ̃(k_j) v_jᵀ and Σ φ(k_j) of a segment over 2^e, for one wave; and the largest e. A program a segment.

    Checked, keys that are not sound are left out, and e is NaN where there are any.
    """
    row, number, wave = (
        tl.program_id(0).to(tl.int64),
        tl.program_id(1).to(tl.int64),
        tl.program_id(2),
    )
    key = row_of(key, row, heads, key_batch, key_head)
    value = row_of(value, row, heads, value_batch, value_head)
    places = row_of(places, row, heads, places_batch, places_head)
    columns, value_columns = tl.arange(0, size), tl.arange(0, channels)
    inside, value_inside = within(columns, dim, whole), within(value_columns, dim_value, whole)
    state, total = tl.zeros((size, channels), tl.float32), tl.zeros((size,), tl.float32)
    lengths, peak = (
        tl.zeros((size // 2,), tl.float32),
        tl.max(tl.full((block,), NO_KEY, tl.float32), axis=0),
    )
    spoiled = peak * 0.0
    for start in range(number * segment, tl.minimum((number + 1) * segment, num_tokens), block):
        tokens = start + tl.arange(0, block)
        kept = kept_tokens(key_mask, row // heads, tokens, num_tokens, masked)
        vectors = load_tokens(key, tokens, columns, key_token, kept, inside)
        values = load_tokens(value, tokens, value_columns, value_token, kept, value_inside)
        if checked:
            sound = soundness(vectors) + soundness(values)
            vectors, values = where_sound(sound, vectors), where_sound(sound, values)
            spoiled += tl.sum(sound, axis=0)
        features, exponent = feature_map(vectors, inside, factor, floor_share, kernel)
        exponent = known_exponents(exponents, row, tokens, num_tokens, kept, exponent, kernel)
        cosine, sine = load_places(places, tokens, kept, num_places, form, precision, width)
        of_wave = tl.full((block,), 1.0, tl.float32)
        if form == "fourier":
            of_wave = tl.load(places + tokens * num_places + wave, mask=kept, other=0.0)
        state, total, lengths, peak = add_keys(
            state,
            total,
            lengths,
            peak,
            features,
            exponent,
            kept,
            cosine,
            sine,
            of_wave,
            values,
            form,
            precision,
            size,
        )
    segments = tl.num_programs(1)
    sums += ((row * num_waves + wave) * segments + number) * length
    store_sums(sums, state, total, lengths, form, size, channels)
    tl.store(peaks + row * segments + number, peak + spoiled, mask=wave == 0)


@triton.jit
def add_segments(sums, peaks, total, peak, num_waves, num_segments, length, tile: tl.constexpr):
    """Σ over segments of sums over 2^p, with p each segment's peak, over the largest; and that."""
    row, columns = tl.program_id(0).to(tl.int64), tl.program_id(1) * tile + tl.arange(0, tile)
    inside, numbers = columns < length, tl.zeros((tile,), tl.float32)
    largest = tl.max(tl.full((tile,), NO_KEY, tl.float32), axis=0)
    for number in range(num_segments):
        place = row * num_segments + number
        own = tl.load(peaks + row // num_waves * num_segments + number)
        before, largest = largest, tl.maximum(largest, own)
        own = tl.load(sums + place * length + columns, mask=inside, other=0.0) * tl.exp2(
            own - largest
        )
        numbers = numbers * tl.exp2(before - largest) + own
    tl.store(total + row * length + columns, numbers, mask=inside)
    tl.store(peak + row // num_waves, largest)


@triton.jit
def weighted_means(
    query, places, sums, output, inverse,
    query_batch, query_head, query_token, output_batch, output_head, output_token, places_batch, places_head,
    heads, num_tokens, dim, dim_value, num_places, num_waves, factor, floor_share, segment, share,
    kernel: tl.constexpr, form: tl.constexpr, precision: tl.constexpr, block: tl.constexpr,
    size: tl.constexpr, channels: tl.constexpr, width: tl.constexpr, length: tl.constexpr,
    whole: tl.constexpr,
):  # fmt: skip
    """out_i = N_i / D_i from the sums over all keys, and 1/D_i. A program a segment of queries."""
    row, number = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    query = row_of(query, row, heads, query_batch, query_head)
    output = row_of(output, row, heads, output_batch, output_head)
    places = row_of(places, row, heads, places_batch, places_head)
    columns, value_columns = tl.arange(0, size), tl.arange(0, channels)
    inside, value_inside = within(columns, dim, whole), within(value_columns, dim_value, whole)
    sums += row * num_waves * length
    state, total, lengths = load_sums(sums, form, size, channels)
    for start in range(number * segment, tl.minimum((number + 1) * segment, num_tokens), block):
        tokens = start + tl.arange(0, block)
        there = tokens < num_tokens
        vectors = load_tokens(query, tokens, columns, query_token, there, inside)
        features, _ = feature_map(vectors, inside, factor, floor_share, kernel)
        cosine, sine = load_places(places, tokens, there, num_places, form, precision, width)
        if form == "fourier":
            above, below = meet_sums(
                features, cosine, sine, places, tokens, there, sums, length, num_places, share,
                form, precision, size, channels,
            )  # fmt: skip
        else:
            above, below = meet(
                features, cosine, sine, state, total, lengths, share, form, precision, size
            )
        over = tl.where(below < TINY, 0.0, 1 / tl.maximum(below, TINY))
        store_tokens(
            output, above * over[:, None], tokens, value_columns, output_token, there, value_inside
        )
        tl.store(inverse + row * num_tokens + tokens, over, mask=there)


@triton.jit
def query_gradients(
    query, places, sums, output, inverse, gradient, of_query, of_places, of_sums,
    query_batch, query_head, query_token, output_batch, output_head, output_token, places_batch, places_head,
    heads, num_tokens, dim, dim_value, num_places, num_waves, factor, floor_share, segment, share,
    kernel: tl.constexpr, form: tl.constexpr, precision: tl.constexpr, block: tl.constexpr,
    size: tl.constexpr, channels: tl.constexpr, width: tl.constexpr, length: tl.constexpr,
    whole: tl.constexpr,
):  # fmt: skip
    """The gradients of a segment of queries and of their places, and its part of those of the sums for one wave.

    A program a segment and a wave; what is of all waves the first one computes.
    """
    row, number, wave = (
        tl.program_id(0).to(tl.int64),
        tl.program_id(1).to(tl.int64),
        tl.program_id(2),
    )
    query = row_of(query, row, heads, query_batch, query_head)
    of_query = row_of(of_query, row, heads, query_batch, query_head)
    output = row_of(output, row, heads, output_batch, output_head)
    gradient = row_of(gradient, row, heads, output_batch, output_head)
    places = row_of(places, row, heads, places_batch, places_head)
    of_places += row * num_tokens * num_places
    columns, value_columns, place_columns = (
        tl.arange(0, size),
        tl.arange(0, channels),
        tl.arange(0, width),
    )
    inside, value_inside = within(columns, dim, whole), within(value_columns, dim_value, whole)
    sums += row * num_waves * length
    of_state, of_total = tl.zeros((size, channels), tl.float32), tl.zeros((size,), tl.float32)
    of_lengths = tl.zeros((size // 2,), tl.float32)
    state, total, lengths = load_sums(sums, form, size, channels)
    for start in range(number * segment, tl.minimum((number + 1) * segment, num_tokens), block):
        tokens = start + tl.arange(0, block)
        there = tokens < num_tokens
        vectors = load_tokens(query, tokens, columns, query_token, there, inside)
        features, _ = feature_map(vectors, inside, factor, floor_share, kernel)
        cosine, sine = load_places(places, tokens, there, num_places, form, precision, width)
        of_above, of_below = sums_asked(
            load_tokens(gradient, tokens, value_columns, output_token, there, value_inside),
            load_tokens(output, tokens, value_columns, output_token, there, value_inside),
            tl.load(inverse + row * num_tokens + tokens, mask=there, other=0.0),
        )
        of_wave = tl.full((block,), 1.0, tl.float32)
        if form == "fourier":
            of_wave = tl.load(places + tokens * num_places + wave, mask=there, other=0.0)
        of_state, of_total, of_lengths = add_block(
            of_state, of_total, of_lengths, features, cosine, sine, of_wave, of_above, of_below, 1.0,
            form, precision, size,
        )  # fmt: skip
        if form == "fourier":
            if wave == 0:
                of_features, asked = meet_sums_gradient(
                    features, cosine, sine, places, tokens, there, of_above, of_below, sums, length, num_places, share,
                    form, precision, size, channels, width,
                )  # fmt: skip
                of_vectors = feature_map_gradient(
                    vectors, of_features, inside, factor, floor_share, kernel
                )
                store_tokens(of_query, of_vectors, tokens, columns, query_token, there, inside)
                store_tokens(
                    of_places,
                    asked,
                    tokens,
                    place_columns,
                    num_places,
                    there,
                    place_columns < num_places,
                )
        else:
            of_features, asked = meet_gradient(
                features,
                cosine,
                sine,
                of_above,
                of_below,
                state,
                total,
                lengths,
                share,
                form,
                precision,
                size,
            )
            of_vectors = feature_map_gradient(
                vectors, of_features, inside, factor, floor_share, kernel
            )
            store_tokens(of_query, of_vectors, tokens, columns, query_token, there, inside)
            if form == "rotary":
                store_tokens(
                    of_places,
                    asked,
                    tokens,
                    place_columns,
                    num_places,
                    there,
                    place_columns < num_places,
                )
    of_sums += ((row * num_waves + wave) * tl.num_programs(1) + number) * length
    store_sums(of_sums, of_state, of_total, of_lengths, form, size, channels)


@triton.jit
def key_gradients(
    key, value, key_mask, places, sums, peaks, of_key, of_value, of_places,
    key_batch, key_head, key_token, value_batch, value_head, value_token, places_batch, places_head,
    heads, num_tokens, dim, dim_value, num_places, num_waves, factor, floor_share, segment, share,
    kernel: tl.constexpr, form: tl.constexpr, precision: tl.constexpr, masked: tl.constexpr, block: tl.constexpr,
    size: tl.constexpr, channels: tl.constexpr, width: tl.constexpr, length: tl.constexpr,
    whole: tl.constexpr,
):  # fmt: skip
    """The gradients of a segment of keys, of values and of the keys' places from those of the sums over all of them."""
    row, number = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    key = row_of(key, row, heads, key_batch, key_head)
    of_key = row_of(of_key, row, heads, key_batch, key_head)
    value = row_of(value, row, heads, value_batch, value_head)
    of_value = row_of(of_value, row, heads, value_batch, value_head)
    places = row_of(places, row, heads, places_batch, places_head)
    of_places += row * num_tokens * num_places
    columns, value_columns, place_columns = (
        tl.arange(0, size),
        tl.arange(0, channels),
        tl.arange(0, width),
    )
    inside, value_inside = within(columns, dim, whole), within(value_columns, dim_value, whole)
    sums += row * num_waves * length
    state, total, lengths = load_sums(sums, form, size, channels)
    peak, ones = tl.load(peaks + row), tl.full((block,), 1.0, tl.float32)
    for start in range(number * segment, tl.minimum((number + 1) * segment, num_tokens), block):
        tokens = start + tl.arange(0, block)
        there = tokens < num_tokens
        kept = kept_tokens(key_mask, row // heads, tokens, num_tokens, masked)
        vectors = load_tokens(key, tokens, columns, key_token, kept, inside)
        values = load_tokens(value, tokens, value_columns, value_token, kept, value_inside)
        features, exponent = feature_map(vectors, inside, factor, floor_share, kernel)
        weight = tl.where(kept, tl.exp2(tl.minimum(exponent - peak, 0.0)), 0.0)
        features *= weight[:, None]
        cosine, sine = load_places(places, tokens, kept, num_places, form, precision, width)
        if form == "fourier":
            of_values, _ = meet_sums(
                features, cosine, sine, places, tokens, kept, sums, length, num_places, share,
                form, precision, size, channels,
            )  # fmt: skip
            of_features, of_block = meet_sums_gradient(
                features, cosine, sine, places, tokens, kept, values, ones, sums, length, num_places, share,
                form, precision, size, channels, width,
            )  # fmt: skip
        else:
            of_values, _ = meet(
                features, cosine, sine, state, total, lengths, share, form, precision, size
            )
            of_features, of_block = meet_gradient(
                features,
                cosine,
                sine,
                values,
                ones,
                state,
                total,
                lengths,
                share,
                form,
                precision,
                size,
            )
        of_vectors = feature_map_gradient(
            vectors, of_features * weight[:, None], inside, factor, floor_share, kernel
        )
        store_tokens(of_key, of_vectors, tokens, columns, key_token, there, inside)
        store_tokens(of_value, of_values, tokens, value_columns, value_token, there, value_inside)
        if form != "none":
            store_tokens(
                of_places,
                of_block,
                tokens,
                place_columns,
                num_places,
                there,
                place_columns < num_places,
            )


def key_sums(heads: Heads) -> tuple[Tensor, Tensor]:
    """Sums of every segment of keys, (rows, waves, segments, length), and their exponents."""
    key, value, places = heads.key, heads.value, heads.key_places
    segment = heads.segment if heads.map.is_causal else heads.long_segment(key)
    grid = heads.grid(key, segment, heads.num_waves)
    sums, peaks = heads.empty(heads.num_waves, grid[1], heads.length), heads.empty(grid[1])
    tensors = key, value, heads.key_mask, heads.exponents, places, sums, peaks
    strides = *steps(key), *steps(value), *place_steps(places)
    numbers, options = (
        (*heads.numbers(key), segment),
        {"masked": heads.masked, "checked": heads.map.is_causal},
    )
    heads.launch(sum_over_keys, grid, *tensors, *strides, *numbers, **options)
    return sums, peaks


def two_sided(heads: Heads) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Outputs, 1/D_i, the sums over all keys, (rows, waves, length), over 2^peak, and the peaks."""
    query, places = heads.query, heads.query_places
    segments, peaks = key_sums(heads)
    sums, peak = heads.empty(heads.num_waves, heads.length), heads.empty()
    grid = heads.rows * heads.num_waves, triton.cdiv(heads.length, ADDED)
    run(
        add_segments,
        grid,
        segments,
        peaks,
        sums,
        peak,
        heads.num_waves,
        *segments.shape[2:],
        tile=ADDED,
    )
    output, inverse = new_output(query, heads.value), heads.empty(query.shape[2])
    tensors = query, places, sums, output, inverse
    strides = *steps(query), *steps(output), *place_steps(places)
    segment = heads.long_segment(query)
    numbers = *heads.numbers(query), segment, heads.map.share
    heads.launch(weighted_means, heads.grid(query, segment), *tensors, *strides, *numbers)
    return output, inverse, sums, peak


def two_sided_gradients(
    heads: Heads, gradient: Tensor, output: Tensor, inverse: Tensor, sums: Tensor, peak: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of queries, keys, values and the places of queries and of keys, from that of outputs."""
    query, key, value, places = heads.query, heads.key, heads.value, heads.query_places
    if gradient.stride() != output.stride():
        gradient = torch.empty_like(output).copy_(gradient)
    of_query, of_key, of_value = (torch.empty_like(one) for one in (query, key, value))
    of_places, of_key_places = heads.new_place_gradients()
    segment, key_segment = heads.long_segment(query), heads.long_segment(key)
    grid = heads.grid(query, segment, heads.num_waves)
    of_sums = heads.empty(heads.num_waves, grid[1], heads.length)
    tensors = query, places, sums, output, inverse, gradient, of_query, of_places, of_sums
    strides = *steps(query), *steps(output), *place_steps(places)
    heads.launch(
        query_gradients, grid, *tensors, *strides, *heads.numbers(query), segment, heads.map.share
    )
    of_sums, places = of_sums.sum(dim=2), heads.key_places
    tensors = key, value, heads.key_mask, places, of_sums, peak, of_key, of_value, of_key_places
    strides = *steps(key), *steps(value), *place_steps(places)
    numbers, grid = (
        (*heads.numbers(key), key_segment, heads.map.share),
        heads.grid(key, key_segment),
    )
    heads.launch(key_gradients, grid, *tensors, *strides, *numbers, masked=heads.masked)
    return of_query, of_key, of_value, of_places, of_key_places
