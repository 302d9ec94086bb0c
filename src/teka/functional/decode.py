"""Causal attention one token at a time, with a state of constant size, to generate sequences."""

from functools import partial

import torch
from jaxtyping import Bool, Float, Real
from torch import Tensor

from teka._compat import replace
from teka.checks import BOOL_DTYPES, check_tensor
from teka.errors import wrong_argument, wrong_shape, wrong_type, wrong_value
from teka.functional.attention_plan import AttentionPlan, check_query_key_value, make_attention_plan
from teka.functional.backends.attention_sums import LOWEST_LOG_SCALE
from teka.functional.backends.linear import (
    DecodingState,
    decode_without_positions,
    make_linear_attention_inputs,
)
from teka.functional.kernels.content_kernel import ContentKernel, mask_features
from teka.functional.positions import Positions, as_coordinates
from teka.functional.relative import RELATIVES
from teka.functional.relative.relative_kernel import RelativeKernel
from teka.functional.shapes import KeyMask, Keys, Outputs, Queries, Values
from teka.grid import Grid
from teka.precision import without_autocast


def decode(
    query: Float[Tensor, "batch heads tokens dim"],
    key: Float[Tensor, "batch heads tokens dim"],
    value: Float[Tensor, "batch heads tokens dim_value"],
    state: DecodingState | None,
    *,
    kernel: str | ContentKernel,
    relative: str | RelativeKernel | None = None,
    position: Real[Tensor, "*batch axes"] | None = None,
    key_mask: Bool[Tensor, "batch tokens"] | None = None,
    scale: float | None = None,
) -> tuple[Float[Tensor, "batch heads tokens dim_value"], DecodingState]:
    """Compute causal attention for the next tokens of a sequence, to generate it step by step.

    The recurrent state summarizes the earlier tokens, so the cost of a token does not grow with
    their number. The outputs are those of `attention` with is_causal=True on the whole sequence. A
    prompt of several tokens can be computed in one call.

    >>> import torch, teka
    >>> query, key, value = torch.randn(3, 1, 2, 5, 4)
    >>> options = {"kernel": "squared_relu", "relative": "decay"}
    >>> prompt, state = teka.functional.decode(query, key, value, None, **options)
    >>> next_token, state = teka.functional.decode(*torch.randn(3, 1, 2, 1, 4), state, **options)
    >>> state.num_tokens
    6

    Args:
        query: Queries of the next tokens, shape (B, H, L, d), often with L = 1.
        key: Keys of the next tokens, shape (B, H, L, d).
        value: Values of the next tokens, shape (B, H, L, d_v).
        state: State after the earlier tokens, or None if there are none.
        kernel: Content kernel with a feature map.
        relative: Relative kernel: None, "fourier", "rotary", "rotation_joint", or for one axis
            "clipped", "clipped_features", "shaw", "decay" or "alibi".
        position: Position of a single token in physical units, shape (n,) or (B, n). By default,
            token t is at t.
        key_mask: True for tokens that may be attended to, shape (B, L). The others leave the state
            unchanged.
        scale: Factor of qᵀk, as in `attention`.

    Returns:
        The outputs, shape (B, H, L, d_v), and the state after these tokens.

    Raises:
        ValueError: Types or shapes do not fit, a kernel has no state of fixed size, or the state
            belongs to other kernels or sizes.
    """
    check_tensor("query", query, "batch", "heads", "tokens", "dim")
    check_tensor("key", key, *query.shape)
    check_query_key_value(query, key, value)
    batch, heads, num_tokens, dim = query.shape
    if state is not None and not isinstance(state, DecodingState):
        raise wrong_type("state", state, "None or the DecodingState of the previous token")
    if key_mask is not None:
        check_tensor("key_mask", key_mask, batch, num_tokens, dtypes=BOOL_DTYPES)
    num_earlier = 0 if state is None else state.num_tokens
    kind = relative if isinstance(relative, RelativeKernel) else None
    if isinstance(relative, str):
        kind = RELATIVES.get(relative)
    if kind is not None and not kind.supports_decoding:
        names = [repr(name) for name, other in sorted(RELATIVES.items()) if other.supports_decoding]
        hint = "Other relative kernels need every pair of tokens."
        raise wrong_value(
            "relative", kind.name, f"None, {', '.join(names[:-1])} or {names[-1]}", hint
        )
    positions = _positions_of_next_tokens(query, num_earlier, position, kind)
    plan = make_attention_plan(
        kernel, relative, positions, heads=heads, dim=dim, is_causal=True, scale=scale
    )
    if plan.kernel.features is None:
        hint = "Without a feature map, the state would grow with the number of tokens."
        raise wrong_value("kernel", plan.kernel.name, "a kernel with a feature map", hint)
    kernels = (plan.kernel.features.name, None if plan.relative is None else plan.relative.name)
    if state is not None and state.kernels != kernels:
        raise wrong_value("state.kernels", state.kernels, f"{kernels}, as for the next token")
    adds_states = state is None and (kind is None or not kind.requires_unit_steps)
    if num_tokens == 1 or adds_states:
        output, state = _decode_next_token(plan, query, key, value, state, positions, key_mask)
        if num_tokens > 1:
            # The state is right, but each query has seen all tokens.
            causal_plan = plan.with_backend("auto", query, key, value)
            output = causal_plan.attend(query, key, value, key_mask=key_mask, query_mask=None)
        return output, replace(state, num_tokens=num_earlier + num_tokens, kernels=kernels)
    outputs = []
    for token in range(num_tokens):
        part = slice(token, token + 1)
        output, state = decode(
            query[:, :, part],
            key[:, :, part],
            value[:, :, part],
            state,
            kernel=kernel,
            relative=relative,
            key_mask=None if key_mask is None else key_mask[:, part],
            scale=scale,
        )
        outputs.append(output)
    assert state is not None
    return torch.cat(outputs, dim=2), state


