"""Triton kernels of causal attention: sums of the segments before, carried on block by block, and pairs of a block.

A query's weights are over 2^m_i with m_i the largest exponent of the keys up to it: no bit depends on a later key.
From a key or value on that holds NaN or an infinity all outputs are NaN, and none before it: they are left out of all
sums, and 1/D_i is NaN there.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from teka.functional.backends.triton.bidirectional import ADDED, key_sums
from teka.functional.backends.triton.block_ops import (
    add_keys,
    block_decay,
    load_places,
    load_sums,
    meet,
    meet_block,
    meet_sums,
)
from teka.functional.backends.triton.feature_maps import (
    NO_KEY,
    TINY,
    feature_map,
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


@triton.jit
def hand_on(sums, keep, take, num_waves, num_segments, length, first, step, tile: tl.constexpr):
    """Every segment's sums become those of all before it: at each step S ← keep · S + take · own."""
    row, columns = tl.program_id(0).to(tl.int64), tl.program_id(1) * tile + tl.arange(0, tile)
    factors = row // num_waves * num_segments
    inside, before = columns < length, tl.zeros((tile,), tl.float32)
    for number in range(num_segments):
        place = first + step * number
        own = sums + (row * num_segments + place) * length + columns
        mine = tl.load(own, mask=inside, other=0.0)
        tl.store(own, before, mask=inside)
        before = before * tl.load(keep + factors + place) + mine * tl.load(take + factors + place)


