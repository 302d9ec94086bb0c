"""What every Triton kernel does to a block of tokens in registers: features, their rotation, and the way back."""

import triton
import triton.language as tl

from teka.functional.kernels.base import LOWEST_EXPONENT
from teka.functional.kernels.rectified import LEAST_FEATURE, RANGE_BITS

TINY = tl.constexpr(2.0**-126)  # the smallest normal float32
# In place of an exponent where there is no key: below every other, and finite, so that differences are no NaN.
NO_KEY = tl.constexpr(-1e30)
LEAST = tl.constexpr(LEAST_FEATURE)
LEAST_ROOT = tl.constexpr(LEAST_FEATURE**0.5)
BITS = tl.constexpr(RANGE_BITS)
LOWEST = tl.constexpr(LOWEST_EXPONENT)
# π/2 in three float32 numbers, the first two with bits to spare.
QUARTER, QUARTER_REST, QUARTER_LAST = map(
    tl.constexpr, (1.5703125, 4.837512969970703e-4, 7.549789948768648e-8)
)


@triton.jit
def row_of(pointer, row, heads, batch_stride, head_stride):
    """Where the tokens of one head of one sample begin."""
    return pointer + row // heads * batch_stride + row % heads * head_stride


@triton.jit
def within(columns, dim, whole: tl.constexpr):
    """Which columns are within a head; told at once where all are, so that no number is compared or chosen."""
    return tl.full((columns.shape[0],), True, tl.int1) if whole else columns < dim


@triton.jit
def load_tokens(pointer, tokens, columns, token_stride, kept, inside):
    """A block of (tokens, columns) in float32, 0 for what is not kept or not inside."""
    places = pointer + tokens[:, None] * token_stride + columns[None, :]
    return tl.load(places, mask=kept[:, None] & inside[None, :], other=0.0).to(tl.float32)


@triton.jit
def store_tokens(pointer, block, tokens, columns, token_stride, kept, inside):
    """A block of (tokens, columns) to where it belongs, in the type that is kept there."""
    places = pointer + tokens[:, None] * token_stride + columns[None, :]
    tl.store(places, block.to(pointer.dtype.element_ty), mask=kept[:, None] & inside[None, :])


@triton.jit
def kept_tokens(key_mask, sample, tokens, num_tokens, masked: tl.constexpr):
    """Which tokens are there and count."""
    kept = tokens < num_tokens
    if masked:
        kept = kept & (tl.load(key_mask + sample * num_tokens + tokens, mask=kept, other=0) != 0)
    return kept


@triton.jit
def soundness(vectors):
    """0 for every row, NaN for one that holds NaN or an infinity."""
    return tl.sum(vectors * 0.0, axis=1)


@triton.jit
def where_sound(soundness, block):
    """Rows of a block, 0 in place of those that are not sound."""
    return tl.where((soundness == soundness)[:, None], block, 0.0)


@triton.jit
def known_exponents(exponents, row, tokens, num_tokens, kept, exponent, kernel: tl.constexpr):
    """The exponents of features that were made before, or those that came of making them here."""
    if kernel == "identity":
        exponent = tl.load(exponents + row * num_tokens + tokens, mask=kept, other=0.0)
        exponent = tl.where(
            exponent * 0.0 == 0.0, exponent, 0.0
        )  # those of keys that are not sound
    return exponent


@triton.jit
def _rectified(vectors, floor_share, kernel: tl.constexpr):
    """u·x, its floor and whether that grows with x, and k with u = 2^(−8k), which brings a row into range."""
    peak = tl.max(tl.abs(vectors), axis=1)
    steps = tl.floor(tl.log2(tl.maximum(peak, TINY)) / BITS + 0.5)
    steps = tl.minimum(tl.maximum(steps, -15.0), 15.0)
    scaled = vectors * tl.exp2(steps * -BITS)[:, None]
    floor = tl.sqrt(tl.maximum(tl.sum(scaled * scaled, axis=1), TINY)) * floor_share
    least = LEAST_ROOT if kernel == "squared_relu" else LEAST
    return scaled, tl.maximum(floor, least), floor > least, steps


@triton.jit
def _focused_parts(rectified):
    """The largest entry, u = r over it, ‖u‖ and ‖u³‖ of every row; see `Focused`."""
    peak = tl.max(rectified, axis=1)
    unit = rectified / peak[:, None]
    square = unit * unit
    length, cube_length = (
        tl.sqrt(tl.sum(square, axis=1)),
        tl.sqrt(tl.sum(square * square * square, axis=1)),
    )
    return peak, unit, length, cube_length


@triton.jit
def feature_map(vectors, inside, factor, floor_share, kernel: tl.constexpr):
    """φ(x) · 2^(−e), 0 in columns that are not inside, and e, a whole number, of every row.

    e is what bringing a row into range takes out of features that are powers of x. With "identity" x are features.
    """
    exponent = tl.zeros_like(tl.sum(vectors, axis=1))
    if kernel == "identity":
        features = vectors
    elif kernel == "elu":
        scaled = vectors * factor
        features = tl.where(
            scaled > 0, 1 + scaled, tl.exp(tl.minimum(tl.maximum(scaled, LOWEST), 0.0))
        )
    else:
        scaled, floor, _, steps = _rectified(vectors, floor_share, kernel)
        features = tl.where(inside[None, :], tl.maximum(scaled, floor[:, None]), 0.0)
        exponent = steps * BITS
        if kernel == "squared_relu":
            features, exponent = features * features, 2 * exponent
        elif kernel == "focused":
            peak, unit, length, cube_length = _focused_parts(features)
            features = unit * unit * unit * (peak * length / cube_length)[:, None]
    return tl.where(inside[None, :], features, 0.0), exponent


