"""A separable kernel between two grids as one small matrix an axis."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from teka.functional.placement import Placement, widest
from teka.functional.relative import SeparableRelative


def axis_log_matrix(
    relative: SeparableRelative, axis: int, placement: Placement, like: Tensor
) -> Float[Tensor, "heads query_side key_side"]:
    """log c_axis of every pair of rows, of as many sines as there are offsets where both grids have one spacing.

    Args:
        relative: The kernel.
        axis: The axis.
        placement: The grids.
        like: A tensor of the dtype and device.
    """
    assert placement.grids is not None
    query, key = placement.grids
    if query.spacing[axis] != key.spacing[axis]:
        return relative.axis_log_kernel(axis, placement.axis_offsets_like(axis, like))
    side = key.shape[axis]
    steps = torch.arange(1 - side, query.shape[axis], dtype=widest(like.device), device=like.device)
    offsets = query.wrap_axis(axis, steps * query.spacing[axis] + (query.origin[axis] - key.origin[axis]))
    # Entry (i, j) is that of step i − j.
    return relative.axis_log_kernel(axis, offsets.to(like)).unfold(-1, side, 1).flip(-1)


def axis_log_matrices(
    relative: SeparableRelative, placement: Placement, like: Tensor
) -> tuple[list[Float[Tensor, "heads query_side key_side"]], Float[Tensor, "1 heads queries"]]:
    """log c_axis for every axis less the largest entry of each row, and the sum of what was taken off, for each query.

    Args:
        relative: The kernel.
        placement: The grids.
        like: A tensor of the dtype and device.
    """
    matrices, log_peak = [], torch.zeros((), dtype=like.dtype, device=like.device)
    for axis in range(placement.num_axes):
        log_matrix = axis_log_matrix(relative, axis, placement, like)
        row_peak = log_matrix.detach().amax(dim=-1)
        log_matrix = log_matrix - row_peak[..., None]
        # Numbers below the smallest normal one have lost their digits, and a CPU multiplies them many times as slowly.
        matrices.append(log_matrix.masked_fill(log_matrix < math.log(torch.finfo(like.dtype).tiny), -math.inf))
        log_peak = log_peak[..., None] + row_peak.reshape(-1, *[1] * axis, log_matrix.shape[-2])
    return matrices, log_peak.flatten(1)[None]


def runs_by_hand(tensor: Tensor) -> bool:
    """Whether sums are taken head by head in a CPU's cache; a compiled graph would hold every step of the loops."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()
