"""Causal attention token by token, or from a prompt on, with a state of fixed size."""

from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka._compat import replace
from teka.checks import BOOL_DTYPES, check_dtype, check_tensor
from teka.errors import wrong_argument, wrong_shape, wrong_type, wrong_value
from teka.functional.backends import LOWEST_LOG_SCALE
from teka.functional.backends.feature_sums import featured
from teka.functional.backends.linear import DecodingState
from teka.functional.kernels.base import Kernel, mask_features
from teka.functional.plan import Plan, check_inputs
from teka.functional.positions import Positions
from teka.functional.relative import RELATIVES
from teka.functional.relative.base import Relative, linear_step
from teka.functional.shapes import KeyMask, Keys, Outputs, Queries, Values
from teka.grid import Grid
from teka.precision import without_autocast


def decode(
    query: Float[Tensor, "batch heads tokens dim"],
    key: Float[Tensor, "batch heads tokens dim"],
    value: Float[Tensor, "batch heads tokens dim_value"],
    state: DecodingState | None,
    *,
    kernel: str | Kernel,
    relative: str | Relative | None = None,
    position: Float[Tensor, "*batch axes"] | None = None,
    key_mask: Bool[Tensor, "batch tokens"] | None = None,
    scale: float | None = None,
) -> tuple[Float[Tensor, "batch heads tokens dim_value"], DecodingState]:
    """The outputs of the next tokens of causal attention, one or several, and the state after them.

    Token by token it gives what `attention(…, is_causal=True)` gives, at a cost and with a state that do not grow.
    Before the first token several are computed at once, as a prompt is. Types, shapes or kernels that do not fit, or a
    state that other tokens or kernels have left, are a ValueError.

    Args:
        query: Their queries, shape (B, H, L, d), mostly with L = 1.
        key: Their keys.
        value: Their values.
        state: What the tokens before have left, or None before the first.
        kernel: Content kernel with a feature map.
        relative: None, "fourier", "rotary", "rotation_joint", or of one axis "clipped", "clipped_features", "shaw",
            "decay" or "alibi".
        position: The position of one token in physical units, shape (n,) or (B, n); by default, and always for several
            and for those of one axis, t = 0, 1, …, counted in the rings or cells of kernels that have such.
        key_mask: True where a token is kept, shape (B, L); the others, such as what fills up a prompt, leave nothing.
        scale: Factor of qᵀk, as in `attention`.
    """
    check_tensor("query", query, "batch", "heads", "tokens", "dim")
    check_tensor("key", key, *query.shape)
    check_inputs(query, key, value)
    batch, heads, num_tokens, dim = query.shape
    if state is not None and not isinstance(state, DecodingState):
        raise wrong_type("state", state, "None or the DecodingState of the previous token")
    if key_mask is not None:
        check_tensor("key_mask", key_mask, batch, num_tokens, dtypes=BOOL_DTYPES)
    first = 0 if state is None else state.num_tokens
    named = RELATIVES.get(relative) if isinstance(relative, str) else None
    kind = relative if isinstance(relative, Relative) else named
    if kind is not None and not kind.supports_decoding:
        names = [repr(name) for name, other in sorted(RELATIVES.items()) if other.supports_decoding]
        expected = f"None, {', '.join(names[:-1])} or {names[-1]}; others need every pair of tokens"
        raise wrong_value("relative", kind.name, expected)
    positions = _positions(query, first, position, kind)
    plan = Plan.of_kernels(
        kernel, relative, positions, heads=heads, dim=dim, scale=scale, is_causal=True
    )
    if plan.kernel.features is None:
        raise wrong_value(
            "kernel",
            plan.kernel.name,
            "a kernel with a feature map; only its state has a fixed size",
        )
    kernels = (plan.kernel.features.name, None if plan.relative is None else plan.relative.name)
    if state is not None and state.kernels != kernels:
        raise wrong_value(
            "state.kernels", state.kernels, f"{kernels}, the kernels of the next token"
        )
    at_once = state is None and (kind is None or not kind.requires_unit_steps)
    if num_tokens == 1 or at_once:
        output, state = _advance(plan, query, key, value, state, positions, key_mask)
        if num_tokens > 1:  # of several, what is left is right, and each saw them all
            output = plan.attend(
                query, key, value, backend="auto", key_mask=key_mask, query_mask=None
            )
        return output, replace(state, num_tokens=first + num_tokens, kernels=kernels)
    outputs = []
    for token in range(num_tokens):
        one, two, three = (part[:, :, token : token + 1] for part in (query, key, value))
        kept = None if key_mask is None else key_mask[:, token : token + 1]
        output, state = decode(
            one, two, three, state, kernel=kernel, relative=relative, key_mask=kept, scale=scale
        )
        outputs.append(output)
    assert state is not None
    return torch.cat(outputs, dim=2), state


def _positions(
    query: Queries, first: int, position: Tensor | None, kind: Relative | type[Relative] | None
) -> Positions:
    """Where the next tokens are."""
    batch, _, num_tokens, _ = query.shape
    if kind is not None and kind.requires_unit_steps:
        if position is not None:
            raise wrong_argument(
                "position", "a value", f"None with {kind.name!r}; its tokens have a spacing of 1"
            )
        return Positions(Grid(num_tokens))
    if position is None:
        # Whole numbers from 257 on are not all there in bfloat16.
        precise = torch.promote_types(query.dtype, torch.float32)
        return Positions(
            points=torch.arange(first, first + num_tokens, dtype=precise, device=query.device)[
                :, None
            ]
        )
    check_dtype("position", position)
    if num_tokens > 1:
        raise wrong_argument("position", "a value", "None for several tokens")
    if (
        position.ndim == 0
        or position.shape[-1] == 0
        or position.shape[:-1] not in ((), (1,), (batch,))
    ):
        raise wrong_shape("position", position.shape, f"(axes,) or ({batch}, axes)")
    return Positions(points=position[..., None, :])


def _advance(
    plan: Plan,
    query: Queries,
    key: Keys,
    value: Values,
    state: DecodingState | None,
    positions: Positions,
    key_mask: KeyMask,
) -> tuple[Outputs, DecodingState]:
    """The output of a token, and what it leaves; of several the state alone counts."""
    features, dtype = plan.kernel.features, query.dtype
    assert features is not None
    if dtype in (torch.float16, torch.bfloat16):
        query, key, value = query.float(), key.float(), value.float()
    key, value = mask_features(key, key_mask), mask_features(value, key_mask)
    with without_autocast(query.device.type):
        plan, query, key = plan.joined(query, key)
        tokens = featured(
            features, query, key, value, scale=plan.scale, key_mask=key_mask, is_causal=True
        )
        if (
            key_mask is not None and tokens.log_scale is None
        ):  # what leaves nothing has no size either
            nothing = torch.zeros_like(value[..., 0])
            tokens = replace(
                tokens, log_scale=nothing.masked_fill(~key_mask[:, None], LOWEST_LOG_SCALE)
            )
        step = (
            linear_step
            if plan.relative is None
            else partial(plan.relative.step, positions=positions)
        )
        sums, after = step(tokens, state)
        if features.normalizes_by_count:
            ones = torch.ones_like(value[..., :1])
            kept = mask_features(ones, key_mask)
            counted = replace(tokens, query_features=ones, key_features=kept, value=ones)
            count, left = step(counted, None if state is None else state.count)
            sums, after = sums.over(count), replace(after, count=left)
        output = sums.divide(nonnegative=features.nonnegative or features.normalizes_by_count)
    return output.to(dtype), after
