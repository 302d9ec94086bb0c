"""Counter of floating-point operations in matrix products, convolutions and attention."""

import math
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count


def make_flop_counter() -> FlopCounterMode:
    """Create a context manager that counts the floating-point operations of PyTorch code.

    It counts two operations that PyTorch's own counter ignores: forward passes of fused attention
    on a CPU, and matrix products that are added to a tensor in place. A multiply-add counts as two
    operations. Models must be on a CPU, because Triton kernels are not counted.
    """
    return FlopCounterMode(display=False, custom_mapping=_EXTRA_FLOPS)


def _fused_attention_flops(
    query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any
) -> int:
    return sdpa_flop_count(query, key, value)


def _added_product_flops(
    total: torch.Size, left: torch.Size, right: torch.Size, *_: Any, **__: Any
) -> int:
    return 2 * math.prod(left) * right[-1]


_EXTRA_FLOPS = {
    torch.ops.aten.addmm_: _added_product_flops,
    torch.ops.aten.baddbmm_: _added_product_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _fused_attention_flops,
}
