"""The linear backend on a CPU: one head and a few tokens at a time, so that features never leave the cache."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd import Function

from teka.functional.backend.linear import linear
from teka.functional.kernel.local import LocalKernel, times
from teka.functional.shapes import Kept, Keys, Outputs, Queries, Values

# Tokens of one head that are worked on at once: for heads of 32 256 KiB a tensor, of which a core's cache holds a few.
BLOCK_TOKENS = 2048

Block = tuple[slice, int, slice]


def fused_linear(
    query: Queries, key: Keys, value: Values, *waves: Tensor, kernel: LocalKernel, scale: float, key_mask: Kept
) -> Outputs:
    """The weighted means that `linear` gives the sums of, with features made anew in the backward pass and not kept.

    With g the gradient of out_i = N_i / D_i, those of N_i and D_i are g/D_i and −gᵀout_i/D_i; the others are products.
    Any order in memory will do; fastest is (heads, dim, batch, tokens).
    """
    # With the tokens last in memory, as features have them.
    laid = [one.transpose(-2, -1).contiguous().transpose(-2, -1) for one in waves] or [None, None]
    return _FusedLinear.apply(query, key, value, *laid, kernel, scale, key_mask, kernel.key_unit(key, key_mask))


class _FusedLinear(Function):
    @staticmethod
    def forward(ctx, query, key, value, query_waves, key_waves, kernel, scale, key_mask, key_unit):
        batch, heads, num_queries, _ = query.shape
        num_waves = 1 if key_waves is None else key_waves.shape[-1]
        size = kernel.num_features(query.shape[-1])
        state = value.new_zeros(heads, num_waves, batch, size, value.shape[-1])
        total = value.new_zeros(heads, num_waves, batch, size, 1)
        inverse = value.new_empty(heads, batch, num_queries, 1)
        shape = (batch, heads, num_queries, value.shape[-1])
        output = torch.empty_like(query) if query.shape == shape else query.new_empty(shape)
        for block in _blocks(key):
            samples, head, tokens = block
            vectors = times(key[block], _of_head(key_unit, samples, head))
            features = _masked(kernel.feature_map(vectors, scale=scale), key_mask, samples, tokens)
            values = value[block]
            for wave, part in _times_waves(features, key_waves, block):
                state[head, wave, samples].baddbmm_(part.transpose(1, 2), values)
                total[head, wave, samples].add_(part.sum(dim=1)[..., None])
        tiny = torch.finfo(value.dtype).tiny
        for block in _blocks(query):
            samples, head, tokens = block
            vectors = query[block]
            features = kernel.feature_map(times(vectors, kernel.query_unit(vectors)), scale=scale)
            above, below = None, None
            for wave, part in _times_waves(features, query_waves, block):
                above = _product(part, state[head, wave, samples], above)
                below = _product(part, total[head, wave, samples], below)
            assert above is not None
            assert below is not None
            torch.reciprocal(below.clamp_min_(tiny), out=inverse[head, samples, tokens])
            torch.mul(above, inverse[head, samples, tokens], out=output[block])
        ctx.save_for_backward(
            query, key, value, query_waves, key_waves, key_mask, key_unit, state, total, inverse, output
        )
        ctx.kernel, ctx.scale = kernel, scale
        return output

    @staticmethod
    def backward(ctx, *grad_outputs):
        (gradient,) = grad_outputs
        query, key, value, query_waves, key_waves, key_mask, key_unit, state, total, inverse, output = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *_differentiable_gradients(ctx, gradient), None, None, None, None
        kernel, scale = ctx.kernel, ctx.scale
        of_query, of_key, of_value = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        of_query_waves, of_key_waves = (
            None if waves is None else waves.new_zeros(query.shape[0], *waves.shape[1:])
            for waves in (query_waves, key_waves)
        )
        of_state, of_total = torch.zeros_like(state), torch.zeros_like(total)
        for block in _blocks(query):
            samples, head, tokens = block
            unit = kernel.query_unit(query[block])
            features, pull = kernel.feature_map_pullback(times(query[block], unit), scale=scale)
            of_above = gradient[block] * inverse[head, samples, tokens]
            of_below = -(of_above * output[block]).sum(dim=-1, keepdim=True)
            of_features = None
            for wave, part in _times_waves(features, query_waves, block):
                of_state[head, wave, samples].baddbmm_(part.transpose(1, 2), of_above)
                of_total[head, wave, samples].baddbmm_(part.transpose(1, 2), of_below)
                of_part = _product(of_above, state[head, wave, samples].transpose(1, 2), None)
                of_part = of_part.addcmul_(of_below, total[head, wave, samples].transpose(1, 2))
                of_features = _gather(of_part, features, of_features, query_waves, of_query_waves, wave, block)
            pull(of_features, of_query[block])
            if unit is not None:
                of_query[block].mul_(unit)
        for block in _blocks(key):
            samples, head, tokens = block
            values = value[block]
            unit = _of_head(key_unit, samples, head)
            features, pull = kernel.feature_map_pullback(times(key[block], unit), scale=scale)
            features = _masked(features, key_mask, samples, tokens)
            of_features, of_values = None, None
            for wave, part in _times_waves(features, key_waves, block):
                of_values = _product(part, of_state[head, wave, samples], of_values)
                of_part = _product(values, of_state[head, wave, samples].transpose(1, 2), None)
                of_part = of_part.add_(of_total[head, wave, samples].transpose(1, 2))
                of_features = _gather(of_part, features, of_features, key_waves, of_key_waves, wave, block)
            assert of_features is not None
            assert of_values is not None
            of_features = _masked(of_features, key_mask, samples, tokens)
            of_value[block] = of_values
            pull(of_features, of_key[block])
            if unit is not None:
                of_key[block].mul_(unit)
        waves = [
            one if one is None or given.shape[0] > 1 else one.sum(dim=0, keepdim=True)
            for one, given in ((of_query_waves, query_waves), (of_key_waves, key_waves))
        ]
        return of_query, of_key, of_value, *waves, None, None, None, None


def _differentiable_gradients(ctx, gradient: Tensor) -> list[Tensor | None]:
    """Gradients that can be differentiated again, by way of the plain evaluation."""
    # Views of their own: where one input is another, or depends on it, the gradient of each is still its own alone.
    inputs = [None if one is None else one.view_as(one) for one in ctx.saved_tensors[:5]]
    query, key, value, query_waves, key_waves = inputs
    assert query is not None
    assert key is not None
    assert value is not None
    query_features = ctx.kernel.query_features(query, scale=ctx.scale)
    key_features = ctx.kernel.key_features(key, scale=ctx.scale, key_mask=ctx.saved_tensors[5])
    output = linear(query_features, key_features, value, query_waves, key_waves).divide(nonnegative=True)
    wanted = [one for one in inputs if one is not None and one.requires_grad]
    found = iter(torch.autograd.grad(output, wanted, gradient, create_graph=True))
    return [next(found) if one is not None and one.requires_grad else None for one in inputs]


def _blocks(tokens: Tensor) -> Iterator[Block]:
    batch, heads, num_tokens, _ = tokens.shape
    samples = max(1, BLOCK_TOKENS // num_tokens)
    size = math.ceil(num_tokens / math.ceil(num_tokens / BLOCK_TOKENS))
    for first in range(0, batch, samples):
        for head in range(heads):
            for start in range(0, num_tokens, size):
                yield slice(first, min(first + samples, batch)), head, slice(start, min(start + size, num_tokens))


def _product(left: Tensor, right: Tensor, so_far: Tensor | None) -> Tensor:
    """left · right, added to what there is, with the tokens last in memory, as the features have them."""
    left, right = left.transpose(1, 2), right.transpose(1, 2)
    if so_far is None:
        return torch.bmm(right, left).transpose(1, 2)
    return so_far.transpose(1, 2).baddbmm_(right, left).transpose(1, 2)


def _masked(features: Tensor, key_mask: Tensor | None, samples: slice, tokens: slice) -> Tensor:
    return features if key_mask is None else features.masked_fill(~key_mask[samples, tokens, None], 0.0)


def _of_head(unit: Tensor | None, samples: slice, head: int) -> Tensor | None:
    return None if unit is None else unit[samples, head]


def _times_waves(features: Tensor, waves: Tensor | None, block: Block) -> Iterator[tuple[int, Tensor]]:
    """The features times every wave in turn; the features alone where there are no waves."""
    if waves is None:
        yield 0, features
        return
    for wave in range(waves.shape[-1]):
        yield wave, features * _wave(waves, wave, block)


def _wave(waves: Tensor, wave: int, block: Block) -> Tensor:
    samples, head, tokens = block
    return waves[samples if waves.shape[0] > 1 else slice(None), head, tokens, wave, None]


def _gather(
    of_part: Tensor,
    features: Tensor,
    of_features: Tensor | None,
    waves: Tensor | None,
    of_waves: Tensor | None,
    wave: int,
    block: Block,
) -> Tensor:
    """Add one wave's part of the features' gradient, and note the gradient of the wave."""
    if waves is None or of_waves is None:
        return of_part
    of_waves[(*block, wave)] = (of_part * features).sum(dim=-1)
    factor = _wave(waves, wave, block)
    return of_part.mul_(factor) if of_features is None else of_features.addcmul_(of_part, factor)
