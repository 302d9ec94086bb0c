"""The separable backend ("toeplitz"): a product of relative kernels of one axis, as matrices."""

import torch
from jaxtyping import Float
from torch import Tensor

from teka.functional.backends.costs import BYTES, Cost
from teka.functional.backends.feature_chunks import contract, outer_product, sum_over_features
from teka.functional.backends.sums import FeatureInputs, WeightedSums, with_ones
from teka.functional.shapes import (
    AxisMatrices,
    KeyChannels,
    KeyFeatures,
    QueryChannels,
    QueryFeatures,
    RowFunction,
)
from teka.grid import Grid


def separable_cost(query: Grid, key: Grid, num_features: int, dim_value: int) -> Cost:
    """Return the cost of one matrix product per axis over φ(k) ⊗ [v, 1]."""
    channels = num_features * (dim_value + 1)
    multiply_adds, moved, size = 0, 0, key.num_tokens
    for query_side, key_side in zip(query.shape, key.shape, strict=True):
        moved += size
        multiply_adds += size * query_side
        size = size // key_side * query_side
        moved += size
    moved += 2 * size
    num_bytes = moved * channels * BYTES + axis_matrices_bytes(query, key)
    return Cost((multiply_adds + key.num_tokens + size) * channels, num_bytes)


def axis_matrices_bytes(query: Grid, key: Grid) -> int:
    """Return the bytes moved to compute the logarithm, row maxima and exponential of matrices."""
    sides = zip(query.shape, key.shape, strict=True)
    return sum(query_side * key_side for query_side, key_side in sides) * 6 * 2 * BYTES


def separable_sums(
    tokens: FeatureInputs,
    log_matrices: AxisMatrices,
    log_peak: Float[Tensor, "1 heads queries"],
    log_rows: RowFunction,
) -> WeightedSums:
    """Return Σ_j φ(q_i)ᵀφ(k_j) c(x_i − x_j) [v_j, 1] with c = Π_axis c_axis.

    The cost is O(L · m · (d + 1) · Σ sides).

    Args:
        tokens: Features and values.
        log_matrices: log c_axis of every axis, each row minus its maximum.
        log_peak: Sum of these maxima for every query.
        log_rows: log c of all pairs of some queries, for rows that underflow.
    """
    matrices = [torch.exp(matrix) for matrix in log_matrices]
    features = (tokens.query_features, tokens.key_features)
    sums = sum_over_features(axis_sums, *features, with_ones(tokens.value), *matrices)
    return WeightedSums.from_channels(sums, log_peak).without_underflow(tokens, log_rows)


def axis_sums(
    query_features: QueryFeatures,
    key_features: KeyFeatures,
    value: KeyChannels,
    *matrices: Float[Tensor, "heads _ _"],
) -> QueryChannels:
    """Return Σ_j φ(q_i)ᵀφ(k_j) Π_axis C_axis[i, j] v_j, one product with φ(k) ⊗ v per axis."""
    batch, heads = value.shape[:2]
    maps = outer_product(key_features, value)
    channels = maps.shape[-1]
    before, after = 1, maps.shape[2] * channels
    for matrix in matrices:
        after //= matrix.shape[-1]
        maps = matrix[:, None] @ maps.reshape(batch, heads, before, matrix.shape[-1], after)
        before *= matrix.shape[-2]
    return contract(query_features, maps.reshape(batch, heads, before, channels))