@triton.jit
def causal_means(
    query, key, value, key_mask, exponents, query_places, key_places, sums, before, output, inverse, largest, peaks,
    query_batch, query_head, query_token, key_batch, key_head, key_token, value_batch, value_head, value_token,
    output_batch, output_head, output_token, query_places_batch, query_places_head, key_places_batch, key_places_head,
    heads, num_tokens, dim, dim_value, num_places, num_waves, factor, floor_share, segment, share,
    kernel: tl.constexpr, form: tl.constexpr, precision: tl.constexpr, masked: tl.constexpr, block: tl.constexpr,
    size: tl.constexpr, channels: tl.constexpr, width: tl.constexpr, length: tl.constexpr,
    whole: tl.constexpr,
):  # fmt: skip
    """out_i = N_i / D_i of a segment, 1/D_i and m_i; and the largest exponent up to the end of every block."""
    row, number = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    query = row_of(query, row, heads, query_batch, query_head)
    key = row_of(key, row, heads, key_batch, key_head)
    value = row_of(value, row, heads, value_batch, value_head)
    output = row_of(output, row, heads, output_batch, output_head)
    query_places = row_of(query_places, row, heads, query_places_batch, query_places_head)
    key_places = row_of(key_places, row, heads, key_places_batch, key_places_head)
    columns, value_columns = tl.arange(0, size), tl.arange(0, channels)
    inside, value_inside = within(columns, dim, whole), within(value_columns, dim_value, whole)
    segments, blocks = tl.num_programs(1), tl.cdiv(num_tokens, block)
    sums += (row * num_waves * segments + number) * length
    state, total, lengths = load_sums(sums, form, size, channels)
    peak = tl.load(before + row * segments + number)
    spoiled = peak * 0.0
    peak = tl.where(spoiled == spoiled, peak, NO_KEY)
    for start in range(number * segment, tl.minimum((number + 1) * segment, num_tokens), block):
        tokens = start + tl.arange(0, block)
        there = tokens < num_tokens
        kept = kept_tokens(key_mask, row // heads, tokens, num_tokens, masked)
        values = load_tokens(value, tokens, value_columns, value_token, kept, value_inside)
        vectors = load_tokens(query, tokens, columns, query_token, there, inside)
        over = soundness(vectors)
        features, _ = feature_map(where_sound(over, vectors), inside, factor, floor_share, kernel)
        vectors = load_tokens(key, tokens, columns, key_token, kept, inside)
        sound = soundness(vectors) + soundness(values)
        vectors, values = where_sound(sound, vectors), where_sound(sound, values)
        key_features, exponent = feature_map(vectors, inside, factor, floor_share, kernel)
        exponent = known_exponents(exponents, row, tokens, num_tokens, kept, exponent, kernel)
        cosine, sine = load_places(query_places, tokens, there, num_places, form, precision, width)
        key_cosine, key_sine = load_places(
            key_places, tokens, kept, num_places, form, precision, width
        )
        decay, up_to = block_decay(exponent, kept, peak)
        above, below = meet_block(
            features, cosine, sine, key_features, key_cosine, key_sine, share, form, precision, size
        )
        above = tl.dot(above * decay, values, input_precision=precision)
        below = tl.sum(below * decay, axis=1)
        if form == "fourier":
            more, more_below = meet_sums(
                features, cosine, sine, query_places, tokens, there, sums, segments * length, num_places, share,
                form, precision, size, channels,
            )  # fmt: skip
        else:
            more, more_below = meet(
                features, cosine, sine, state, total, lengths, share, form, precision, size
            )
        fading = tl.exp2(peak - up_to)
        above, below = above + fading[:, None] * more, below + fading * more_below
        numbers = tl.arange(0, block)
        over += spoiled + tl.sum(
            tl.where(numbers[:, None] >= numbers[None, :], sound[None, :], 0.0), axis=1
        )
        over += tl.where(below < TINY, 0.0, 1 / tl.maximum(below, TINY))
        spoiled += tl.sum(sound, axis=0)
        store_tokens(
            output, above * over[:, None], tokens, value_columns, output_token, there, value_inside
        )
        tl.store(inverse + row * num_tokens + tokens, over, mask=there)
        tl.store(largest + row * num_tokens + tokens, up_to, mask=there)
        ones = tl.full((block,), 1.0, tl.float32)
        state, total, lengths, peak = add_keys(
            state, total, lengths, peak, key_features, exponent, kept, key_cosine, key_sine, ones, values,
            form, precision, size,
        )  # fmt: skip
        tl.store(peaks + row * blocks + start // block, peak)


def pair_steps(heads: Heads, output: Tensor) -> tuple[int, ...]:
    """From one sample, head and token of all tensors to the next."""
    of_tokens = *steps(heads.query), *steps(heads.key), *steps(heads.value), *steps(output)
    return *of_tokens, *place_steps(heads.query_places), *place_steps(heads.key_places)


def given_tensors(heads: Heads) -> tuple[Tensor, ...]:
    """What all kernels of causal attention read of every token."""
    of_keys = heads.key, heads.value, heads.key_mask, heads.exponents
    return heads.query, *of_keys, heads.query_places, heads.key_places


def sums_before(
    heads: Heads, sums: Tensor, keep: Tensor, take: Tensor, *, first: int, step: int
) -> None:
    """Make every segment's sums, in place, those of all segments before it in an order of them."""
    grid = sums.shape[0] * sums.shape[1], triton.cdiv(heads.length, ADDED)
    numbers = heads.num_waves, sums.shape[2], heads.length, first, step
    run(hand_on, grid, sums, keep, take, *numbers, tile=ADDED)


def causal(heads: Heads) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Outputs, 1/D_i and m_i, the sums before every segment, and the largest exponents up to the end of every block."""
    query, segment = heads.query, heads.segment
    sums, own = key_sums(heads)
    after = own.cummax(dim=-1).values
    before = torch.nn.functional.pad(after[:, :-1], (1, 0), value=NO_KEY.value)
    keep, take = (torch.exp2(one - after).nan_to_num(0.0) for one in (before, own))
    sums_before(heads, sums, keep, take, first=0, step=1)
    output, factors = (
        new_output(query, heads.value),
        query.new_empty(2, heads.rows, query.shape[2], dtype=torch.float32),
    )
    grid = heads.grid(query, segment)
    peaks = heads.empty(triton.cdiv(query.shape[2], heads.block))
    tensors = *given_tensors(heads), sums, before, output
    numbers = *pair_steps(heads, output), *heads.numbers(query), segment, heads.map.share
    heads.launch(causal_means, grid, *tensors, *factors, peaks, *numbers, masked=heads.masked)
    return output, factors, sums, peaks
