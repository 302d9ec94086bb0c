"""Device functions that the Triton kernels of linear attention share.

A block holds the query or key vectors of some tokens of one attention head, in float32. The
functions use these names:

- `features`: φ(x), divided by a power of 2 so that float32 can hold it.
- `exponent`: exponent of that power of 2, for each row.
- `rotated`: features rotated by the angles of the token's position, for the numerator.
- `plain`: features without a rotation, for the denominator.
- `lengths`: lengths of the pairs of features that are rotated together, for the denominator.

The denominator is a mixture. Its share of pair lengths is λ, so that `plain` is multiplied by
√(1 − λ) and `lengths` by √λ. Without a rotation, `rotated` and `plain` are both `features`, and
`lengths` are not used.
"""

import triton
import triton.language as tl

from teka.functional.kernels.content_kernel import LOWEST_EXPONENT
from teka.functional.kernels.rectified import LEAST_FEATURE, RANGE_BITS

TINY = tl.constexpr(2.0**-126)  # the smallest normal float32
# The exponent of a missing key: below every other exponent and finite, so that differences are not
# NaN.
NO_KEY = tl.constexpr(-1e30)
LEAST = tl.constexpr(LEAST_FEATURE)
LEAST_ROOT = tl.constexpr(LEAST_FEATURE**0.5)
BITS = tl.constexpr(RANGE_BITS)
LOWEST = tl.constexpr(LOWEST_EXPONENT)
# tl.maximum drops NaN otherwise.
KEEP_NAN = tl.constexpr(tl.PropagateNan.ALL)