def _positions_of_next_tokens(
    query: Queries,
    num_earlier: int,
    position: Tensor | None,
    kind: RelativeKernel | type[RelativeKernel] | None,
) -> Positions:
    batch, _, num_tokens, _ = query.shape
    if kind is not None and kind.requires_unit_steps:
        if position is not None:
            hint = "This relative kernel assumes that consecutive tokens are 1 unit apart."
            raise wrong_argument("position", "a value", f"None with {kind.name!r}", hint)
        return Positions(Grid(num_tokens))
    if position is None:
        # bfloat16 does not hold all integers from 257 on.
        dtype = torch.promote_types(query.dtype, torch.float32)
        stop = num_earlier + num_tokens
        points = torch.arange(num_earlier, stop, dtype=dtype, device=query.device)
        return Positions(points=points[:, None])
    position = as_coordinates("position", position)
    if num_tokens > 1:
        raise wrong_argument("position", "a value", "None for several tokens")
    has_axes = position.ndim > 0 and position.shape[-1] > 0
    if not has_axes or position.shape[:-1] not in ((), (1,), (batch,)):
        raise wrong_shape("position", position.shape, f"(axes,) or ({batch}, axes)")
    return Positions(points=position[..., None, :])


def _decode_next_token(
    plan: AttentionPlan,
    query: Queries,
    key: Keys,
    value: Values,
    state: DecodingState | None,
    positions: Positions,
    key_mask: KeyMask,
) -> tuple[Outputs, DecodingState]:
    """Add the next token to the recurrent state of causal attention, and compute its output.

    Several tokens, such as a prompt, can be added to the state in one call. Each of their queries
    then attends to all of them, so the outputs are not causal and must be discarded.
    """
    kernel = plan.kernel.features
    assert kernel is not None
    dtype = query.dtype
    if dtype in (torch.float16, torch.bfloat16):
        query, key, value = query.float(), key.float(), value.float()
    key, value = mask_features(key, key_mask), mask_features(value, key_mask)
    with without_autocast(query.device.type):
        plan, query, key = plan.append_position_features(query, key)
        tokens = make_linear_attention_inputs(
            kernel, query, key, value, scale=plan.scale, key_mask=key_mask, is_causal=True
        )
        if key_mask is not None and tokens.log_scale is None:
            # A masked token must not raise the largest log scale of the state either.
            log_scale = torch.zeros_like(value[..., 0])
            log_scale = log_scale.masked_fill(~key_mask[:, None], LOWEST_LOG_SCALE)
            tokens = replace(tokens, log_scale=log_scale)
        step = decode_without_positions
        if plan.relative is not None:
            step = partial(plan.relative.decode_step, positions=positions)
        sums, new_state = step(tokens, state)
        if kernel.normalizes_by_count:
            ones = torch.ones_like(value[..., :1])
            key_ones = mask_features(ones, key_mask)
            counted = replace(tokens, query_features=ones, key_features=key_ones, value=ones)
            count, new_count = step(counted, None if state is None else state.count)
            sums, new_state = sums.replace_denominator(count), replace(new_state, count=new_count)
        output = sums.normalize(nonnegative=kernel.nonnegative or kernel.normalizes_by_count)
    return output.to(dtype), new_state
