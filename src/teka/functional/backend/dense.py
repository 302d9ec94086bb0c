"""The dense backend: every pair of tokens, O(L²) work and memory. It is the truth for the others."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from teka.functional.backend.sums import Sums
from teka.functional.kernel import FeatureKernel, Kernel, Softmax
from teka.functional.placement import Placement
from teka.functional.relative import Relative


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
) -> Float[Tensor, "batch heads queries dim_value"]:
    """Attention from the full matrix of weights κ(q_i, k_j) · c(x_i − x_j; q_i)."""
    if isinstance(kernel, Softmax) and relative is None:
        mask = None if key_mask is None else key_mask[:, None, None, :]
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    log_relative = None
    if relative is not None:
        placed = query[:, :, placement.num_prefix_tokens :]
        log_relative = placement.with_prefix(relative.log_kernel(placed, placement.offsets_like(query), scale=scale))
    weights = kernel.weights(query, key, scale=scale, log_relative=log_relative, key_mask=key_mask)
    if not isinstance(kernel, FeatureKernel):
        return weights @ value
    # A column of ones sums the weights in the same product: one pass fewer over the L × L matrix.
    sums = weights @ torch.cat([value, torch.ones_like(value[..., :1])], dim=-1)
    return Sums(sums[..., :-1], sums[..., -1]).divide(nonnegative=kernel.nonnegative)


# A pass over an L × L matrix is bound by memory and takes about as long as this many multiply-adds of a matrix product
# for each of its numbers (`teka bench` on a CPU: at 32 × 32 tokens Toeplitz is 1.7 times as fast as dense, with as many
# multiply-adds).
MULTIPLICATIONS_OF_A_PASS = 4


def dense_multiplications(
    num_queries: int, num_keys: int, num_features: int, dim_value: int, *, has_relative: bool
) -> int:
    """Multiply-adds of one head: the weights, their product with the values, and the passes over the weights.

    Args:
        num_queries: Number of queries.
        num_keys: Number of keys.
        num_features: Size of what the weights are inner products of.
        dim_value: Size of values.
        has_relative: Whether log c is made, raised and multiplied in: four passes over the matrix instead of one.
    """
    passes = 4 if has_relative else 1
    return num_queries * num_keys * (num_features + dim_value + passes * MULTIPLICATIONS_OF_A_PASS)