@triton.jit
def feature_map_gradient(vectors, gradient, inside, factor, floor_share, kernel: tl.constexpr):
    """The gradient of x from that of φ(x) · 2^(−e), with e taken as fixed."""
    gradient = tl.where(inside[None, :], gradient, 0.0)
    if kernel == "identity":
        of_vectors = gradient
    elif kernel == "elu":
        scaled = vectors * factor
        slope = tl.where(
            scaled > 0, 1.0, tl.where(scaled < LOWEST, 0.0, tl.exp(tl.minimum(scaled, 0.0)))
        )
        of_vectors = gradient * slope * factor
    else:
        scaled, floor, grows, steps = _rectified(vectors, floor_share, kernel)
        rectified = tl.where(inside[None, :], tl.maximum(scaled, floor[:, None]), 0.0)
        back = tl.exp2(steps * -BITS)
        if kernel == "squared_relu":
            gradient, back = rectified * gradient, 2 * back
        elif kernel == "focused":
            _, unit, length, cube_length = _focused_parts(rectified)
            square = unit * unit
            inner = tl.sum(gradient * square * unit, axis=1)
            cubic = 3 * length * inner / (cube_length * cube_length * cube_length)
            along = (inner / (length * cube_length))[:, None] - cubic[:, None] * square * square
            gradient = gradient * square * (3 * length / cube_length)[:, None] + unit * along
        above = scaled >= floor[:, None]
        below = tl.where(grows, tl.sum(tl.where(above, 0.0, gradient), axis=1), 0.0)
        # The floor's gradient is ε² x / (d · floor).
        through_floor = scaled * (below / floor * floor_share * floor_share)[:, None]
        of_vectors = (tl.where(above, gradient, 0.0) + through_floor) * back[:, None]
    return of_vectors


@triton.jit
def exact_cosine_and_sine(angle):
    """cos θ and sin θ to rounding, from polynomials within π/4 of the nearest quarter turn (Cephes, `sinf`, `cosf`)."""
    quarters = tl.floor(angle * (2 / 3.141592653589793) + 0.5)
    rest = tl.fma(quarters, -QUARTER, angle)
    rest = tl.fma(quarters, -QUARTER_REST, rest)
    rest = tl.fma(quarters, -QUARTER_LAST, rest)
    square = rest * rest
    sine = (
        (-1.9515295891e-4 * square + 8.3321608736e-3) * square - 1.6666654611e-1
    ) * square * rest + rest
    cosine = (2.443315711809948e-5 * square - 1.388731625493765e-3) * square + 4.166664568298827e-2
    cosine = cosine * square * square - 0.5 * square + 1
    turn = quarters.to(tl.int32) & 3
    swapped = (turn & 1) == 1
    of_cosine, of_sine = tl.where(swapped, sine, cosine), tl.where(swapped, cosine, sine)
    return tl.where((turn == 1) | (turn == 2), -of_cosine, of_cosine), tl.where(
        turn >= 2, -of_sine, of_sine
    )


@triton.jit
def near_cosine_and_sine(angle):
    """The same to 20 bits, by the unit that an NVIDIA GPU has for them, which takes angles within a turn."""
    turns = tl.floor(angle * (0.5 / 3.141592653589793) + 0.5)
    rest = tl.fma(turns, -4 * QUARTER, angle)
    rest = tl.fma(turns, -4 * QUARTER_REST, rest)
    cosine = tl.inline_asm_elementwise(
        "cos.approx.f32 $0, $1;", "=f,f", [rest], tl.float32, is_pure=True, pack=1
    )
    sine = tl.inline_asm_elementwise(
        "sin.approx.f32 $0, $1;", "=f,f", [rest], tl.float32, is_pure=True, pack=1
    )
    return cosine, sine


@triton.jit
def _split_pairs(features, size: tl.constexpr):
    """Features 2p, and features 2p + 1."""
    return tl.split(tl.reshape(features, (features.shape[0], size // 2, 2)))


@triton.jit
def rotated(features, cosine, sine, size: tl.constexpr):
    """Features 2p and 2p + 1 rotated together by angle p; by its opposite with −sine."""
    first, second = _split_pairs(features, size)
    both = tl.join(first * cosine - second * sine, first * sine + second * cosine)
    return tl.reshape(both, (features.shape[0], size))


@triton.jit
def pair_lengths(features, size: tl.constexpr):
    """ψ: √(φ_2p² + φ_2p+1²) of every pair."""
    first, second = _split_pairs(features, size)
    return tl.sqrt(first * first + second * second)


@triton.jit
def pair_lengths_gradient(features, gradient, size: tl.constexpr):
    """The gradient of features from that of ψ: ∂ψ/∂φ = φ/ψ, 0 where ψ is."""
    lengths = pair_lengths(features, size)
    ratio = tl.where(lengths > 0, gradient / tl.maximum(lengths, TINY), 0.0)
    return features * tl.reshape(tl.join(ratio, ratio), (features.shape[0], size))


@triton.jit
def angles_gradient(turned, of_turned, size: tl.constexpr):
    """∂θ_p = t₁g₂ − t₂g₁ of turned pairs t with gradients g."""
    first, second = _split_pairs(turned, size)
    of_first, of_second = _split_pairs(of_turned, size)
    return first * of_second - second * of_first
