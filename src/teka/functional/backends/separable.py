"""Linear attention with position weights that are a product over the axes (backend "toeplitz").

On an image, the weight of a query and a key is then the product of a weight for their rows and a
weight for their columns. Attention needs only one matrix of weights for rows and one for columns,
instead of a matrix of all pairs of pixels.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from teka.functional.backends.attention_sums import LinearAttentionInputs, WeightedSums, append_ones
from teka.functional.backends.feature_chunks import (
    compute_numerators,
    outer_product,
    sum_over_features,
)
from teka.functional.shapes import (
    AxisMatrices,
    KeyChannels,
    KeyFeatures,
    QueryChannels,
    QueryFeatures,
    RowFunction,
)


def separable_attention_sums(
    tokens: LinearAttentionInputs,
    log_matrices: AxisMatrices,
    log_peak: Float[Tensor, "1 heads queries"],
    log_weight_rows: RowFunction,
) -> WeightedSums:
    """Compute linear attention with position-dependent weights that are a product over the axes.

    One matrix of weights is applied along each axis of the grid of tokens. The cost is proportional
    to the number of tokens times the sum of the grid's side lengths.

    Args:
        tokens: Features and values.
        log_matrices: log c_axis of every axis, each row minus its maximum.
        log_peak: Sum of these maxima for every query.
        log_weight_rows: Function that returns log c of some queries and all keys, to compute
            queries again whose weights underflow.
    """
    matrices = [torch.exp(matrix) for matrix in log_matrices]
    features = (tokens.query_features, tokens.key_features)
    sums = sum_over_features(attend_axis_by_axis, *features, append_ones(tokens.value), *matrices)
    return WeightedSums.from_channels(sums, log_peak).recompute_underflowed(tokens, log_weight_rows)


def attend_axis_by_axis(
    query_features: QueryFeatures,
    key_features: KeyFeatures,
    value: KeyChannels,
    *matrices: Float[Tensor, "heads _ _"],
) -> QueryChannels:
    """Compute numerators and denominators of linear attention, one axis of the grid at a time.

    The position-dependent weight c is a product over the axes. Each of the `matrices` contains its
    factors along one axis. The sum over all keys,

        Σ_j c(x_i − x_j) φ(k_j) v_jᵀ,

    therefore takes only one matrix product for each axis. The function returns the product of this
    sum with the features φ(q_i) of each query i.
    """
    batch, heads = value.shape[:2]
    maps = outer_product(key_features, value)
    channels = maps.shape[-1]
    before, after = 1, maps.shape[2] * channels
    for matrix in matrices:
        after //= matrix.shape[-1]
        maps = matrix[:, None] @ maps.reshape(batch, heads, before, matrix.shape[-1], after)
        before *= matrix.shape[-2]
    return compute_numerators(query_features, maps.reshape(batch, heads, before, channels))
