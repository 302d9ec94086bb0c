"""Products of a block of features in registers: with sums over others, and with every other of a block; and back.

With "rotary" the numerator is of rotated features, and the denominator of features and of lengths of pairs with
weights 1 − λ and λ; with "fourier" both are of features times a wave, one wave after another; else of features.
"""

import triton
import triton.language as tl

from teka.functional.backends.triton.feature_maps import (
    NO_KEY,
    angles_gradient,
    exact_cosine_and_sine,
    load_tokens,
    near_cosine_and_sine,
    pair_lengths,
    pair_lengths_gradient,
    rotated,
    where_sound,
)


@triton.jit
def load_places(
    places, tokens, kept, num_places, form: tl.constexpr, precision: tl.constexpr, width: tl.constexpr
):  # fmt: skip
    """Cosines and sines of a block's angles, or its waves twice; zeros where there are none."""
    if form == "none":
        cosine = tl.zeros((1, 1), tl.float32)
        sine = cosine
    else:
        columns = tl.arange(0, width)
        cosine = load_tokens(places, tokens, columns, num_places, kept, columns < num_places)
        sine = cosine
        if form == "rotary":
            if precision == "tf32":
                cosine, sine = near_cosine_and_sine(cosine)
            else:
                cosine, sine = exact_cosine_and_sine(cosine)
    return cosine, sine


