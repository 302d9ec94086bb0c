"""A Triton kernel of one more token of causal attention, which reads and writes the state once."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import custom_op

from teka.functional.backends.fused.position_maps import PositionMap
from teka.functional.backends.linear import DecodingState, LinearState, left_by
from teka.functional.backends.triton.block_ops import load_places
from teka.functional.backends.triton.feature_maps import (
    TINY,
    feature_map,
    load_tokens,
    pair_lengths,
    rotated,
    row_of,
)
from teka.functional.backends.triton.launch import place_steps, run
from teka.functional.kernels.base import FeatureKernel
from teka.functional.kernels.rectified import FlooredRelu
from teka.functional.shapes import Keys, Outputs, Queries, Values

LOG_2 = tl.constexpr(math.log(2))


def triton_step(
    query: Queries,
    key: Keys,
    value: Values,
    state: DecodingState | None,
    *,
    kernel: FeatureKernel,
    positions: PositionMap,
    scale: float,
) -> tuple[Outputs, DecodingState]:
    """The output of one token and the state after it, e^(M − M') S + e^(s − M') φ̃(k) [v, 1]ᵀ with M' = max(M, s)."""
    num_features = kernel.num_features(query.shape[-1])
    features, share = query.new_empty(*query.shape[:3], num_features), positions.length_share
    left = left_by(state, "total", features, value, max(1, positions.num_waves))
    unrotated = None
    if positions.form == "rotary":
        size = (num_features if share < 1 else 0) + (num_features // 2 if share > 0 else 0)
        unrotated = left_by(
            state, "unrotated", features.new_empty(*features.shape[:3], size), value[..., :0]
        ).total
    epsilon = kernel.epsilon if isinstance(kernel, FlooredRelu) else 0.0
    options = kernel.name, positions.form, scale, epsilon, share
    places = positions.places(query)
    output, total, peak, others = feature_step(
        query, key, value, left.total, left.log_peak, unrotated, *places, *options
    )
    rest = None if unrotated is None else LinearState(others, peak)
    return output, DecodingState(0, LinearState(total, peak), rest)


@custom_op("teka::feature_step", mutates_args=())
def feature_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    total: Tensor,
    log_peak: Tensor,
    unrotated: Tensor | None,
    query_places: Tensor | None,
    key_places: Tensor | None,
    kernel: str,
    form: str,
    scale: float,
    epsilon: float,
    share: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The output, and what the state holds after the token; the numbers after the tensors are those of a `Map`."""
    query, key, value = (one.contiguous() for one in (query, key, value))
    batch, heads, _, dim = query.shape
    first, places = total.contiguous(), (query_places, key_places)
    others = query.new_empty(0) if unrotated is None else unrotated.contiguous()
    places = [query[..., :0] if one is None else one.contiguous() for one in places]
    log_peak = log_peak.contiguous()
    output, *after = (torch.empty_like(one) for one in (value, first, log_peak, others))
    num_waves = places[0].shape[-1] if form == "fourier" else 1
    size = max(triton.next_power_of_2(dim), 2)
    width = size // 2 if form == "rotary" else triton.next_power_of_2(max(num_waves, 2))
    tensors = query, key, value, first, log_peak, others, *places, output, *after
    numbers = (
        heads,
        dim,
        value.shape[-1],
        places[0].shape[-1],
        num_waves,
        math.sqrt(scale),
        epsilon / math.sqrt(dim),
    )
    run(
        take_token,
        (batch * heads,),
        *(*tensors, *place_steps(places[0]), *place_steps(places[1]), *numbers, share),
        kernel=kernel,
        form=form,
        size=size,
        channels=triton.next_power_of_2(value.shape[-1] + 1),
        width=width,
    )
    new_total, new_log_peak, new_unrotated = after
    return output, new_total, new_log_peak, new_unrotated


@feature_step.register_fake
def _(query, key, value, total, log_peak, unrotated, *places_and_options):
    others = query.new_empty(0) if unrotated is None else unrotated
    return tuple(one.new_empty(one.shape) for one in (value, total, log_peak, others))


@triton.jit
def take_token(
    query, key, value, total, log_peak, unrotated, query_places, key_places,
    output, new_total, new_log_peak, new_unrotated,
    query_places_batch, query_places_head, key_places_batch, key_places_head,
    heads, dim, dim_value, num_places, num_waves, factor, floor_share, share,
    kernel: tl.constexpr, form: tl.constexpr, size: tl.constexpr, channels: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """The state of one head with one more token, and the token's output."""
    row = tl.program_id(0).to(tl.int64)
    query_places = row_of(query_places, row, heads, query_places_batch, query_places_head)
    key_places = row_of(key_places, row, heads, key_places_batch, key_places_head)
    token, columns, value_columns = tl.arange(0, 1), tl.arange(0, size), tl.arange(0, channels)
    there, inside = token < 1, columns < dim
    features, _ = feature_map(
        load_tokens(query + row * dim, token, columns, dim, there, inside),
        inside,
        factor,
        floor_share,
        kernel,
    )
    key_features, exponent = feature_map(
        load_tokens(key + row * dim, token, columns, dim, there, inside),
        inside,
        factor,
        floor_share,
        kernel,
    )
    before, log_scale = tl.load(log_peak + row), tl.max(exponent, axis=0) * LOG_2
    after = tl.maximum(before, log_scale)
    keep = tl.exp(before - after)
    key_features *= tl.exp(log_scale - after)
    tl.store(new_log_peak + row, after)
    cosine, sine = load_places(query_places, token, there, num_places, form, "ieee", width)
    key_cosine, key_sine = load_places(key_places, token, there, num_places, form, "ieee", width)
    values = tl.load(
        value + row * dim_value + value_columns, mask=value_columns < dim_value, other=0.0
    )
    values = tl.where(value_columns == dim_value, 1.0, values)
    sums = tl.zeros((channels,), tl.float32)
    for wave in range(num_waves):
        part, key_part = features, key_features
        if form == "fourier":
            part, key_part = (
                part * tl.load(query_places + wave),
                key_part * tl.load(key_places + wave),
            )
        elif form == "rotary":
            part, key_part = (
                rotated(part, cosine, sine, size),
                rotated(key_part, key_cosine, key_sine, size),
            )
        products = (row * num_waves + wave) * dim + columns
        places = products[:, None] * (dim_value + 1) + value_columns[None, :]
        held = inside[:, None] & (value_columns <= dim_value)[None, :]
        state = tl.load(total + places, mask=held, other=0.0) * keep
        state += tl.sum(key_part, axis=0)[:, None] * values[None, :]
        tl.store(new_total + places, state, mask=held)
        sums += tl.sum(tl.sum(part, axis=0)[:, None] * state, axis=0)
    below = tl.sum(tl.where(value_columns == dim_value, sums, 0.0), axis=0)
    if form == "rotary":
        # √(1 − λ) φ if λ < 1, then √λ ψ if λ > 0.
        num_plain, pairs = tl.where(share < 1, dim, 0), tl.arange(0, size // 2)
        held, held_pairs = inside & (share < 1), (2 * pairs < dim) & (share > 0)
        row_size = num_plain + tl.where(share > 0, dim // 2, 0)
        plain = row * row_size + columns
        state = tl.load(unrotated + plain, mask=held, other=0.0) * keep
        state += tl.sum(key_features, axis=0) * tl.sqrt(1 - share)
        tl.store(new_unrotated + plain, state, mask=held)
        below = tl.sqrt(1 - share) * tl.sum(
            tl.where(held, state, 0.0) * tl.sum(features, axis=0), axis=0
        )
        plain = row * row_size + num_plain + pairs
        state = tl.load(unrotated + plain, mask=held_pairs, other=0.0) * keep
        state += tl.sum(pair_lengths(key_features, size), axis=0) * tl.sqrt(share)
        tl.store(new_unrotated + plain, state, mask=held_pairs)
        lengths = tl.where(held_pairs, state, 0.0) * tl.sum(pair_lengths(features, size), axis=0)
        below += tl.sqrt(share) * tl.sum(lengths, axis=0)
    over = tl.where(below < TINY, 0.0, 1 / tl.maximum(below, TINY))
    tl.store(output + row * dim_value + value_columns, sums * over, mask=value_columns < dim_value)
