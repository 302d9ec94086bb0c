"""The dense backend: every pair of tokens, O(L²) work. It is the truth for the others."""

from typing import TypeGuard

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from teka.functional.backend.again import again_in_backward
from teka.functional.backend.dense.flex import flex, flex_fits
from teka.functional.backend.dense.rotation_vectors import rotation_vectors
from teka.functional.backend.dense.tile_form import TileForm
from teka.functional.backend.prefix import add_prefix
from teka.functional.backend.sums import Sums, with_ones
from teka.functional.backend.toeplitz.axis_matrices import axis_log_matrices, axis_log_matrix, runs_by_hand
from teka.functional.eager import is_plain_eager
from teka.functional.kernel import FeatureKernel, Kernel, Softmax
from teka.functional.kernel.base import apply_log_factor, pair_mask
from teka.functional.placement import Placement
from teka.functional.relative import FactorRelative, Relative, RotaryRelative, Rotation, SeparableRelative

# Numbers of the matrix of weights that are held at once: 32 MiB in float32. A larger matrix is taken in rows, which are
# made again in the backward pass, so that memory is O(L).
TILE_ELEMENTS = 2**23

# Pairs of placed tokens from which a separable kernel is worked on in tiles of the cache. With fewer, and with masks or
# causality, the matrix is formed as it stands in the equation.
LEAST_TILED_PAIRS = 2**16


