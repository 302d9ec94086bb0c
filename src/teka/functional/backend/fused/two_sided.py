"""Sums over all keys by blocks of tokens, with features made anew in the backward pass and not kept."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.autograd import Function

from teka.functional.backend.fused.position_maps import KEYS, QUERIES, Block, PositionMap
from teka.functional.backend.sums import featured
from teka.functional.kernel.base import FusedKernel
from teka.functional.shapes import Kept, Keys, Outputs, Queries, Values

# Tokens of one head, and features (2 MiB), that a thread works on at once. Fewer are nearer to the core and take longer
# all the same, by the calls that there are for each.
BLOCK_TOKENS = 8192
BLOCK_FEATURES = 2**19


def fused_linear(
    query: Queries,
    key: Keys,
    value: Values,
    *,
    kernel: FusedKernel,
    positions: PositionMap,
    scale: float,
    key_mask: Kept,
) -> Outputs:
    """The weighted means that `linear` gives the sums of, with features made anew in the backward pass and not kept.

    With g the gradient of out_i = N_i / D_i, those of N_i and D_i are g/D_i and −gᵀout_i/D_i; the others are products.
    Any order in memory will do; fastest is (heads, dim, batch, tokens).
    """
    key_range = kernel.key_range(key, key_mask, scale=scale)
    return _FusedLinear.apply(query, key, value, kernel, positions, scale, key_mask, key_range, *positions.tensors)


class _FusedLinear(Function):
    @staticmethod
    def forward(ctx, query, key, value, kernel, positions, scale, key_mask, key_range, *tensors):
        batch, heads, num_queries, _ = query.shape
        size = kernel.num_features(query.shape[-1])
        states = [value.new_zeros(heads, batch, parts * size, value.shape[-1]) for parts in positions.groups]
        weights = positions.sums(size)
        totals = [[value.new_zeros(heads, batch, parts * one, 1) for parts in positions.groups] for one in weights]
        inverse = value.new_empty(heads, batch, num_queries, 1)
        shape = (batch, heads, num_queries, value.shape[-1])
        output = torch.empty_like(query) if query.shape == shape else query.new_empty(shape)
        for block in _blocks(key, positions.first, size * max(positions.groups)):
            samples, head, tokens = block
            features, _ = kernel.key_block(key[block], _of_head(key_range, samples, head), scale=scale)
            features = masked(features, key_mask, samples, tokens)
            values = value[block]
            for number, part, summed, _ in positions.parts(features, KEYS, block, []):
                states[number][head, samples].baddbmm_(part.transpose(1, 2), values)
                for total, one in _there(totals, summed):
                    total[number][head, samples].add_(one.sum(dim=1)[..., None])
        _weigh(totals, weights)
        tiny = torch.finfo(value.dtype).tiny
        for block in _blocks(query, positions.first, size * max(positions.groups)):
            samples, head, tokens = block
            features, _ = kernel.query_block(query[block], scale=scale)
            above, below = None, None
            for number, part, summed, _ in positions.parts(features, QUERIES, block, []):
                above = product(part, states[number][head, samples], above)
                for total, one in _there(totals, summed):
                    below = product(one, total[number][head, samples], below)
            assert above is not None
            assert below is not None
            torch.reciprocal(below.clamp_min_(tiny), out=inverse[head, samples, tokens])
            torch.mul(above, inverse[head, samples, tokens], out=output[block])
        sums = states, *totals
        ctx.save_for_backward(
            query, key, value, key_mask, key_range, inverse, output, *itertools.chain(*sums), *tensors
        )
        ctx.kernel, ctx.positions, ctx.scale = kernel, positions.with_tensors(()), scale
        ctx.num_tensors, ctx.num_groups, ctx.is_causal = len(tensors), len(states), False
        return output

    @staticmethod
    def backward(ctx, *grad_outputs):
        (gradient,) = grad_outputs
        query, key, value, key_mask, key_range, inverse, output, *others = ctx.saved_tensors
        tensors = others[len(others) - ctx.num_tensors :]
        sums = [others[at : at + ctx.num_groups] for at in range(0, len(others) - ctx.num_tensors, ctx.num_groups)]
        states, *totals = sums
        nothing = (None,) * 5
        if torch.is_grad_enabled():
            first, *others = differentiable_gradients(ctx, gradient)
            return first, *others[:2], *nothing, *others[2:]
        kernel, scale, positions = ctx.kernel, ctx.scale, ctx.positions.with_tensors(tensors)
        of_query, of_key, of_value = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        noted, size = positions.new_gradients(query.shape[0]), kernel.num_features(query.shape[-1])
        of_states, *of_totals = [[torch.zeros_like(one) for one in group] for group in sums]
        for block in _blocks(query, positions.first, size * max(positions.groups)):
            samples, head, tokens = block
            features, pull = kernel.query_block(query[block], scale=scale)
            of_above = gradient[block] * inverse[head, samples, tokens]
            of_below = -(of_above * output[block]).sum(dim=-1, keepdim=True)
            of_features = None
            for number, part, summed, back in positions.parts(features, QUERIES, block, noted):
                of_states[number][head, samples].baddbmm_(part.transpose(1, 2), of_above)
                for of_total, one in _there(of_totals, summed):
                    of_total[number][head, samples].baddbmm_(one.transpose(1, 2), of_below)
                of_part = product(of_above, states[number][head, samples].mT, None)
                of_summed = [(of_below, total[number][head, samples].mT) for total in totals]
                of_features = back(of_part, of_summed, of_features)
            pull(of_features, of_query[block])
        _weigh(of_totals, positions.sums(size))
        for block in _blocks(key, positions.first, size * max(positions.groups)):
            samples, head, tokens = block
            values = value[block]
            features, pull = kernel.key_block(key[block], _of_head(key_range, samples, head), scale=scale)
            features = masked(features, key_mask, samples, tokens)
            of_features, of_values = None, None
            for number, part, _, back in positions.parts(features, KEYS, block, noted):
                of_values = product(part, of_states[number][head, samples], of_values)
                of_part = product(values, of_states[number][head, samples].mT, None)
                of_summed = [(None, total[number][head, samples].mT) for total in of_totals]
                of_features = back(of_part, of_summed, of_features)
            assert of_features is not None
            assert of_values is not None
            of_features = masked(of_features, key_mask, samples, tokens)
            of_value[block] = of_values
            pull(of_features, of_key[block])
        return of_query, of_key, of_value, *nothing, *positions.gradients(noted)


def differentiable_gradients(ctx, gradient: Tensor) -> list[Tensor | None]:
    """Gradients that can be differentiated again, by way of the plain evaluation."""
    # Views of their own: where one input is another, or depends on it, the gradient of each is still its own alone.
    query, key, value, key_mask, *others = ctx.saved_tensors
    tensors = others[len(others) - ctx.num_tensors :]
    query, key, value, *tensors = inputs = [one.view_as(one) for one in (query, key, value, *tensors)]
    options = {"scale": ctx.scale, "key_mask": key_mask, "is_causal": ctx.is_causal}
    tokens = featured(ctx.kernel, query, key, value, **options)
    output = ctx.positions.with_tensors(tensors).plain_sums(tokens).divide(nonnegative=True)
    wanted = [one for one in inputs if one.requires_grad]
    found = iter(torch.autograd.grad(output, wanted, gradient, create_graph=True))
    return [next(found) if one.requires_grad else None for one in inputs]


def _blocks(tokens: Tensor, first: int, num_features: int) -> Iterator[Block]:
    """The tokens head by head, first ones apart; all samples of some tokens before the next ones."""
    batch, heads, num_tokens, _ = tokens.shape
    most = max(1, min(BLOCK_TOKENS, BLOCK_FEATURES // num_features)) * torch.get_num_threads()
    samples = max(1, most // num_tokens)
    num_blocks = math.ceil((num_tokens - first) / most)
    size = math.ceil((num_tokens - first) / num_blocks)
    starts = [*([0] if first else []), *range(first, num_tokens, size)]
    for head in range(heads):
        for start, stop in itertools.pairwise([*starts, num_tokens]):
            for sample in range(0, batch, samples):
                yield slice(sample, min(sample + samples, batch)), head, slice(start, stop)


def _there(totals: Sequence[list[Tensor]], summed: Sequence[Tensor | None]) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Each total, by groups, with what is summed in it, where that is something."""
    # A plain part sums features alone, which are the first.
    return ((total, one) for total, one in zip(totals, summed, strict=False) if one is not None)


def _weigh(totals: Sequence[list[Tensor]], weights: Mapping[int, list[float]]) -> None:
    """Give the sums of every group their weights in its denominator."""
    for total, of_groups in zip(totals, weights.values(), strict=True):
        for one, weight in zip(total, of_groups, strict=True):
            one.mul_(weight)


def product(left: Tensor, right: Tensor, so_far: Tensor | None) -> Tensor:
    """left · right, added to what there is, with the tokens last in memory, as the features have them."""
    left, right = left.transpose(1, 2), right.transpose(1, 2)
    if so_far is None:
        return torch.bmm(right, left).transpose(1, 2)
    return so_far.transpose(1, 2).baddbmm_(right, left).transpose(1, 2)


def masked(features: Tensor, key_mask: Tensor | None, samples: slice, tokens: slice) -> Tensor:
    """Features of a block with 0 where a key is dropped."""
    return features if key_mask is None else features.masked_fill(~key_mask[samples, tokens, None], 0.0)


def _of_head(key_range: Tensor | None, samples: slice, head: int) -> Tensor | None:
    return None if key_range is None else key_range[samples, head]
