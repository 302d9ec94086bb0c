"""Causal attention token by token, from a state of fixed size."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from teka.errors import wrong_shape, wrong_value
from teka.functional.backend.linear.causal import LinearState, causal_chunk, empty_state
from teka.functional.backend.linear.linear import product_features
from teka.functional.backend.sums import Sums, with_ones
from teka.functional.kernel import FeatureKernel, Kernel, make_kernel
from teka.functional.placement import Placement, Sites
from teka.functional.relative import (
    Relative,
    RingRelative,
    RotaryRelative,
    RotationJoint,
    WaveRelative,
    make_relative,
)
from teka.functional.scale import check_scale
from teka.grid import Grid


@dataclass(frozen=True)
class DecodingState:
    """What the tokens so far have left.

    Args:
        num_tokens: Their number.
        total: Sums over the keys that are told apart by their features alone: all of them, or with rings those that are
            at least k steps back.
        unturned: With rotary features, the sums over what no turn changes, for the denominator.
        recent: With rings, features, s, and values with a column of ones of the last keys, newest first.
    """

    num_tokens: int
    total: LinearState
    unturned: LinearState | None = None
    recent: tuple[tuple[Tensor, Tensor, Tensor], ...] = ()


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

    Token by token it gives what `attention(…, is_causal=True)` gives for the whole sequence, at a cost and with a state
    that do not grow with the number of tokens.

    Args:
        query: Its query, shape (B, H, 1, d).
        key: Its key.
        value: Its value.
        state: What the tokens before have left, or None before the first.
        kernel: Content kernel with a feature map.
        relative: None, "clipped" or "clipped_features" (one axis), "fourier", "rotary" or "rotation_joint".
        position: Its position in physical units, shape (n,) or (B, n); by default token t = 0, 1, … is at t. With rings
            it is t times the width of a ring, and nothing else can be given.
        scale: Factor of qᵀk, as in `attention`.

    Raises:
        ValueError: A kernel without a feature map, a relative kernel that needs every pair, or shapes that do not fit.
    """
    if query.ndim != 4 or query.shape[2] != 1 or key.shape != query.shape or value.shape[:3] != query.shape[:3]:
        raise wrong_shape("query, key or value", query.shape, "(batch, heads, 1, dim), alike for query and key")
    _, heads, _, dim = query.shape
    num_tokens = 0 if state is None else state.num_tokens
    # Whole numbers from 257 on are not all there in bfloat16.
    precise = torch.promote_types(query.dtype, torch.float32)
    placed = position if position is not None else query.new_full((1,), float(num_tokens), dtype=precise)
    sites = Sites(positions=placed[..., None, :])
    if isinstance(relative, RingRelative) or (isinstance(relative, str) and "clipped" in relative):
        if position is not None:
            raise wrong_value("position", "given", "None with rings, whose tokens follow one another at one distance")
        sites = Sites(Grid(1))
    placement = Placement(sites, sites)
    if relative is not None:
        relative = make_relative(relative, heads=heads, dim=dim, num_axes=placement.num_axes, kernel=kernel)
    joint = relative.num_position_features if isinstance(relative, RotationJoint) else 0
    kernel = make_kernel(kernel, dim + joint)
    if not isinstance(kernel, FeatureKernel):
        raise wrong_value("kernel", kernel.name, "a kernel with a feature map, whose state does not grow")
    if relative is not None:
        relative.check(heads=heads, dim=dim, num_axes=placement.num_axes, kernel=kernel)
        relative = relative.on(placement)
    scale = check_scale(scale, dim + joint)
    dtype = query.dtype
    if dtype in (torch.float16, torch.bfloat16):
        query, key, value = query.float(), key.float(), value.float()
    with torch.autocast(query.device.type, enabled=False):
        if isinstance(relative, RotationJoint):
            query, key = relative.concatenate(query, key, placement, scale=scale)
            relative, scale = None, 1.0
        sums, after = _step(query, key, value, state, kernel, relative, placement, scale)
        output = sums.divide(nonnegative=kernel.nonnegative)
    return output.to(dtype), replace(after, num_tokens=num_tokens + 1)


def _step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: DecodingState | None,
    kernel: FeatureKernel,
    relative: Relative | None,
    placement: Placement,
    scale: float,
) -> tuple[Sums, DecodingState]:
    query_features, key_features, log_scale = kernel.feature_maps(
        query, key, scale=scale, key_mask=None, is_causal=True
    )
    value = with_ones(value)
    query_waves = key_waves = None
    if isinstance(relative, WaveRelative):
        here = placement.query.positions_like(query)
        query_waves, key_waves = (
            waves if waves.ndim == 4 else waves[None]
            for waves in (relative.query_waves(here), relative.key_waves(here))
        )
    if state is None:
        empty = empty_state(product_features(key_features, key_waves), value[..., :-1])
        unturned = None
        if isinstance(relative, RotaryRelative):
            unturned = empty_state(relative.normalizing(key_features), value[..., :-1])
        state = DecodingState(0, empty, unturned)
    if isinstance(relative, RingRelative):
        return _ring_step(query, query_features, key_features, log_scale, value, state, relative, scale)
    if isinstance(relative, RotaryRelative):
        assert state.unturned is not None
        here = placement.query.positions_like(query)
        turned = relative.turn(query_features, here), relative.turn(key_features, here)
        above, total = causal_chunk(*turned, log_scale, value, state.total)
        normalizing = relative.normalizing(query_features), relative.normalizing(key_features)
        below, unturned = causal_chunk(*normalizing, log_scale, value, state.unturned)
        return Sums(above[..., :-1], below[..., -1]), DecodingState(0, total, unturned)
    if relative is not None and not isinstance(relative, WaveRelative):
        expected = (
            "None, 'clipped', 'clipped_features', 'fourier', 'rotary' or 'rotation_joint': others need every pair"
        )
        raise wrong_value("relative", relative.name, expected)
    sums, total = causal_chunk(query_features, key_features, log_scale, value, state.total, query_waves, key_waves)
    return Sums(sums[..., :-1], sums[..., -1]), DecodingState(0, total)


def _ring_step(
    query: Tensor,
    query_features: Tensor,
    key_features: Tensor,
    log_scale: Tensor | None,
    value: Tensor,
    state: DecodingState,
    relative: RingRelative,
    scale: float,
) -> tuple[Sums, DecodingState]:
    """Keys less than k steps back one by one, the others by their sum."""
    if log_scale is None:
        log_scale = torch.zeros_like(value[..., 0])
    recent = ((key_features, log_scale, value), *state.recent)
    total = state.total
    if len(recent) > relative.max_distance:
        *recent, oldest = recent
        _, total = causal_chunk(oldest[0], *oldest, total)
    log_rings = relative.log_rings(query, scale=scale)
    log_factors = [log_rings[..., distance] + one[1] for distance, one in enumerate(recent)]
    log_factors.append(log_rings[..., -1] + total.log_peak[..., None])
    peak = torch.stack(log_factors).amax(dim=0).detach()
    sums = torch.exp(log_factors[-1] - peak)[..., None] * (query_features @ total.total)
    for log_factor, (features, _, values) in zip(log_factors[:-1], recent, strict=True):
        weight = torch.exp(log_factor - peak) * (query_features * features).sum(dim=-1)
        sums = sums + weight[..., None] * values
    return Sums(sums[..., :-1], sums[..., -1]), DecodingState(0, total, recent=tuple(recent))