def dense(
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch heads keys dim"],
    value: Float[Tensor, "batch heads keys dim_value"],
    kernel: Kernel,
    relative: Relative | None,
    placement: Placement,
    *,
    scale: float,
    key_mask: Bool[Tensor, "batch keys"] | None,
    is_causal: bool = False,
) -> Float[Tensor, "batch heads queries dim_value"]:
    """Attention from the matrix of weights κ(q_i, k_j) · c(x_i − x_j; q_i), some rows at a time."""
    if isinstance(relative, RotaryRelative):
        return _dense_rotary(
            query, key, value, kernel, relative, placement, scale=scale, key_mask=key_mask, is_causal=is_causal
        )
    if isinstance(kernel, Softmax) and relative is None:
        return fused_softmax(query, key, value, scale=scale, key_mask=key_mask, is_causal=is_causal)
    if isinstance(kernel, Softmax) and type(relative) is Rotation and not any(placement.periods):
        query, key = rotation_vectors(query, key, relative, placement, scale=scale)
        return fused_softmax(query, key, value, scale=1.0, key_mask=key_mask, is_causal=is_causal)
    if query.is_cuda and flex_fits(query, value, kernel, relative, placement):
        assert isinstance(relative, FactorRelative)
        return flex(query, key, value, kernel, relative, placement, scale=scale, key_mask=key_mask, is_causal=is_causal)
    if (
        key_mask is None
        and not is_causal
        and isinstance(kernel, FeatureKernel)
        and _has_tiles(relative, placement, query)
    ):
        return _tiled(query, key, value, kernel, relative, placement, scale=scale)
    assert relative is None or isinstance(relative, FactorRelative)
    left, right, log_scale = kernel.dense_vectors(query, key, scale=scale, key_mask=key_mask, is_causal=is_causal)
    keep = pair_mask(key_mask, query.shape[2], key.shape[2], is_causal=is_causal, like=query)
    empty = None
    if is_causal and key_mask is not None:
        # A query all of whose keys are dropped: it is given every key here, and 0 in the end.
        empty = _without_keys(keep) if keep is not None else None
        keep = keep | empty if keep is not None and empty is not None else keep
    if isinstance(kernel, FeatureKernel):
        # A column of ones sums the weights in the same product: one pass fewer over the matrix.
        value = with_ones(value)

    def attend(rows: slice, query: Tensor, left: Tensor, right: Tensor, value: Tensor) -> Tensor:
        log_relative = None if relative is None else _log_rows(relative, query, placement, rows, scale=scale)
        part = keep if keep is None or keep.shape[2] == 1 else keep[:, :, rows]
        products = left[:, :, rows] @ right.transpose(-2, -1)
        return kernel.dense_weights(products, log_relative=log_relative, log_scale=log_scale, keep=part) @ value

    num_queries = query.shape[2]
    tile = max(1, TILE_ELEMENTS // max(1, query.shape[0] * query.shape[1] * key.shape[2]))
    if tile >= num_queries:
        output = attend(slice(0, num_queries), query, left, right, value)
    else:
        tiles = []
        for start in range(0, num_queries, tile):
            arguments = (slice(start, min(start + tile, num_queries)), query, left, right, value)
            tiles.append(again_in_backward(attend, *arguments))
        output = torch.cat(tiles, dim=2)
    if isinstance(kernel, FeatureKernel):
        total = output[..., -1] if empty is None else output[..., -1].masked_fill(empty[..., 0], 1.0)
        output = Sums(output[..., :-1], total).divide(nonnegative=kernel.nonnegative)
    return output if empty is None else output.masked_fill(empty, 0.0)


def _has_tiles(relative: Relative | None, placement: Placement, query: Tensor) -> TypeGuard[SeparableRelative]:
    """Whether the pairs are many, and their relative weights products of small matrices, worked on in a CPU's cache."""
    if not isinstance(relative, SeparableRelative) or placement.grids is None or not runs_by_hand(query):
        return False
    return placement.grids[0].num_tokens * placement.grids[1].num_tokens >= LEAST_TILED_PAIRS


def _tiled(
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch heads keys dim"],
    value: Float[Tensor, "batch heads keys dim_value"],
    kernel: FeatureKernel,
    relative: SeparableRelative,
    placement: Placement,
    *,
    scale: float,
) -> Float[Tensor, "batch heads queries dim_value"]:
    """The same from tiles of the matrix that stay in the cache, with a backward pass of their own."""
    features = kernel.query_features(query, scale=scale), kernel.key_features(key, scale=scale)
    first = placement.num_prefix_tokens
    log_matrices, log_peak = axis_log_matrices(relative, placement, value)
    sums = TileForm.apply(*(tensor[:, :, first:] for tensor in (*features, value)), *log_matrices)
    sums = add_prefix(Sums(sums[..., :-1], sums[..., -1], log_peak), *features, value, first)
    return sums.divide(nonnegative=kernel.nonnegative)


def fused_softmax(
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch heads keys dim"],
    value: Float[Tensor, "batch heads keys dim_value"],
    *,
    scale: float,
    key_mask: Bool[Tensor, "batch keys"] | None,
    is_causal: bool = False,
) -> Float[Tensor, "batch heads queries dim_value"]:
    """Softmax attention by torch's fused kernel, which holds no L × L matrix.

    The kernel wants values of the size of the keys; narrower ones are padded. It has first derivatives only: where a
    transform of torch.func or forward-mode differentiation is at work, torch's unfused formula is taken.
    """
    if not torch.compiler.is_compiling() and not is_plain_eager(query, key, value):
        with sdpa_kernel(SDPBackend.MATH):
            return _fused_softmax(query, key, value, scale=scale, key_mask=key_mask, is_causal=is_causal)
    return _fused_softmax(query, key, value, scale=scale, key_mask=key_mask, is_causal=is_causal)


def _fused_softmax(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, key_mask: Tensor | None, is_causal: bool
) -> Tensor:
    size = value.shape[-1]
    if query.shape[-1] > size:
        value = pad(value, (0, query.shape[-1] - size))
    if key_mask is None:
        output = scaled_dot_product_attention(query, key, value, is_causal=is_causal, scale=scale)
    else:
        keep = pair_mask(key_mask, query.shape[2], key.shape[2], is_causal=is_causal, like=query)
        assert keep is not None
        empty = _without_keys(keep)
        output = scaled_dot_product_attention(query, key, value, attn_mask=keep | empty, scale=scale)
        output = output.masked_fill(empty, 0.0) if is_causal else output
    return output[..., :size]


def _without_keys(keep: Bool[Tensor, "batch 1 queries keys"]) -> Bool[Tensor, "batch 1 queries 1"]:
    """The queries that keep no key."""
    # A sum: for `any` Inductor of PyTorch 2.6 writes C++ that does not compile.
    return keep.sum(dim=-1, keepdim=True) == 0


def _log_rows(
    relative: FactorRelative,
    query: Float[Tensor, "batch heads queries dim"],
    placement: Placement,
    rows: slice,
    *,
    scale: float,
) -> Float[Tensor, "#batch heads rows keys"]:
    """log c of some rows of the matrix; 0 for every pair that holds a prefix token."""
    first = placement.num_prefix_tokens
    placed = slice(max(rows.start - first, 0), max(rows.stop - first, 0))
    num_unplaced = rows.stop - rows.start - (placed.stop - placed.start)
    if isinstance(relative, SeparableRelative) and placement.grids is not None:
        log_relative = _separable_rows(relative, placement, placed, query)
    else:
        offsets = placement.offsets_like(query, placed)
        log_relative = relative.log_kernel(query[:, :, first:][:, :, placed], offsets, scale=scale)
    return pad(log_relative, (first, 0, num_unplaced, 0)) if first else log_relative


def _separable_rows(
    relative: SeparableRelative, placement: Placement, rows: slice, like: Tensor
) -> Float[Tensor, "1 heads rows keys"]:
    """log c of some rows from one small matrix an axis, so that sines are not taken of every pair."""
    assert placement.grids is not None
    shape = placement.grids[0].shape
    cells = torch.arange(rows.start, rows.stop, device=like.device)
    log_relative = torch.zeros((), dtype=like.dtype, device=like.device)
    for axis in reversed(range(len(shape))):
        matrix = axis_log_matrix(relative, axis, placement, like)
        part = matrix[:, cells % shape[axis]]
        cells = torch.div(cells, shape[axis], rounding_mode="floor")
        # Keys in row-major order: each earlier axis stands before those that are done.
        log_relative = (part[..., None] + log_relative[..., None, :]).flatten(-2) if log_relative.ndim else part
    return log_relative[None]


def _dense_rotary(
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch heads keys dim"],
    value: Float[Tensor, "batch heads keys dim_value"],
    kernel: Kernel,
    relative: RotaryRelative,
    placement: Placement,
    *,
    scale: float,
    key_mask: Bool[Tensor, "batch keys"] | None,
    is_causal: bool,
) -> Float[Tensor, "batch heads queries dim_value"]:
    """Weights of turned vectors over a denominator of what no turn changes, or of the weights themselves.

    Features are turned, and of softmax, which has none, the queries and keys.
    """
    first = placement.num_prefix_tokens
    has_features = isinstance(kernel, FeatureKernel)
    vectors = kernel.feature_maps if has_features else kernel.dense_vectors
    of_query, of_key, log_scale = vectors(query, key, scale=scale, key_mask=key_mask, is_causal=is_causal)
    turn = relative.weighing if has_features else relative.turn
    left = turn(of_query[:, :, first:], placement.query.places(query.device))
    right = turn(of_key[:, :, first:], placement.key.places(query.device))
    if not has_features and not first:
        return fused_softmax(left, right, value, scale=1.0, key_mask=key_mask, is_causal=is_causal)
    products = left @ right.transpose(-2, -1)
    if first:
        left, right = of_query, of_key
        if has_features:
            left, right = relative.weighing(of_query, None), relative.weighing(of_key, None)
        products = _with_prefix(left, right, products, first)
    keep = pair_mask(key_mask, query.shape[2], key.shape[2], is_causal=is_causal, like=query)
    empty = None if keep is None else ~keep.any(dim=-1, keepdim=True)
    keep = keep if keep is None or empty is None else keep | empty
    if has_features:
        totals = products
        if not relative.sums_weights:
            left, right = (relative.normalizing(one[:, :, first:], placed=True) for one in (of_query, of_key))
            totals = left @ right.transpose(-2, -1)
            if first:
                left, right = (relative.normalizing(one, placed=False) for one in (of_query, of_key))
                totals = _with_prefix(left, right, totals, first)
        totals, weights = (apply_log_factor(part, None, log_scale, keep) for part in (totals, products))
        total = totals.sum(dim=-1) if empty is None else totals.sum(dim=-1).masked_fill(empty[..., 0], 1.0)
        output = Sums(weights @ value, total).divide(nonnegative=kernel.nonnegative)
    else:
        output = kernel.dense_weights(products, log_relative=None, log_scale=None, keep=keep) @ value
    return output if empty is None else output.masked_fill(empty, 0.0)


def _with_prefix(
    left: Float[Tensor, "batch heads queries size"],
    right: Float[Tensor, "batch heads keys size"],
    placed: Float[Tensor, "batch heads rows columns"],
    first: int,
) -> Float[Tensor, "batch heads queries keys"]:
    """Inner products of all pairs: those given of placed tokens, and of vectors where one of the two is before them."""
    rows = torch.cat([left[:, :, first:] @ right[:, :, :first].transpose(-2, -1), placed], dim=-1)
    return torch.cat([left[:, :, :first] @ right.transpose(-2, -1), rows], dim=2)
