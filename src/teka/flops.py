"""Count the floating-point operations of matrix products."""

import math
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count


def flop_counter() -> FlopCounterMode:
    """A context that counts the operations of all matrix products in it, two for each multiply-add.

    Triton's kernels are among them where they have run before, as they are imported when they first run.
    """
    ours = {
        getattr(torch.ops.teka, name): flops
        for name, flops in OURS.items()
        if hasattr(torch.ops.teka, name)
    }
    return FlopCounterMode(display=False, custom_mapping=UNCOUNTED | ours)


def _fused_flops(*sizes: Any, **_: Any) -> int:
    return sdpa_flop_count(*sizes[:3])  # of query, key and value


def _fused_backward_flops(*sizes: Any, **_: Any) -> int:
    return sdpa_backward_flop_count(*sizes[:4])  # of the gradient too, which comes first


def _added_product_flops(
    total: torch.Size, left: torch.Size, right: torch.Size, *_: Any, **__: Any
) -> int:
    return 2 * math.prod(left) * right[-1]


def _feature_flops(peaks: torch.Size, *given: Any) -> tuple[int, int]:
    """Forward, of sums over keys and their use by queries, and of what is causal within a block, without positions."""
    query, key, value, _, _, places, _, _, form, *_, is_causal = given
    heads, (tokens, size), channels = math.prod(query[:2]), query[2:], value[-1]
    waves = places[-1] if form == "fourier" else 1
    passes = 3 * tokens if is_causal else tokens + key[2]  # causally keys are summed up twice
    pairs = tokens * -(-tokens // max(peaks[-1], 1)) if is_causal else 0
    return 2 * heads * waves * passes * size * channels, 2 * heads * pairs * (size + channels)


def _feature_attention_flops(*given: Any, out_shape: tuple[torch.Size, ...]) -> int:
    return sum(_feature_flops(out_shape[3], *given))


def _feature_gradients_flops(*given: Any, **_: Any) -> int:
    sums, pairs = _feature_flops(*given[4:])
    return 2 * sums + 3 * pairs


# The operators that Triton's kernels are, docs/backends.md.
OURS = {
    "feature_attention": _feature_attention_flops,
    "feature_attention_gradients": _feature_gradients_flops,
}
# What torch's counter does not know: fused attention on a CPU, and products that are added in place.
UNCOUNTED = {
    torch.ops.aten.addmm_: _added_product_flops,
    torch.ops.aten.baddbmm_: _added_product_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _fused_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _fused_backward_flops,
}
