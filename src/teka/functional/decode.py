"""Causal attention token by token, from a state of fixed size."""

from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from teka._compat import without_autocast
from teka.checks import check_kind
from teka.errors import wrong_shape, wrong_type, wrong_value
from teka.functional.backend import Featured
from teka.functional.backend.linear import DecodingState
from teka.functional.kernel.base import Kernel
from teka.functional.plan import Plan, check_inputs
from teka.functional.positions import Positions
from teka.functional.relative import RELATIVES
from teka.functional.relative.base import Relative, plain_step
from teka.grid import Grid


def decode(
    query: Float[Tensor, "batch heads 1 dim"],
    key: Float[Tensor, "batch heads 1 dim"],
    value: Float[Tensor, "batch heads 1 dim_value"],
    state: DecodingState | None,
    *,
    kernel: str | Kernel,
    relative: str | Relative | None = None,
    position: Float[Tensor, "*batch axes"] | None = None,
    scale: float | None = None,
) -> tuple[Float[Tensor, "batch heads 1 dim_value"], DecodingState]:
    """The output of the next token of causal attention, and the state after it.

    Token by token it gives what `attention(…, is_causal=True)` gives, at a cost and with a state that do not grow.
    Types, shapes or kernels that do not fit, or a state that other tokens or kernels have left, are a ValueError.

    Args:
        query: Its query, shape (B, H, 1, d).
        key: Its key.
        value: Its value.
        state: What the tokens before have left, or None before the first.
        kernel: Content kernel with a feature map.
        relative: None, "fourier", "rotary", "rotation_joint", or of one axis "clipped", "clipped_features", "shaw",
            "decay" or "alibi".
        position: Its position in physical units, shape (n,) or (B, n); by default, and always for those of one axis,
            t = 0, 1, ….
        scale: Factor of qᵀk, as in `attention`.
    """
    check_inputs(query, key, value, num_tokens=1)
    batch, heads, _, dim = query.shape
    if state is not None and not isinstance(state, DecodingState):
        raise wrong_type("state", state, "None or the DecodingState that the token before has left")
    num_tokens = 0 if state is None else state.num_tokens
    if position is None:
        # Whole numbers from 257 on are not all there in bfloat16.
        precise = torch.promote_types(query.dtype, torch.float32)
        positions = Positions(points=query.new_full((1, 1), float(num_tokens), dtype=precise))
    else:
        check_kind("position", position)
        if position.ndim == 0 or position.shape[-1] == 0 or position.shape[:-1] not in ((), (1,), (batch,)):
            raise wrong_shape("position", position.shape, f"(axes,) or ({batch}, axes)")
        positions = Positions(points=position[..., None, :])
    named = RELATIVES.get(relative) if isinstance(relative, str) else None
    kind = relative if isinstance(relative, Relative) else named
    if kind is not None and kind.follows_tokens:
        if position is not None:
            raise wrong_value("position", "given", f"None with {kind.name!r}, whose tokens are one unit apart")
        positions = Positions(Grid(1))
    if kind is not None and not kind.decodes:
        names = [repr(name) for name, other in sorted(RELATIVES.items()) if other.decodes]
        expected = f"None, {', '.join(names[:-1])} or {names[-1]}: others need every pair"
        raise wrong_value("relative", kind.name, expected)
    plan = Plan.of_kernels(kernel, relative, positions, heads=heads, dim=dim, scale=scale, is_causal=True)
    features, relative = plan.kernel.features, plan.relative
    if features is None:
        raise wrong_value("kernel", plan.kernel.name, "a kernel with a feature map, whose state does not grow")
    kernels = (features.name, None if relative is None else relative.name)
    if state is not None and state.kernels != kernels:
        raise wrong_value("state.kernels", state.kernels, f"{kernels}, those of the next token")
    dtype = query.dtype
    if dtype in (torch.float16, torch.bfloat16):
        query, key, value = query.float(), key.float(), value.float()
    with without_autocast(query.device.type):
        plan, query, key = plan.joined(query, key)
        maps = features.feature_maps(query, key, scale=plan.scale, key_mask=None, is_causal=True)
        tokens = Featured(query, *maps[:2], value, maps[2], None, plan.scale, is_causal=True)
        step = plain_step if plan.relative is None else partial(plan.relative.step, positions=positions)
        sums, after = step(tokens, state)
        if features.counts_keys:
            ones = torch.ones_like(value[..., :1])
            counted = replace(tokens, query_features=ones, key_features=ones, value=ones)
            count, left = step(counted, None if state is None else state.count)
            sums, after = sums.over(count), replace(after, count=left)
        output = sums.divide(nonnegative=features.nonnegative or features.counts_keys)
    return output.to(dtype), replace(after, num_tokens=num_tokens + 1, kernels=kernels)
