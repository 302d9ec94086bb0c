"""Count the floating-point operations of matrix products."""

import math
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count


def flop_counter() -> FlopCounterMode:
    """Return a context manager that counts the floating-point operations of matrix products.

    A multiply-add counts as two operations. Triton kernels are counted only if they have run
    before, because their first call imports them.
    """
    triton = {
        getattr(torch.ops.teka, name): flops
        for name, flops in _TRITON_FLOPS.items()
        if hasattr(torch.ops.teka, name)
    }
    return FlopCounterMode(display=False, custom_mapping=_EXTRA_FLOPS | triton)


def _fused_flops(*sizes: Any, **_: Any) -> int:
    return sdpa_flop_count(*sizes[:3])  # query, key, value


def _fused_backward_flops(*sizes: Any, **_: Any) -> int:
    return sdpa_backward_flop_count(*sizes[:4])  # gradient, query, key, value


def _added_product_flops(
    total: torch.Size, left: torch.Size, right: torch.Size, *_: Any, **__: Any
) -> int:
    return 2 * math.prod(left) * right[-1]


def _triton_flops(
    num_blocks: int, query: torch.Size, key: torch.Size, value: torch.Size, is_causal: bool
) -> tuple[int, int]:
    """Return the forward operations of a Triton kernel.

    Returns:
        Operations of the sums over keys, and operations of the pairs within causal blocks.
    """
    batch, heads, num_queries, dim = query
    dim_value = value[-1]
    if not is_causal:
        return 2 * batch * heads * (num_queries + key[2]) * dim * dim_value, 0
    block = -(-num_queries // max(num_blocks, 1))
    sums = 3 * num_queries * dim * dim_value  # the keys are summed twice
    pairs = num_queries * block * (dim + dim_value)
    return 2 * batch * heads * sums, 2 * batch * heads * pairs


def _triton_forward_flops(
    query: torch.Size,
    key: torch.Size,
    value: torch.Size,
    *options: Any,
    out_shape: tuple[torch.Size, ...],
) -> int:
    num_blocks = out_shape[3][-1]
    return sum(_triton_flops(num_blocks, query, key, value, is_causal=options[-1]))


def _triton_backward_flops(
    gradient: torch.Size,
    output: torch.Size,
    inverse: torch.Size,
    states: torch.Size,
    peaks: torch.Size,
    query: torch.Size,
    key: torch.Size,
    value: torch.Size,
    *options: Any,
    **_: Any,
) -> int:
    sums, pairs = _triton_flops(peaks[-1], query, key, value, is_causal=options[-1])
    return 2 * sums + 3 * pairs


# Custom operators of the Triton kernels, see docs/backends.md.
_TRITON_FLOPS = {
    "linear_attention": _triton_forward_flops,
    "feature_attention_gradients": _triton_backward_flops,
}
# PyTorch does not count fused attention on a CPU and products that are added in place.
_EXTRA_FLOPS = {
    torch.ops.aten.addmm_: _added_product_flops,
    torch.ops.aten.baddbmm_: _added_product_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _fused_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _fused_backward_flops,
}
