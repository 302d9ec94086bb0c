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


# The functions take the shapes of the tensors.
_EXTRA_FLOPS: dict[Any, Any] = dict.fromkeys(
    (torch.ops.aten.addmm_, torch.ops.aten.baddbmm_),
    lambda total, left, right, *_, **__: 2 * math.prod(left) * right[-1],
)
_EXTRA_FLOPS[torch.ops.aten._scaled_dot_product_flash_attention_for_cpu] = (
    lambda query, key, value, *_, **__: sdpa_flop_count(query, key, value)
)
