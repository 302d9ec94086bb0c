"""The Toeplitz backend: a separable relative kernel on a grid, one small matrix an axis."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from teka.functional.backend.sums import Sums
from teka.functional.relative import SeparableRelative
from teka.grid import Grid

# Numbers of φ ⊗ [v, 1] that are held at once: 128 MiB in float32. Beyond it the features are taken in chunks of equal
# size, which are recomputed in the backward pass.
CHUNK_ELEMENTS = 2**25


def toeplitz(
    query_features: Float[Tensor, "batch heads tokens features"],
    key_features: Float[Tensor, "batch heads tokens features"],
    value: Float[Tensor, "batch heads tokens dim_value"],
    relative: SeparableRelative,
    grid: Grid,
) -> Sums:
    """Σ_j φ(q_i)ᵀφ(k_j) c(x_i − x_j) [v_j, 1] with c = Π_axis c_axis.

    T_j = φ(k_j) ⊗ [v_j, 1] lies on the grid; along each axis it is multiplied by the S × S matrix c_axis(x_i − x_j),
    and the result is contracted with φ(q_i). Each row of a matrix is divided by its largest entry, which cancels in the
    normaliser. Cost O(L · m · (d + 1) · Σ sides); the features are taken in chunks, so that memory does not grow with
    m.
    """
    batch, heads, num_tokens, num_features = key_features.shape
    matrices, log_peak = _axis_matrices(relative, grid, value)
    channels = value.shape[-1] + 1
    num_chunks = min(num_features, -(-batch * heads * num_tokens * channels * num_features // CHUNK_ELEMENTS))
    chunk = -(-num_features // num_chunks)
    value = torch.cat([value, torch.ones_like(value[..., :1])], dim=-1)
    sums = torch.zeros_like(value)
    recompute = num_chunks > 1 and torch.is_grad_enabled()
    for start in range(0, num_features, chunk):
        features = slice(start, start + chunk)
        arguments = (query_features[..., features], key_features[..., features], value, *matrices)
        part = checkpoint(_chunk_sums, *arguments, use_reentrant=False) if recompute else _chunk_sums(*arguments)
        sums = sums + part
    return Sums(sums[..., :-1], sums[..., -1], log_peak)


def _axis_matrices(
    relative: SeparableRelative, grid: Grid, like: Tensor
) -> tuple[list[Float[Tensor, "heads side side"]], Float[Tensor, "1 heads tokens"]]:
    """c_axis for every axis with each row divided by its largest entry, and the logarithm of what was taken out."""
    matrices, log_peak = [], torch.zeros((), dtype=like.dtype, device=like.device)
    for axis in range(grid.num_axes):
        log_matrix = relative.axis_log_kernel(axis, grid.axis_offsets(axis, dtype=like.dtype, device=like.device))
        row_peak = log_matrix.detach().amax(dim=-1)
        matrices.append(torch.exp(log_matrix - row_peak[..., None]))
        log_peak = log_peak[..., None] + row_peak.reshape(-1, *[1] * axis, grid.shape[axis])
    return matrices, log_peak.reshape(1, -1, grid.num_tokens)


def _chunk_sums(
    query_features: Float[Tensor, "batch heads tokens features"],
    key_features: Float[Tensor, "batch heads tokens features"],
    value: Float[Tensor, "batch heads tokens channels"],
    *matrices: Float[Tensor, "heads _ _"],
) -> Float[Tensor, "batch heads tokens channels"]:
    """The part of the sums that comes from some of the features."""
    batch, heads = value.shape[:2]
    sides = [matrix.shape[-1] for matrix in matrices]
    tensor = key_features[..., :, None] * value[..., None, :]
    shape = tensor.shape
    for axis, matrix in enumerate(matrices):
        before = math.prod(sides[:axis])
        tensor = matrix[:, None] @ tensor.reshape(batch, heads, before, sides[axis], -1)
    return (query_features[..., None, :] @ tensor.reshape(shape))[..., 0, :]


def toeplitz_multiplications(grid: Grid, num_features: int, dim_value: int) -> int:
    """Multiply-adds of one head: one matrix an axis, the outer product and the contraction."""
    return grid.num_tokens * num_features * (dim_value + 1) * (sum(grid.shape) + 2)
