"""The dense backend: every pair of tokens, O(L²) work; the reference for the others."""

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from teka.execution_mode import ExecutionMode, execution_mode, is_dynamic, is_readable
from teka.functional.backends import BYTES, Cost, WeightedSums, checkpointed, with_ones
from teka.functional.kernels.base import DenseInputs, apply_log_factor
from teka.functional.shapes import Outputs, Queries

# Numbers of the matrix of weights that are held at once: 32 MiB in float32. Of a larger one rows are made again.
MATRIX_ELEMENTS = 2**23
# Rounding errors of float64 scores up to this are far below 1.
LARGEST_SCORE = 1e12


def dense_cost(
    num_queries: int, num_keys: int, dense_size: int, dim_value: int, *, passes: int
) -> Cost:
    """The weights, their product with the values, and some passes over the L × L matrix, read and written."""
    pairs = num_queries * num_keys
    return Cost(pairs * (dense_size + dim_value + 1), pairs * passes * 2 * BYTES)


def matrix_attention(
    pairs: DenseInputs, log_rows: Callable[[Queries, slice], Tensor] | None
) -> Outputs:
    """From the matrix of weights κ(q_i, k_j) c(x_i − x_j; q_i), some rows at a time; `log_rows` is None for c = 1."""
    query, value, kernel = pairs.query, pairs.value, pairs.kernel
    left, right, log_scale = pairs.vectors()
    keep, empty = pairs.masks()
    features = kernel.features
    if features is not None and not kernel.normalizes_by_count:
        # A column of ones sums the weights in the same product: one pass fewer over the matrix.
        value = with_ones(value)

    def attend(rows: slice, query: Tensor, left: Tensor, right: Tensor, value: Tensor) -> Tensor:
        log_relative = None if log_rows is None else log_rows(query, rows)
        part = keep if keep is None or keep.shape[2] == 1 else keep[:, :, rows]
        products = left[:, :, rows] @ right.transpose(-2, -1)
        factors = {"log_relative": log_relative, "log_scale": log_scale, "keep": part}
        mixed = kernel.dense_weights(products, **factors) @ value
        if not kernel.normalizes_by_count:
            return mixed
        shares = apply_log_factor(torch.ones_like(products), *factors.values())
        return torch.cat([mixed, shares.sum(dim=-1, keepdim=True)], dim=-1)

    batch, heads, num_queries, _ = query.shape
    # A graph of any size has all rows at once.
    is_whole = is_dynamic(batch, num_queries, value.shape[2])
    tile = (
        num_queries
        if is_whole
        else max(1, MATRIX_ELEMENTS // max(1, batch * heads * value.shape[2]))
    )
    if is_whole or tile >= num_queries:
        output = attend(slice(0, num_queries), query, left, right, value)
    else:
        parts = [
            slice(start, min(start + tile, num_queries)) for start in range(0, num_queries, tile)
        ]
        output = torch.cat(
            [checkpointed(attend, rows, query, left, right, value) for rows in parts], dim=2
        )
    if features is not None or kernel.normalizes_by_count:
        nonnegative = kernel.normalizes_by_count or (features is not None and features.nonnegative)
        output = WeightedSums.of_channels(output).divide(nonnegative=nonnegative)
    return output if empty is None else output.masked_fill(empty, 0.0)


def fused_softmax(pairs: DenseInputs) -> Outputs:
    """Softmax attention by torch's fused kernel, which holds no L × L matrix; under transforms, unfused."""
    query, key, value, mask, empty = pairs.query, pairs.key, pairs.value, None, None
    size = value.shape[-1]
    if query.shape[-1] > size:
        value = pad(value, (0, query.shape[-1] - size))
    if pairs.key_mask is not None:
        mask, empty = pairs.masks()
    is_transformed = execution_mode(query, key, value) is ExecutionMode.TRANSFORMED
    is_fused = not is_transformed and not _loses_digits(query, key, pairs.scale)
    options = {
        "attn_mask": mask,
        "is_causal": pairs.is_causal and mask is None,
        "scale": pairs.scale,
    }
    with nullcontext() if is_fused else sdpa_kernel(SDPBackend.MATH):
        output = scaled_dot_product_attention(query, key, value, **options)
    return output[..., :size] if empty is None else output[..., :size].masked_fill(empty, 0.0)


def _loses_digits(query: Tensor, key: Tensor, scale: float) -> bool:
    """Return True if float64 scores may be so large that the fused backward pass, which makes them again, overflows."""
    if query.dtype != torch.float64 or not query.is_cpu or not is_readable(query):
        return False
    return bool(
        scale * torch.linalg.vector_norm(query.detach()) * torch.linalg.vector_norm(key.detach())
        > LARGEST_SCORE
    )