@triton.jit
def load_sums(sums, form: tl.constexpr, size: tl.constexpr, channels: tl.constexpr):
    """Σ φ̃ vᵀ, (size, channels), Σ φ and, with "rotary", Σ ψ, one after the other."""
    rows = tl.arange(0, size)
    state = tl.load(sums + rows[:, None] * channels + tl.arange(0, channels)[None, :])
    total = tl.load(sums + size * channels + rows)
    lengths = tl.zeros((size // 2,), tl.float32)
    if form == "rotary":
        lengths = tl.load(sums + size * channels + size + tl.arange(0, size // 2))
    return state, total, lengths


@triton.jit
def add_block(
    state, total, lengths, features, cosine, sine, wave, values, counts, keep,
    form: tl.constexpr, precision: tl.constexpr, size: tl.constexpr,
):  # fmt: skip
    """Sums times `keep`, and the products of a block: of features with values, and with counts for denominators."""
    part = features
    if form == "fourier":
        part = features * wave[:, None]
    total = total * keep + tl.sum(part * counts[:, None], axis=0)
    if form == "rotary":
        lengths = lengths * keep + tl.sum(pair_lengths(features, size) * counts[:, None], axis=0)
        part = rotated(features, cosine, sine, size)
    state = state * keep + tl.dot(tl.trans(part), values, input_precision=precision)
    return state, total, lengths


@triton.jit
def add_keys(
    state, total, lengths, peak, features, exponent, kept, cosine, sine, wave, values,
    form: tl.constexpr, precision: tl.constexpr, size: tl.constexpr,
):  # fmt: skip
    """Sums over 2^peak with a block of keys, features of which are over 2^exponent, and the new peak."""
    largest = tl.maximum(tl.max(tl.where(kept, exponent, NO_KEY), axis=0), peak)
    features *= tl.where(kept, tl.exp2(tl.minimum(exponent - largest, 0.0)), 0.0)[:, None]
    ones, keep = tl.zeros_like(exponent) + 1, tl.exp2(peak - largest)
    state, total, lengths = add_block(
        state,
        total,
        lengths,
        features,
        cosine,
        sine,
        wave,
        values,
        ones,
        keep,
        form,
        precision,
        size,
    )
    return state, total, lengths, largest


@triton.jit
def store_sums(
    sums, state, total, lengths, form: tl.constexpr, size: tl.constexpr, channels: tl.constexpr
):
    """Sums to one row of memory, in the order in which they are loaded."""
    rows = tl.arange(0, size)
    tl.store(sums + rows[:, None] * channels + tl.arange(0, channels)[None, :], state)
    tl.store(sums + size * channels + rows, total)
    if form == "rotary":
        tl.store(sums + size * channels + size + tl.arange(0, size // 2), lengths)


@triton.jit
def meet(
    features, cosine, sine, state, total, lengths, share,
    form: tl.constexpr, precision: tl.constexpr, size: tl.constexpr,
):  # fmt: skip
    """Numerators and denominators of a block from sums of one wave: φ̃ᵀS, and (1 − λ) φᵀz + λ ψᵀy."""
    part = features
    below = tl.sum(features * total[None, :], axis=1)
    if form == "rotary":
        part = rotated(features, cosine, sine, size)
        below = (1 - share) * below + share * tl.sum(
            pair_lengths(features, size) * lengths[None, :], axis=1
        )
    return tl.dot(part, state, input_precision=precision), below


@triton.jit
def meet_gradient(
    features, cosine, sine, of_above, of_below, state, total, lengths, share,
    form: tl.constexpr, precision: tl.constexpr, size: tl.constexpr,
):  # fmt: skip
    """The gradients of features, and of angles, from those of numerators and denominators."""
    of_features = tl.dot(of_above, tl.trans(state), input_precision=precision)
    of_total, of_places = of_below[:, None] * total[None, :], cosine
    if form == "rotary":
        of_places = angles_gradient(rotated(features, cosine, sine, size), of_features, size)
        of_lengths = share * of_below[:, None] * lengths[None, :]
        of_features = rotated(of_features, cosine, -sine, size) + pair_lengths_gradient(
            features, of_lengths, size
        )
        of_total = (1 - share) * of_total
    return of_features + of_total, of_places


@triton.jit
def meet_sums(
    features, cosine, sine, places, tokens, kept, sums, sums_wave, num_places, share,
    form: tl.constexpr, precision: tl.constexpr, size: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """The same from sums in memory, of all waves."""
    above = tl.zeros((features.shape[0], channels), tl.float32)
    below = tl.zeros((features.shape[0],), tl.float32)
    for number in range(num_places):
        wave = tl.load(places + tokens * num_places + number, mask=kept, other=0.0)
        state, total, lengths = load_sums(sums + number * sums_wave, form, size, channels)
        more_above, more_below = meet(
            features * wave[:, None],
            cosine,
            sine,
            state,
            total,
            lengths,
            share,
            form,
            precision,
            size,
        )
        above += more_above
        below += more_below
    return above, below


@triton.jit
def meet_sums_gradient(
    features, cosine, sine, places, tokens, kept, of_above, of_below, sums, sums_wave, num_places, share,
    form: tl.constexpr, precision: tl.constexpr, size: tl.constexpr, channels: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """The gradients of features, and of angles or waves, likewise."""
    of_features, of_places = (
        tl.zeros_like(features),
        tl.zeros((features.shape[0], width), tl.float32),
    )
    columns = tl.arange(0, width)
    for number in range(num_places):
        wave = tl.load(places + tokens * num_places + number, mask=kept, other=0.0)
        state, total, lengths = load_sums(sums + number * sums_wave, form, size, channels)
        of_part, _ = meet_gradient(
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
        of_features += of_part * wave[:, None]
        of_wave = tl.sum(of_part * features, axis=1)
        of_places += tl.where((columns == number)[None, :], of_wave[:, None], 0.0)
    return of_features, of_places


@triton.jit
def meet_block(
    features, cosine, sine, others, other_cosine, other_sine, share,
    form: tl.constexpr, precision: tl.constexpr, size: tl.constexpr,
):  # fmt: skip
    """What every pair of two blocks has in the numerator, and in the denominator."""
    below = tl.dot(features, tl.trans(others), input_precision=precision)
    above = below
    if form == "rotary":
        turned, other_turned = (
            rotated(features, cosine, sine, size),
            rotated(others, other_cosine, other_sine, size),
        )
        lengths, other_lengths = pair_lengths(features, size), pair_lengths(others, size)
        above = tl.dot(turned, tl.trans(other_turned), input_precision=precision)
        of_lengths = tl.dot(lengths, tl.trans(other_lengths), input_precision=precision)
        below = (1 - share) * below + share * of_lengths
    elif form == "fourier":
        above = below * tl.dot(cosine, tl.trans(other_cosine), input_precision=precision)
        below = above
    return above, below


@triton.jit
def meet_block_gradient(
    features, cosine, sine, others, other_cosine, other_sine, of_above, of_below, share,
    form: tl.constexpr, precision: tl.constexpr, size: tl.constexpr,
):  # fmt: skip
    """The gradients of features, and of angles or waves, from those of what every pair has."""
    if form == "rotary":
        turned, other_turned = (
            rotated(features, cosine, sine, size),
            rotated(others, other_cosine, other_sine, size),
        )
        of_turned = tl.dot(of_above, other_turned, input_precision=precision)
        of_places = angles_gradient(turned, of_turned, size)
        of_lengths = share * tl.dot(of_below, pair_lengths(others, size), input_precision=precision)
        of_features = rotated(of_turned, cosine, -sine, size) + pair_lengths_gradient(
            features, of_lengths, size
        )
        of_features += (1 - share) * tl.dot(of_below, others, input_precision=precision)
    elif form == "fourier":
        of_pairs, products = (
            of_above + of_below,
            tl.dot(features, tl.trans(others), input_precision=precision),
        )
        weights = tl.dot(cosine, tl.trans(other_cosine), input_precision=precision)
        of_features = tl.dot(of_pairs * weights, others, input_precision=precision)
        of_places = tl.dot(of_pairs * products, other_cosine, input_precision=precision)
    else:
        of_features = tl.dot(of_above + of_below, others, input_precision=precision)
        of_places = cosine
    return of_features, of_places


@triton.jit
def block_decay(exponent, kept, before):
    """2^(e_j − m_i) of the pairs j ≤ i, 0 for others, and m_i, the largest exponent of all keys up to i."""
    numbers = tl.arange(0, exponent.shape[0])
    seen = (numbers[:, None] >= numbers[None, :]) & kept[None, :]
    largest = tl.maximum(tl.max(tl.where(seen, exponent[None, :], NO_KEY), axis=1), before)
    decay = tl.exp2(tl.minimum(exponent[None, :] - largest[:, None], 0.0))
    return tl.where(seen, decay, 0.0), largest


@triton.jit
def sums_asked(gradient, output, inverse):
    """The gradients of N_i and D_i, g/D_i and −gᵀout_i/D_i, from that of out_i = N_i / D_i."""
    of_above = gradient * inverse[:, None]
    return of_above, -tl.sum(of_above * output, axis=1)


@triton.jit
def sound_sums_asked(gradient, output, inverse):
    """The same, 0 where 1/D_i is NaN: nothing is asked by outputs that are."""
    return sums_asked(
        where_sound(inverse, gradient),
        where_sound(inverse, output),
        tl.where(inverse == inverse, inverse, 0.0),
    )
