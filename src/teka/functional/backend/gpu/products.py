"""Products of a block of features in registers with sums over others, and the way back.

With "rotary" the numerator is of rotated features, and the denominator of features and of lengths of pairs with
weights 1 − λ and λ; with "fourier" both are of features times a wave, one wave after another; else of features.
"""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from teka.functional.backend.gpu.maps import angles_gradient, load_tokens, pair_lengths, pair_lengths_gradient, rotated


@triton.jit
def load_places(places, tokens, kept, num_places, form: tl.constexpr, width: tl.constexpr):
    """Cosines and sines of a block's angles, or its waves twice; zeros where there are none."""
    if form == "none":
        cosine = tl.zeros((1, 1), tl.float32)
        sine = cosine
    else:
        columns = tl.arange(0, width)
        cosine = load_tokens(places, tokens, columns, num_places, kept, columns < num_places)
        sine = cosine
        if form == "rotary":
            cosine, sine = tl.cos(cosine), tl.sin(sine)
    return cosine, sine


@triton.jit
def load_state(sums, size: tl.constexpr, channels: tl.constexpr):
    """Σ φ̃ vᵀ, (size, channels), and Σ φ."""
    rows = tl.arange(0, size)
    state = tl.load(sums + rows[:, None] * channels + tl.arange(0, channels)[None, :])
    return state, tl.load(sums + size * channels + rows)


@triton.jit
def load_lengths(sums, size: tl.constexpr, channels: tl.constexpr):
    """Σ ψ, which comes after these."""
    return tl.load(sums + size * channels + size + tl.arange(0, size // 2))


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
def store_sums(sums, state, total, lengths, form: tl.constexpr, size: tl.constexpr, channels: tl.constexpr):
    """Sums to one row of memory, in the order in which they are loaded."""
    rows = tl.arange(0, size)
    tl.store(sums + rows[:, None] * channels + tl.arange(0, channels)[None, :], state)
    tl.store(sums + size * channels + rows, total)
    if form == "rotary":
        tl.store(sums + size * channels + size + tl.arange(0, size // 2), lengths)


@triton.jit
def meet_sums(
    features, cosine, sine, places, tokens, kept, sums, sums_wave, num_places, share,
    form: tl.constexpr, precision: tl.constexpr, size: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """Numerators and denominators of a block from sums: φ̃ᵀS, and (1 − λ) φᵀz + λ ψᵀy."""
    if form == "fourier":
        above = tl.zeros((features.shape[0], channels), tl.float32)
        below = tl.zeros((features.shape[0],), tl.float32)
        for number in range(num_places):
            wave = tl.load(places + tokens * num_places + number, mask=kept, other=0.0)
            state, total = load_state(sums + number * sums_wave, size, channels)
            part = features * wave[:, None]
            above += tl.dot(part, state, input_precision=precision)
            below += tl.sum(part * total[None, :], axis=1)
    else:
        state, total = load_state(sums, size, channels)
        part = features
        below = tl.sum(features * total[None, :], axis=1)
        if form == "rotary":
            part = rotated(features, cosine, sine, size)
            lengths = pair_lengths(features, size) * load_lengths(sums, size, channels)[None, :]
            below = (1 - share) * below + share * tl.sum(lengths, axis=1)
        above = tl.dot(part, state, input_precision=precision)
    return above, below


@triton.jit
def meet_sums_gradient(
    features, cosine, sine, places, tokens, kept, of_above, of_below, sums, sums_wave, num_places, share,
    form: tl.constexpr, precision: tl.constexpr, size: tl.constexpr, channels: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """The gradients of features, and of angles or waves, from those of numerators and denominators."""
    if form == "fourier":
        of_features, of_places = tl.zeros_like(features), tl.zeros((features.shape[0], width), tl.float32)
        columns = tl.arange(0, width)
        for number in range(num_places):
            wave = tl.load(places + tokens * num_places + number, mask=kept, other=0.0)
            state, total = load_state(sums + number * sums_wave, size, channels)
            of_part = tl.dot(of_above, tl.trans(state), input_precision=precision)
            of_part += of_below[:, None] * total[None, :]
            of_features += of_part * wave[:, None]
            of_wave = tl.sum(of_part * features, axis=1)
            of_places += tl.where((columns == number)[None, :], of_wave[:, None], 0.0)
    else:
        state, total = load_state(sums, size, channels)
        of_features = tl.dot(of_above, tl.trans(state), input_precision=precision)
        of_total, of_places = of_below[:, None] * total[None, :], cosine
        if form == "rotary":
            of_places = angles_gradient(rotated(features, cosine, sine, size), of_features, size)
            of_lengths = share * of_below[:, None] * load_lengths(sums, size, channels)[None, :]
            of_features = rotated(of_features, cosine, -sine, size) + pair_lengths_gradient(features, of_lengths, size)
            of_total = (1 - share) * of_total
        of_features += of_total
    return of_features, of_places


@triton.jit
def sums_asked(gradient, output, inverse):
    """The gradients of N_i and D_i, g/D_i and −gᵀout_i/D_i, from that of out_i = N_i / D_i."""
    of_above = gradient * inverse[:, None]
    return of_above, -tl.sum(of_above * output, axis=1)
