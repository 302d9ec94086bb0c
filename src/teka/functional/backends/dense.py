"""Attention computed from the full matrix of query–key weights (the backend "dense").

This algorithm supports every kernel. The tests compare the faster algorithms with its results.
"""

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from teka.execution_mode import ExecutionMode, can_read_elements, execution_mode, has_dynamic_size
from teka.functional.backends.attention_sums import WeightedSums, append_ones
from teka.functional.backends.feature_chunks import run_checkpointed
from teka.functional.kernels.content_kernel import DenseAttentionInputs, multiply_by_log_factors
from teka.functional.shapes import Outputs, Queries

# Elements of the matrix of weights that are held at once: 32 MiB in float32. The rows of a larger
# matrix are computed in chunks, and again in the backward pass.
MATRIX_ELEMENTS = 2**23
# The rounding errors of float64 scores up to this size are far below 1.
MAX_SCORE = 1e12


def dense_attention(
    inputs: DenseAttentionInputs, log_weight_rows: Callable[[Queries, slice], Tensor] | None
) -> Outputs:
    """Compute attention from the full matrix of query–key weights.

    To limit the memory, a large matrix is computed in chunks of rows. The backward pass computes
    each chunk again instead of storing it.

    Args:
        inputs: Queries, keys and values.
        log_weight_rows: Function that returns the log of the position-dependent weights of some
            queries and all keys, or None if all weights are 1.
    """
    query, value, kernel = inputs.query, inputs.value, inputs.kernel
    left, right, log_scale = inputs.vectors()
    keep, is_empty = inputs.attention_masks()
    features = kernel.features
    if features is not None and not kernel.normalizes_by_count:
        # The product with a column of ones sums the weights, which saves a pass over the matrix.
        value = append_ones(value)

    def attend(rows: slice, query: Tensor, left: Tensor, right: Tensor, value: Tensor) -> Tensor:
        log_relative = None if log_weight_rows is None else log_weight_rows(query, rows)
        keep_rows = keep if keep is None or keep.shape[2] == 1 else keep[:, :, rows]
        products = left[:, :, rows] @ right.mT
        factors = {"log_relative": log_relative, "log_scale": log_scale, "keep": keep_rows}
        mixed = kernel.weights_from_products(products, **factors) @ value
        if not kernel.normalizes_by_count:
            return mixed
        counts = multiply_by_log_factors(torch.ones_like(products), *factors.values())
        return torch.cat([mixed, counts.sum(dim=-1, keepdim=True)], dim=-1)

    batch, heads, num_queries, _ = query.shape
    num_keys = value.shape[2]
    num_rows = num_queries
    # A graph for inputs of any size computes all rows at once.
    if not has_dynamic_size(batch, num_queries, num_keys):
        num_rows = max(1, MATRIX_ELEMENTS // max(1, batch * heads * num_keys))
    if num_rows >= num_queries:
        output = attend(slice(0, num_queries), query, left, right, value)
    else:
        outputs = []
        for start in range(0, num_queries, num_rows):
            rows = slice(start, min(start + num_rows, num_queries))
            outputs.append(run_checkpointed(attend, rows, query, left, right, value))
        output = torch.cat(outputs, dim=2)
    if features is not None or kernel.normalizes_by_count:
        nonnegative = kernel.normalizes_by_count or (features is not None and features.nonnegative)
        output = WeightedSums.from_channels(output).normalize(nonnegative=nonnegative)
    return output if is_empty is None else output.masked_fill(is_empty, 0.0)


def fused_softmax_attention(inputs: DenseAttentionInputs) -> Outputs:
    """Compute softmax attention with PyTorch's fused kernel, which stores no weight matrix.

    Under `torch.func` transforms, which the fused kernel does not support, PyTorch's unfused
    implementation is used.
    """
    query, key, value = inputs.query, inputs.key, inputs.value
    mask, is_empty = None, None
    size = value.shape[-1]
    if query.shape[-1] > size:
        value = pad(value, (0, query.shape[-1] - size))
    if inputs.key_mask is not None:
        mask, is_empty = inputs.attention_masks()
    is_transformed = execution_mode(query, key, value) is ExecutionMode.TRANSFORMED
    is_fused = not is_transformed and not _has_large_scores(query, key, inputs.scale)
    with nullcontext() if is_fused else sdpa_kernel(SDPBackend.MATH):
        output = scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=inputs.is_causal and mask is None,
            scale=inputs.scale,
        )
    output = output[..., :size]
    return output if is_empty is None else output.masked_fill(is_empty, 0.0)


def _has_large_scores(query: Tensor, key: Tensor, scale: float) -> bool:
    """Return True if float64 attention scores are too large for PyTorch's fused attention kernel.

    The backward pass of scaled dot-product attention may overflow for such scores.
    """
    if query.dtype != torch.float64 or not query.is_cpu or not can_read_elements(query):
        return False
    query_norm = torch.linalg.vector_norm(query.detach())
    return bool(scale * query_norm * torch.linalg.vector_norm(key.detach()) > MAX_SCORE)
