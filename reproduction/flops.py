"""Counter of floating-point operations in matrix products, convolutions and attention."""

import math
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count


def flop_counter() -> FlopCounterMode:
    """Return a context manager that counts floating-point operations in PyTorch.

    In addition to PyTorch's own counter, it counts fused attention on a CPU and matrix products
    that are added in place. A multiply-add counts as two operations. Models must be on a CPU,
    because Triton kernels are not counted.
    """
    return FlopCounterMode(display=False, custom_mapping=_EXTRA_FLOPS)


def _added_product_flops(
    total: torch.Size, left: torch.Size, right: torch.Size, *_: Any, **__: Any
) -> int:
    return 2 * math.prod(left) * right[-1]


_ATEN = torch.ops.aten
_EXTRA_FLOPS = {
    _ATEN.addmm_: _added_product_flops,
    _ATEN.baddbmm_: _added_product_flops,
    # The arguments are query, key and value, in the backward pass after the gradient.
    _ATEN._scaled_dot_product_flash_attention_for_cpu: (
        lambda *sizes, **_: sdpa_flop_count(*sizes[:3])
    ),
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda *sizes, **_: sdpa_backward_flop_count(*sizes[:4])
    ),
}
