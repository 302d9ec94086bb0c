"""Triton kernels of the gradients of causal attention: what queries ask of sums, and both ways through the blocks."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from teka.functional.backends.triton.block_ops import (
    add_block,
    add_keys,
    block_decay,
    load_places,
    load_sums,
    meet,
    meet_block,
    meet_block_gradient,
    meet_gradient,
    meet_sums,
    meet_sums_gradient,
    sound_sums_asked,
    store_sums,
)
from teka.functional.backends.triton.causal import given_tensors, pair_steps, sums_before
from teka.functional.backends.triton.feature_maps import (
    NO_KEY,
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
from teka.functional.backends.triton.launch import Heads, place_steps, steps


@triton.jit
def peak_before(peaks, row, token, num_tokens, block: tl.constexpr):
    """The largest exponent of the keys before the block that begins with a token."""
    number = token // block
    return tl.load(
        peaks + row * tl.cdiv(num_tokens, block) + number - 1, mask=number > 0, other=NO_KEY
    )


@triton.jit
def sum_over_queries(
    query, places, output, inverse, largest, gradient, peaks, of_sums,
    query_batch, query_head, query_token, output_batch, output_head, output_token, places_batch, places_head,
    heads, num_tokens, dim, dim_value, num_places, num_waves, factor, floor_share, segment,
    kernel: tl.constexpr, form: tl.constexpr, precision: tl.constexpr, block: tl.constexpr,
    size: tl.constexpr, channels: tl.constexpr, width: tl.constexpr, length: tl.constexpr,
    whole: tl.constexpr,
):  # fmt: skip
    """What a segment of queries asks of the sums before it for one wave: their gradients."""
    row, number, wave = (
        tl.program_id(0).to(tl.int64),
        tl.program_id(1).to(tl.int64),
        tl.program_id(2),
    )
    query = row_of(query, row, heads, query_batch, query_head)
    output = row_of(output, row, heads, output_batch, output_head)
    gradient = row_of(gradient, row, heads, output_batch, output_head)
    places = row_of(places, row, heads, places_batch, places_head)
    columns, value_columns = tl.arange(0, size), tl.arange(0, channels)
    inside, value_inside = within(columns, dim, whole), within(value_columns, dim_value, whole)
    state, total = tl.zeros((size, channels), tl.float32), tl.zeros((size,), tl.float32)
    lengths = tl.zeros((size // 2,), tl.float32)
    peak = peak_before(peaks, row, number * segment, num_tokens, block)
    for start in range(number * segment, tl.minimum((number + 1) * segment, num_tokens), block):
        tokens = start + tl.arange(0, block)
        there = tokens < num_tokens
        vectors = load_tokens(query, tokens, columns, query_token, there, inside)
        vectors = where_sound(soundness(vectors), vectors)
        features, _ = feature_map(vectors, inside, factor, floor_share, kernel)
        cosine, sine = load_places(places, tokens, there, num_places, form, precision, width)
        of_above, of_below = sound_sums_asked(
            load_tokens(gradient, tokens, value_columns, output_token, there, value_inside),
            load_tokens(output, tokens, value_columns, output_token, there, value_inside),
            tl.load(inverse + row * num_tokens + tokens, mask=there, other=0.0),
        )
        up_to = tl.load(largest + row * num_tokens + tokens, mask=there, other=0.0)
        fading = tl.exp2(tl.minimum(peak - up_to, 0.0))
        of_wave = tl.full((block,), 1.0, tl.float32)
        if form == "fourier":
            of_wave = tl.load(places + tokens * num_places + wave, mask=there, other=0.0)
        state, total, lengths = add_block(
            state, total, lengths, features, cosine, sine, of_wave, of_above * fading[:, None], of_below * fading, 1.0,
            form, precision, size,
        )  # fmt: skip
    of_sums += ((row * num_waves + wave) * tl.num_programs(1) + number) * length
    store_sums(of_sums, state, total, lengths, form, size, channels)


@triton.jit
def causal_query_gradients(
    query, key, value, key_mask, exponents, query_places, key_places, sums, output, inverse, gradient, peaks,
    of_query, of_places,
    query_batch, query_head, query_token, key_batch, key_head, key_token, value_batch, value_head, value_token,
    output_batch, output_head, output_token, query_places_batch, query_places_head, key_places_batch, key_places_head,
    heads, num_tokens, dim, dim_value, num_places, num_waves, factor, floor_share, segment, share,
    kernel: tl.constexpr, form: tl.constexpr, precision: tl.constexpr, masked: tl.constexpr, block: tl.constexpr,
    size: tl.constexpr, channels: tl.constexpr, width: tl.constexpr, length: tl.constexpr,
    whole: tl.constexpr,
):  # fmt: skip
    """The gradients of a segment of queries and of their places, from its first block to the last."""
    row, number = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    query = row_of(query, row, heads, query_batch, query_head)
    of_query = row_of(of_query, row, heads, query_batch, query_head)
    key = row_of(key, row, heads, key_batch, key_head)
    value = row_of(value, row, heads, value_batch, value_head)
    output = row_of(output, row, heads, output_batch, output_head)
    gradient = row_of(gradient, row, heads, output_batch, output_head)
    query_places = row_of(query_places, row, heads, query_places_batch, query_places_head)
    key_places = row_of(key_places, row, heads, key_places_batch, key_places_head)
    of_places += row * num_tokens * num_places
    columns, value_columns, place_columns = (
        tl.arange(0, size),
        tl.arange(0, channels),
        tl.arange(0, width),
    )
    inside, value_inside = within(columns, dim, whole), within(value_columns, dim_value, whole)
    segments = tl.num_programs(1)
    sums += (row * num_waves * segments + number) * length
    state, total, lengths = load_sums(sums, form, size, channels)
    peak = peak_before(peaks, row, number * segment, num_tokens, block)
    for start in range(number * segment, tl.minimum((number + 1) * segment, num_tokens), block):
        tokens = start + tl.arange(0, block)
        there = tokens < num_tokens
        kept = kept_tokens(key_mask, row // heads, tokens, num_tokens, masked)
        values = load_tokens(value, tokens, value_columns, value_token, kept, value_inside)
        key_vectors = load_tokens(key, tokens, columns, key_token, kept, inside)
        sound = soundness(key_vectors) + soundness(values)
        key_vectors, values = where_sound(sound, key_vectors), where_sound(sound, values)
        key_features, exponent = feature_map(key_vectors, inside, factor, floor_share, kernel)
        exponent = known_exponents(exponents, row, tokens, num_tokens, kept, exponent, kernel)
        vectors = load_tokens(query, tokens, columns, query_token, there, inside)
        vectors = where_sound(soundness(vectors), vectors)
        features, _ = feature_map(vectors, inside, factor, floor_share, kernel)
        cosine, sine = load_places(query_places, tokens, there, num_places, form, precision, width)
        key_cosine, key_sine = load_places(
            key_places, tokens, kept, num_places, form, precision, width
        )
        of_above, of_below = sound_sums_asked(
            load_tokens(gradient, tokens, value_columns, output_token, there, value_inside),
            load_tokens(output, tokens, value_columns, output_token, there, value_inside),
            tl.load(inverse + row * num_tokens + tokens, mask=there, other=0.0),
        )
        decay, up_to = block_decay(exponent, kept, peak)
        of_pairs = tl.dot(of_above, tl.trans(values), input_precision=precision) * decay
        of_features, of_block = meet_block_gradient(
            features, cosine, sine, key_features, key_cosine, key_sine, of_pairs, of_below[:, None] * decay, share,
            form, precision, size,
        )  # fmt: skip
        fading = tl.exp2(peak - up_to)
        of_above, of_below = of_above * fading[:, None], of_below * fading
        if form == "fourier":
            more, more_places = meet_sums_gradient(
                features, cosine, sine, query_places, tokens, there, of_above, of_below, sums, segments * length,
                num_places, share, form, precision, size, channels, width,
            )  # fmt: skip
        else:
            more, more_places = meet_gradient(
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
            vectors, of_features + more, inside, factor, floor_share, kernel
        )
        store_tokens(of_query, of_vectors, tokens, columns, query_token, there, inside)
        if form != "none":
            of_block += more_places
            store_tokens(
                of_places,
                of_block,
                tokens,
                place_columns,
                num_places,
                there,
                place_columns < num_places,
            )
        ones = tl.full((block,), 1.0, tl.float32)
        state, total, lengths, peak = add_keys(
            state, total, lengths, peak, key_features, exponent, kept, key_cosine, key_sine, ones, values,
            form, precision, size,
        )  # fmt: skip


@triton.jit
def causal_key_gradients(
    query, key, value, key_mask, exponents, query_places, key_places, of_sums, output, inverse, gradient, peaks,
    of_key, of_value, of_places,
    query_batch, query_head, query_token, key_batch, key_head, key_token, value_batch, value_head, value_token,
    output_batch, output_head, output_token, query_places_batch, query_places_head, key_places_batch, key_places_head,
    heads, num_tokens, dim, dim_value, num_places, num_waves, factor, floor_share, segment, share,
    kernel: tl.constexpr, form: tl.constexpr, precision: tl.constexpr, masked: tl.constexpr, block: tl.constexpr,
    size: tl.constexpr, channels: tl.constexpr, width: tl.constexpr, length: tl.constexpr,
    whole: tl.constexpr,
):  # fmt: skip
    """The gradients of a segment of keys, of values and of keys' places, from its last block to the first."""
    row, number = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    query = row_of(query, row, heads, query_batch, query_head)
    key = row_of(key, row, heads, key_batch, key_head)
    of_key = row_of(of_key, row, heads, key_batch, key_head)
    value = row_of(value, row, heads, value_batch, value_head)
    of_value = row_of(of_value, row, heads, value_batch, value_head)
    output = row_of(output, row, heads, output_batch, output_head)
    gradient = row_of(gradient, row, heads, output_batch, output_head)
    query_places = row_of(query_places, row, heads, query_places_batch, query_places_head)
    key_places = row_of(key_places, row, heads, key_places_batch, key_places_head)
    of_places += row * num_tokens * num_places
    columns, value_columns, place_columns = (
        tl.arange(0, size),
        tl.arange(0, channels),
        tl.arange(0, width),
    )
    inside, value_inside = within(columns, dim, whole), within(value_columns, dim_value, whole)
    segments = tl.num_programs(1)
    of_sums += (row * num_waves * segments + number) * length
    state, total, lengths = load_sums(of_sums, form, size, channels)
    stop = tl.minimum((number + 1) * segment, num_tokens)
    ones = tl.full((block,), 1.0, tl.float32)
    for back in range(0, tl.cdiv(stop - number * segment, block)):
        start = (tl.cdiv(stop, block) - 1 - back) * block
        tokens = start + tl.arange(0, block)
        there = tokens < num_tokens
        kept = kept_tokens(key_mask, row // heads, tokens, num_tokens, masked)
        values = load_tokens(value, tokens, value_columns, value_token, kept, value_inside)
        vectors = load_tokens(key, tokens, columns, key_token, kept, inside)
        sound = soundness(vectors) + soundness(values)
        vectors, values = where_sound(sound, vectors), where_sound(sound, values)
        features, exponent = feature_map(vectors, inside, factor, floor_share, kernel)
        exponent = known_exponents(exponents, row, tokens, num_tokens, kept, exponent, kernel)
        query_vectors = load_tokens(query, tokens, columns, query_token, there, inside)
        query_vectors = where_sound(soundness(query_vectors), query_vectors)
        query_features, _ = feature_map(query_vectors, inside, factor, floor_share, kernel)
        query_cosine, query_sine = load_places(
            query_places, tokens, there, num_places, form, precision, width
        )
        cosine, sine = load_places(key_places, tokens, kept, num_places, form, precision, width)
        of_above, of_below = sound_sums_asked(
            load_tokens(gradient, tokens, value_columns, output_token, there, value_inside),
            load_tokens(output, tokens, value_columns, output_token, there, value_inside),
            tl.load(inverse + row * num_tokens + tokens, mask=there, other=0.0),
        )
        before = peak_before(peaks, row, start, num_tokens, block)
        after = peak_before(peaks, row, start + block, num_tokens, block)
        decay, up_to = block_decay(exponent, kept, before)
        pairs, _ = meet_block(
            query_features,
            query_cosine,
            query_sine,
            features,
            cosine,
            sine,
            share,
            form,
            precision,
            size,
        )
        of_values = tl.dot(tl.trans(pairs * decay), of_above, input_precision=precision)
        of_pairs = tl.trans(tl.dot(of_above, tl.trans(values), input_precision=precision) * decay)
        of_features, of_block = meet_block_gradient(
            features, cosine, sine, query_features, query_cosine, query_sine, of_pairs,
            tl.trans(of_below[:, None] * decay), share, form, precision, size,
        )  # fmt: skip
        weight = tl.where(kept, tl.exp2(tl.minimum(exponent - after, 0.0)), 0.0)
        weighed = features * weight[:, None]
        if form == "fourier":
            later_values, _ = meet_sums(
                weighed, cosine, sine, key_places, tokens, kept, of_sums, segments * length, num_places, share,
                form, precision, size, channels,
            )  # fmt: skip
            later, later_places = meet_sums_gradient(
                weighed, cosine, sine, key_places, tokens, kept, values, ones, of_sums, segments * length,
                num_places, share, form, precision, size, channels, width,
            )  # fmt: skip
        else:
            later_values, _ = meet(
                weighed, cosine, sine, state, total, lengths, share, form, precision, size
            )
            later, later_places = meet_gradient(
                weighed,
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
        of_features += later * weight[:, None]
        of_vectors = feature_map_gradient(vectors, of_features, inside, factor, floor_share, kernel)
        store_tokens(of_key, of_vectors, tokens, columns, key_token, there, inside)
        store_tokens(
            of_value,
            of_values + later_values,
            tokens,
            value_columns,
            value_token,
            there,
            value_inside,
        )
        if form != "none":
            of_block += later_places
            store_tokens(
                of_places,
                of_block,
                tokens,
                place_columns,
                num_places,
                there,
                place_columns < num_places,
            )
        fading = tl.exp2(before - up_to)
        state, total, lengths = add_block(
            state, total, lengths, query_features, query_cosine, query_sine, ones, of_above * fading[:, None],
            of_below * fading, tl.exp2(before - after), form, precision, size,
        )  # fmt: skip


def causal_gradients(
    heads: Heads, gradient: Tensor, output: Tensor, factors: Tensor, sums: Tensor, peaks: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of queries, keys, values and the places of queries and of keys, from that of outputs."""
    query, key, value, segment = heads.query, heads.key, heads.value, heads.segment
    if gradient.stride() != output.stride():
        gradient = torch.empty_like(output).copy_(gradient)
    (inverse, largest), of_sums, numbers = factors, torch.empty_like(sums), heads.numbers(query)
    strides = *steps(query), *steps(output), *place_steps(heads.query_places)
    tensors = query, heads.query_places, output, inverse, largest, gradient, peaks, of_sums
    grid = heads.grid(query, segment, heads.num_waves)
    heads.launch(sum_over_queries, grid, *tensors, *strides, *numbers, segment)
    every = segment // heads.block
    before = torch.nn.functional.pad(peaks[:, every - 1 : -1 : every], (1, 0), value=NO_KEY.value)
    keep = torch.exp2(before - torch.cat([before[:, 1:], peaks[:, -1:]], dim=-1))
    sums_before(heads, of_sums, keep, torch.ones_like(keep), first=sums.shape[2] - 1, step=-1)
    of_query, of_key, of_value = (torch.empty_like(one) for one in (query, key, value))
    of_places, of_key_places = heads.new_place_gradients()
    given, shared, grid = (
        given_tensors(heads),
        (output, inverse, gradient, peaks),
        heads.grid(query, segment),
    )
    numbers = *pair_steps(heads, output), *numbers, segment, heads.map.share
    tensors = *given, sums, *shared, of_query, of_places
    heads.launch(causal_query_gradients, grid, *tensors, *numbers, masked=heads.masked)
    tensors = *given, of_sums, *shared, of_key, of_value, of_key_places
    heads.launch(causal_key_gradients, grid, *tensors, *numbers, masked=heads.masked)
    return of_query, of_key, of_value, of_places, of_key_places
