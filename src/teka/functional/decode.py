"""Causal attention token by token, from a state of fixed size."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from teka.checks import check_kind
from teka.errors import wrong_shape, wrong_type, wrong_value
from teka.functional.backend.linear.causal import LinearState, causal_chunk, empty_state
from teka.functional.backend.sums import Sums, with_ones
from teka.functional.inputs import check_inputs
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
        kernels: Names of the content kernel and of the relative kernel that the tokens have met.
    """

    num_tokens: int
    total: LinearState
    unturned: LinearState | None = None
    recent: tuple[tuple[Tensor, Tensor, Tensor], ...] = ()
    kernels: tuple[str, str | None] | None = None


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
        ValueError: A kernel without a feature map, a relative kernel that needs every pair, types or shapes that do not
            fit, or a state that other tokens or kernels have left.
    """
    check_inputs(query, key, value, num_tokens=1)
    batch, heads, _, dim = query.shape
    if state is not None and not isinstance(state, DecodingState):
        raise wrong_type("state", state, "None or the DecodingState that the token before has left")
    num_tokens = 0 if state is None else state.num_tokens
    # Whole numbers from 257 on are not all there in bfloat16.
    precise = torch.promote_types(query.dtype, torch.float32)
    if position is not None:
        check_kind("position", position)
        batches = ((), (1,), (batch,))
        if position.ndim == 0 or position.shape[-1] == 0 or position.shape[:-1] not in batches:
            raise wrong_shape("position", position.shape, f"(axes,) or ({batch}, axes)")
    placed = position if position is not None else query.new_full((1,), float(num_tokens), dtype=precise)
    sites = Sites(positions=placed[..., None, :])
    if isinstance(relative, RingRelative) or (isinstance(relative, str) and "clipped" in relative):
        if position is not None:
            raise wrong_value("position", "given", "None with rings, whose tokens follow one another at one distance")
        sites = Sites(Grid(1))
    placement = Placement(sites, sites)
    if relative is not None:
        relative = make_relative(relative, heads=heads, dim=dim, num_axes=placement.num_axes, kernel=kernel)
        if not isinstance(relative, RingRelative | RotaryRelative | WaveRelative | RotationJoint):
            expected = (
                "None, 'clipped', 'clipped_features', 'fourier', 'rotary' or 'rotation_joint': others need every pair"
            )
            raise wrong_value("relative", relative.name, expected)
    joint = relative.num_position_features if isinstance(relative, RotationJoint) else 0
    kernel = make_kernel(kernel, dim + joint)
    if not isinstance(kernel, FeatureKernel):
        raise wrong_value("kernel", kernel.name, "a kernel with a feature map, whose state does not grow")
    if relative is not None:
        relative.check(heads=heads, dim=dim, num_axes=placement.num_axes, kernel=kernel)
        relative = relative.for_kernel(kernel).on(placement)
    scale = check_scale(scale, dim + joint)
    kernels = (kernel.name, None if relative is None else relative.name)
    if state is not None and state.kernels != kernels:
        raise wrong_value("state.kernels", state.kernels, f"{kernels}, those of the next token")
    dtype = query.dtype
    if dtype in (torch.float16, torch.bfloat16):
        query, key, value = query.float(), key.float(), value.float()
    with torch.autocast(query.device.type, enabled=False):
        if isinstance(relative, RotationJoint):
            query, key = relative.concatenate(query, key, placement, scale=scale)
            relative, scale = None, 1.0
        sums, after = _step(query, key, value, state, kernel, relative, placement, scale)
        output = sums.divide(nonnegative=kernel.nonnegative)
    return output.to(dtype), replace(after, num_tokens=num_tokens + 1, kernels=kernels)


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
    if isinstance(relative, RotaryRelative):
        return _rotary_step(query_features, key_features, log_scale, value, state, relative, placement)
    query_waves = key_waves = None
    if isinstance(relative, WaveRelative):
        here = placement.query.places(query.device)
        query_waves, key_waves = (
            waves if waves.ndim == 4 else waves[None]
            for waves in (relative.query_waves(here, query.dtype), relative.key_waves(here, query.dtype))
        )
    num_waves = 1 if key_waves is None else key_waves.shape[-1]
    total = _left_by(state, "total", key_features, value[..., :-1], num_waves)
    if isinstance(relative, RingRelative):
        last = () if state is None else state.recent
        return _ring_step(query, query_features, key_features, log_scale, value, total, last, relative, scale)
    sums, total = causal_chunk(query_features, key_features, log_scale, value, total, query_waves, key_waves)
    return Sums(sums[..., :-1], sums[..., -1]), DecodingState(0, total)


def _left_by(
    state: DecodingState | None,
    part: Literal["total", "unturned"],
    features: Tensor,
    value: Tensor,
    num_waves: int = 1,
) -> LinearState:
    """A sum of the state, or an empty one before the first token; it has the sizes and the dtype of this token's."""
    batch, heads, _, num_features = features.shape
    if state is None:
        return empty_state(features.new_empty(batch, heads, 1, num_features * num_waves), value)
    left = getattr(state, part)
    expected = ((batch, heads, num_features * num_waves, value.shape[-1] + 1), value.dtype)
    came = None if left is None else (tuple(left.total.shape), left.total.dtype)
    if left is None or came != expected:
        raise wrong_value(f"state.{part}", came, f"{expected}, shape and dtype to fit the next token")
    return left


def _rotary_step(
    query_features: Tensor,
    key_features: Tensor,
    log_scale: Tensor | None,
    value: Tensor,
    state: DecodingState | None,
    relative: RotaryRelative,
    placement: Placement,
) -> tuple[Sums, DecodingState]:
    """Turned features for the numerator; for the denominator, where it is not of the same, a state of its own."""
    here = placement.query.places(value.device)
    left, right = relative.weighing(query_features, here), relative.weighing(key_features, here)
    total = _left_by(state, "total", right, value[..., :-1])
    above, total = causal_chunk(left, right, log_scale, value, total)
    if relative.sums_weights:
        return Sums(above[..., :-1], above[..., -1]), DecodingState(0, total)
    left, right = (relative.normalizing(one, placed=True) for one in (query_features, key_features))
    unturned = _left_by(state, "unturned", right, value[..., :0])
    totals, unturned = causal_chunk(left, right, log_scale, value[..., -1:], unturned)
    return Sums(above[..., :-1], totals[..., -1]), DecodingState(0, total, unturned)


def _ring_step(
    query: Tensor,
    query_features: Tensor,
    key_features: Tensor,
    log_scale: Tensor | None,
    value: Tensor,
    total: LinearState,
    last: tuple[tuple[Tensor, Tensor, Tensor], ...],
    relative: RingRelative,
    scale: float,
) -> tuple[Sums, DecodingState]:
    """Keys less than k steps back one by one, the others by their sum."""
    if log_scale is None:
        log_scale = torch.zeros_like(value[..., 0])
    recent = ((key_features, log_scale, value), *last)
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