@triton.jit
def compute_memory_rows(head, tokens, num_tokens, heads, heads_first: tl.constexpr):
    """Return the index in memory of the row that belongs to each token, for one attention head.

    A row is the vector of one token and head. In memory, rows are ordered by head and then token if
    `heads_first`, otherwise by token and then head.
    """
    if heads_first:
        rows = head * num_tokens + tokens
    else:
        rows = (head // heads * num_tokens + tokens) * heads + head % heads
    return rows


@triton.jit
def load_rows(pointer, rows, keep, dim: tl.constexpr, size: tl.constexpr):
    """Load rows of a matrix from GPU memory as float32.

    The `dim` columns are padded with zeros to `size` columns, because Triton needs a power of 2.
    Rows whose mask `keep` is False become 0.
    """
    columns = tl.arange(0, size)
    mask = keep[:, None] & (columns < dim)[None, :]
    block = tl.load(pointer + rows[:, None] * dim + columns[None, :], mask=mask, other=0.0)
    return block.to(tl.float32)


@triton.jit
def store_rows(pointer, block, rows, keep, dim: tl.constexpr, size: tl.constexpr):
    """Store rows of a matrix in GPU memory.

    Only the first `dim` of the `size` columns are stored, because the others are padding. Rows
    whose mask `keep` is False are not stored.
    """
    columns = tl.arange(0, size)
    mask = keep[:, None] & (columns < dim)[None, :]
    block = block.to(pointer.dtype.element_ty)
    tl.store(pointer + rows[:, None] * dim + columns[None, :], block, mask=mask)


@triton.jit
def clear_nonfinite_rows(block, poison):
    """Set the rows of tokens with NaN or infinity to 0.

    `poison` is NaN for these tokens (see `load_and_mark_nonfinite`).
    """
    return tl.where((poison == poison)[:, None], block, 0.0)


@triton.jit
def load_and_mark_nonfinite(
    pointer, rows, keep, is_causal: tl.constexpr, dim: tl.constexpr, size: tl.constexpr
):
    """Load the vectors of tokens from GPU memory, and mark tokens that contain NaN or infinity.

    The mark of a token, its `poison`, is NaN for these tokens and 0 for others. In causal
    attention, the vectors of marked tokens become 0, because they must not affect the outputs of
    earlier tokens.
    """
    block = load_rows(pointer, rows, keep, dim, size)
    poison = tl.sum(block * 0.0, axis=1)
    if is_causal:
        block = clear_nonfinite_rows(block, poison)
    return block, poison


@triton.jit
def load_key_mask(key_mask, head, tokens, num_tokens, heads, is_masked: tl.constexpr):
    """Return a mask that is False for masked keys and for tokens beyond the end of the sequence."""
    keep = tokens < num_tokens
    if is_masked:
        mask = tl.load(key_mask + head // heads * num_tokens + tokens, mask=keep, other=0)
        keep = keep & (mask != 0)
    return keep


@triton.jit
def _scale_and_floor(vectors, floor_share, kernel: tl.constexpr):
    """Scale queries or keys to avoid overflow, and return the positive minimum of their ReLU.

    Returns:
        The vectors, divided by 2^(`BITS` · steps), and the floor of each vector, which is the
        minimum of its ReLU. A mask that is True if the floor is proportional to the length of the
        vector. The steps of each vector.
    """
    peak = tl.max(tl.abs(vectors), axis=1)
    steps = tl.floor(tl.log2(tl.maximum(peak, TINY)) / BITS + 0.5)
    steps = tl.minimum(tl.maximum(steps, -15.0), 15.0)
    scaled = vectors * tl.exp2(steps * -BITS)[:, None]
    floor = tl.sqrt(tl.maximum(tl.sum(scaled * scaled, axis=1), TINY)) * floor_share
    least = LEAST_ROOT if kernel == "squared_relu" else LEAST
    return scaled, tl.maximum(floor, least), floor > least, steps


@triton.jit
def feature_map(
    vectors, root_scale, floor_share, kernel: tl.constexpr, dim: tl.constexpr, size: tl.constexpr
):
    """Map queries or keys to features, whose inner products are the weights of linear attention.

    The features of each token are divided by a power of 2 so that they do not overflow. The
    exponent of this power is returned as well.
    """
    if kernel == "elu":
        scaled = vectors * root_scale
        negative = tl.exp(tl.maximum(tl.minimum(scaled, 0.0, KEEP_NAN), LOWEST, KEEP_NAN))
        features = tl.where(scaled > 0, 1 + scaled, negative)
        exponent = tl.zeros((vectors.shape[0],), tl.float32)
    else:
        scaled, floor, _, steps = _scale_and_floor(vectors, floor_share, kernel)
        features = tl.maximum(scaled, floor[:, None], KEEP_NAN)
        exponent = steps * BITS
        if kernel == "squared_relu":
            features = features * features
            exponent = 2 * exponent
    return tl.where((tl.arange(0, size) < dim)[None, :], features, 0.0), exponent


@triton.jit
def compute_feature_map_gradient(
    vectors,
    grad_features,
    root_scale,
    floor_share,
    kernel: tl.constexpr,
    dim: tl.constexpr,
    size: tl.constexpr,
):
    """Compute the gradients of queries or keys from the gradients of their features."""
    grad_features = tl.where((tl.arange(0, size) < dim)[None, :], grad_features, 0.0)
    if kernel == "elu":
        scaled = vectors * root_scale
        negative = tl.where(scaled < LOWEST, 0.0, tl.exp(tl.minimum(scaled, 0.0)))
        grad_vectors = grad_features * tl.where(scaled > 0, 1.0, negative) * root_scale
    else:
        scaled, floor, floor_grows, steps = _scale_and_floor(vectors, floor_share, kernel)
        factor = tl.exp2(steps * -BITS)
        if kernel == "squared_relu":
            grad_features = 2 * tl.maximum(scaled, floor[:, None]) * grad_features
        is_above = scaled >= floor[:, None]
        grad_floor = tl.sum(tl.where(is_above, 0.0, grad_features), axis=1)
        grad_floor = tl.where(floor_grows, grad_floor, 0.0)
        # The gradient of floor = ε ‖x‖/√d is ε² x / (d · floor).
        through_floor = scaled * (grad_floor / floor * floor_share * floor_share)[:, None]
        grad_scaled = tl.where(is_above, grad_features, 0.0) + through_floor
        grad_vectors = grad_scaled * factor[:, None]
    return grad_vectors


@triton.jit
def _split_pairs(features, size: tl.constexpr):
    """Return the features with even indices and the features with odd indices."""
    return tl.split(tl.reshape(features, (features.shape[0], size // 2, 2)))


@triton.jit
def _interleave_pairs(first, second, size: tl.constexpr):
    """Interleave features with even and with odd indices, which undoes `_split_pairs`."""
    return tl.reshape(tl.join(first, second), (first.shape[0], size))


@triton.jit
def rotate(features, cosine, sine, size: tl.constexpr):
    """Rotate each pair of adjacent features by an angle, as in rotary position embedding.

    The angles are given by their `cosine` and `sine`. A negative sine rotates in the opposite
    direction.
    """
    first, second = _split_pairs(features, size)
    return _interleave_pairs(first * cosine - second * sine, first * sine + second * cosine, size)


@triton.jit
def pair_lengths(features, size: tl.constexpr):
    """Return the length √(f² + g²) of each pair (f, g) of adjacent features."""
    first, second = _split_pairs(features, size)
    return tl.sqrt(first * first + second * second)


@triton.jit
def compute_pair_lengths_gradient(features, grad_lengths, size: tl.constexpr):
    """Compute the gradient of features from the gradient of the lengths √(f² + g²) of their pairs.

    A pair (f, g) of length 0 has gradient 0.
    """
    lengths = pair_lengths(features, size)
    ratio = tl.where(lengths > 0, grad_lengths / tl.maximum(lengths, TINY), 0.0)
    return features * _interleave_pairs(ratio, ratio, size)


@triton.jit
def compute_angles_gradient(rotated, grad_rotated, size: tl.constexpr):
    """Compute the gradient of rotary angles from rotated features and their gradient."""
    first, second = _split_pairs(rotated, size)
    grad_first, grad_second = _split_pairs(grad_rotated, size)
    return first * grad_second - second * grad_first


@triton.jit
def load_and_map_features(
    pointer,
    cosine,
    sine,
    rows,
    angle_rows,
    keep,
    root_scale,
    floor_share,
    plain_root,
    length_root,
    kernel: tl.constexpr,
    rotary: tl.constexpr,
    is_causal: tl.constexpr,
    dim: tl.constexpr,
    size: tl.constexpr,
):
    """Load queries or keys from GPU memory, and compute their features.

    With `rotary`, the features are also rotated by a rotary position embedding, which turns each
    pair of features by an angle. The docstring of the module explains the results.

    Returns:
        vectors, poison, features, exponent, rotated, plain, lengths, cosines, sines. Without a
        rotation the last three are 0.
    """
    vectors, poison = load_and_mark_nonfinite(pointer, rows, keep, is_causal, dim, size)
    features, exponent = feature_map(vectors, root_scale, floor_share, kernel, dim, size)
    rotated = features
    plain = features
    lengths = tl.zeros((vectors.shape[0], size // 2), tl.float32)
    cosines = lengths
    sines = lengths
    if rotary:
        cosines = load_rows(cosine, angle_rows, keep, dim // 2, size // 2)
        sines = load_rows(sine, angle_rows, keep, dim // 2, size // 2)
        rotated = rotate(features, cosines, sines, size)
        plain = plain_root * features
        lengths = length_root * pair_lengths(features, size)
    return vectors, poison, features, exponent, rotated, plain, lengths, cosines, sines


@triton.jit
def compute_and_store_gradients(
    grad_pointer,
    grad_angles,
    rows,
    head_rows,
    keep,
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
    kernel: tl.constexpr,
    rotary: tl.constexpr,
    dim: tl.constexpr,
    size: tl.constexpr,
):
    """Compute and store the gradients of queries or keys, and of their rotary angles.

    They follow from the gradients of the features with and without a rotation and of the lengths of
    pairs, which the caller has computed.
    """
    if rotary:
        block = compute_angles_gradient(rotated, grad_rotated, size)
        store_rows(grad_angles, block, head_rows, keep, dim // 2, size // 2)
        grad_features = plain_root * grad_plain + rotate(grad_rotated, cosines, -sines, size)
        grad_features += compute_pair_lengths_gradient(features, length_root * grad_lengths, size)
    else:
        grad_features = grad_plain + grad_rotated
    grad_vectors = compute_feature_map_gradient(
        vectors, grad_features, root_scale, floor_share, kernel, dim, size
    )
    store_rows(grad_pointer, grad_vectors, rows, keep, dim, size)
