"""Sums over all keys by blocks of tokens, with features made anew in the backward pass and not kept."""

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import Function

from teka._compat import by_hand, replace
from teka.functional.backend.by_hand import ByHand, in_order_of
from teka.functional.backend.fused.position_maps import KEYS, QUERIES, Block, PositionMap, of_block
from teka.functional.backend.sums import featured
from teka.functional.kernel.base import FusedKernel
from teka.functional.shapes import Gradients, Kept, Keys, Outputs, Queries, Values

# Tokens, counted anew for each head, and features (2 MiB), that a thread works on at once. Fewer are nearer to the core
# and take longer all the same, by the calls that there are for each.
BLOCK_TOKENS = 8192
BLOCK_FEATURES = 2**19
# As many numbers of float32 as a line of the cache holds: matrix products of rows of other lengths take a fifth longer.
ALIGNED_TOKENS = 16
# The calls for a block cost as much as copying this many tokens, which several heads of several samples need to be one.
BLOCK_COST = 2048
# Queries, keys, values, which keys are kept, and what a kernel takes of all of them.
Given = tuple[Queries, Keys, Values, Kept, Tensor | None]


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
    means = WeightedMeans.of(query, key, kernel, positions, scale)
    return _FusedLinear.apply(means, *means.given(query, key, value, key_mask), *positions.tensors)


@dataclass(frozen=True)
class WeightedMeans:
    """What is summed, and in which blocks of queries and of keys."""

    kernel: FusedKernel
    positions: PositionMap
    scale: float
    query_blocks: Sequence[Block]
    key_blocks: Sequence[Block]

    @classmethod
    def of(
        cls, query: Queries, key: Keys, kernel: FusedKernel, positions: PositionMap, scale: float
    ) -> "WeightedMeans":
        """Those for queries and keys like these."""
        size = kernel.num_features(query.shape[-1])
        return cls(kernel, positions, scale, *(_blocks(one, positions, size) for one in (query, key)))

    def given(self, query: Queries, key: Keys, value: Values, key_mask: Kept) -> Given:
        """The tokens in an order in memory in which blocks of them are views, and what the kernel takes of all keys."""
        key, value = (_laid_out(one, self.key_blocks) for one in (key, value))
        key_range = self.kernel.key_range(key, key_mask, scale=self.scale)
        return _laid_out(query, self.query_blocks), key, value, key_mask, key_range

    def values(self, given: Given) -> tuple[Tensor, Tensor, list[list[Tensor]]]:
        """out, 1/D, and the sums over keys for both, by groups of parts."""
        query, key, value, key_mask, key_range = given
        kernel, positions, scale = self.kernel, self.positions, self.scale
        batch, heads, num_queries, _ = query.shape
        size = kernel.num_features(query.shape[-1])
        states = [value.new_zeros(batch, heads, parts * size, value.shape[-1]) for parts in positions.groups]
        weights = positions.sums(size)
        totals = [[value.new_zeros(batch, heads, parts * one, 1) for parts in positions.groups] for one in weights]
        inverse = value.new_empty(batch, heads, num_queries, 1)
        is_alike = query.shape[-1] == value.shape[-1]
        output = torch.empty_like(query) if is_alike else value.new_empty(batch, heads, value.shape[-1], num_queries).mT
        tiny = torch.finfo(value.dtype).tiny

        def add_keys(block: Block) -> None:
            features = kernel.key_block(of_block(key, block), _range_of(key_range, block), scale=scale)[0]
            features, values = masked(features, key_mask, block), of_block(value, block)
            for number, part, summed, _ in positions.parts(features, KEYS, block, []):
                of_block(states[number], block[:2]).baddbmm_(part.transpose(1, 2), values)
                for total, one, weight in _there(totals, summed, weights):
                    of_block(total[number], block[:2]).add_(one.sum(dim=1)[..., None], alpha=weight[number])

        def ask(block: Block) -> None:
            features = kernel.query_block(of_block(query, block), scale=scale)[0]
            above, below = None, None
            for number, part, summed, _ in positions.parts(features, QUERIES, block, []):
                above = product(part, of_block(states[number], block[:2]), above)
                for total, one, _ in _there(totals, summed, weights):
                    below = product(one, of_block(total[number], block[:2]), below)
            assert above is not None
            assert below is not None
            torch.reciprocal(below.clamp_min_(tiny), out=of_block(inverse, block))
            torch.mul(above, of_block(inverse, block), out=of_block(output, block))

        _visit(self.key_blocks, add_keys, self.query_blocks, ask)
        return output, inverse, [states, *totals]

    def gradients(
        self, gradient: Tensor, given: Given, output: Tensor, inverse: Tensor, sums: Sequence[Sequence[Tensor]]
    ) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
        """Those of queries, keys, values, and of the tensors of `positions`."""
        query, key, value, key_mask, key_range = given
        kernel, positions, scale = self.kernel, self.positions, self.scale
        states, *totals = sums
        noted, weights = positions.new_gradients(query.shape[0]), positions.sums(kernel.num_features(query.shape[-1]))
        of_query, of_key, of_value = (torch.empty_like(one) for one in (query, key, value))
        of_states, *of_totals = [[torch.zeros_like(one) for one in group] for group in sums]

        def pull_queries(block: Block) -> None:
            features, pull = kernel.query_block(of_block(query, block), scale=scale)
            of_above = of_block(gradient, block) * of_block(inverse, block)
            of_below = -(of_above * of_block(output, block)).sum(dim=-1, keepdim=True)
            of_features = None
            for number, part, summed, back in positions.parts(features, QUERIES, block, noted):
                of_block(of_states[number], block[:2]).baddbmm_(part.transpose(1, 2), of_above)
                for of_total, one, weight in _there(of_totals, summed, weights):
                    of_sum = of_block(of_total[number], block[:2])
                    of_sum.baddbmm_(one.transpose(1, 2), of_below, alpha=weight[number])
                of_part = product(of_above, of_block(states[number], block[:2]).mT, None)
                of_summed = [(of_below, of_block(total[number], block[:2]).mT) for total in totals]
                of_features = back(of_part, of_summed, of_features)
            assert of_features is not None
            pull(of_features, of_block(of_query, block))

        def pull_keys(block: Block) -> None:
            features, pull = kernel.key_block(of_block(key, block), _range_of(key_range, block), scale=scale)
            features, values = masked(features, key_mask, block), of_block(value, block)
            of_features, of_values = None, of_block(of_value, block).mT
            for at, (number, part, _, back) in enumerate(positions.parts(features, KEYS, block, noted)):
                of_values.baddbmm_(of_block(of_states[number], block[:2]).mT, part.mT, beta=min(at, 1))
                of_part = product(values, of_block(of_states[number], block[:2]).mT, None)
                of_summed = [(None, of_block(total[number], block[:2]).mT) for total in of_totals]
                of_features = back(of_part, of_summed, of_features)
            assert of_features is not None
            pull(masked(of_features, key_mask, block), of_block(of_key, block))

        _visit(self.query_blocks, pull_queries, self.key_blocks, pull_keys)
        return of_query, of_key, of_value, positions.gradients(noted)


class _FusedLinear(Function):
    @staticmethod
    def forward(ctx, means, *inputs):
        given, tensors = inputs[:5], inputs[5:]
        output, inverse, sums = means.values(given)
        ctx.save_for_backward(*given, output, inverse, *itertools.chain(*sums), *tensors)
        ctx.kernel, ctx.positions, ctx.scale = means.kernel, means.positions.with_tensors(()), means.scale
        ctx.means, ctx.num_tensors, ctx.num_groups = replace(means, positions=ctx.positions), len(tensors), len(sums[0])
        ctx.is_causal = False
        return output

    @staticmethod
    @by_hand
    def backward(ctx, *grad_outputs):
        (gradient,) = grad_outputs
        nothing = (None,) * 2
        if torch.is_grad_enabled():
            query, key, value, *others = differentiable_gradients(ctx, gradient)
            return None, query, key, value, *nothing, *others
        saved = ctx.saved_tensors  # once, as torch.utils.checkpoint asks for
        given, (output, inverse, *others) = saved[:5], saved[5:]
        tensors = others[len(others) - ctx.num_tensors :]
        sums = [others[at : at + ctx.num_groups] for at in range(0, len(others) - ctx.num_tensors, ctx.num_groups)]
        means = replace(ctx.means, positions=ctx.positions.with_tensors(tensors))
        *of_tokens, of_tensors = means.gradients(gradient, given, output, inverse, sums)
        return None, *of_tokens, *nothing, *of_tensors


class MeansByHand(ByHand):
    """Weighted means without positions, at scale 1, of queries, keys, values and perhaps which keys are kept."""

    def __init__(self, kernel: FusedKernel) -> None:
        self.kernel = kernel

    def outputs(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        means, given = self._means(tensors)
        output, inverse, sums = means.values(given)
        return [in_order_of(self.new_outputs(tensors)[0], output), inverse, *itertools.chain(*sums)]

    def new_outputs(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        query, _, value, *_ = tensors
        size, dim_value = self.kernel.num_features(query.shape[-1]), value.shape[-1]
        shapes = [(query.shape[2], dim_value), (query.shape[2], 1), (size, dim_value), (size, 1)]
        output, *others = [value.new_empty(*query.shape[:2], *shape) for shape in shapes]
        return [torch.empty_like(query) if query.shape[-1] == dim_value else output, *others]

    def output_gradients(
        self, gradient: Tensor, tensors: Sequence[Tensor], outputs: Sequence[Tensor], needs: Sequence[bool]
    ) -> Gradients:
        means, given = self._means(tensors)
        output, inverse, *sums = outputs
        found = means.gradients(gradient, given, output, inverse, [[one] for one in sums])[:3]
        return [*found, *(None for _ in needs[3:])]

    def _means(self, tensors: Sequence[Tensor]) -> tuple[WeightedMeans, Given]:
        query, key, value, *key_mask = tensors
        means = WeightedMeans.of(query, key, self.kernel, PositionMap(), 1.0)
        return means, means.given(query, key, value, *(key_mask or [None]))


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


def _blocks(tokens: Tensor, positions: PositionMap, num_features: int) -> list[Block]:
    """Samples of a head, heads of a sample, or all heads of samples, by what that costs; the first tokens apart."""
    batch, heads, num_tokens, _ = tokens.shape
    first, parts = positions.first, max(positions.groups)
    most = max(1, min(BLOCK_TOKENS, BLOCK_FEATURES // (num_features * parts))) * torch.get_num_threads()
    rows = max(1, most // num_tokens)
    ways = [(1, min(rows, batch)), (min(rows, heads), 1)]
    if rows > heads:
        ways.append((heads, min(rows // heads, batch)))

    def cost(way: tuple[int, int]) -> int:
        num_blocks = math.ceil(heads / way[0]) * math.ceil(batch / way[1])
        # Waves of several heads take longer than those of one, about as if all were copied twice.
        times_copied = 2 * (way[0] > 1) if parts > 1 else min(way) > 1
        return num_blocks * BLOCK_COST + times_copied * batch * heads * num_tokens

    most_heads, most_samples = min(ways, key=cost)
    of_tokens = [*([slice(0, first)] if first else []), *_slices(first, num_tokens, most, ALIGNED_TOKENS)]
    blocks = itertools.product(_slices(0, heads, most_heads), of_tokens, _slices(0, batch, most_samples))
    return [(of_samples, of_heads, part) for of_heads, part, of_samples in blocks]


def _slices(start: int, stop: int, most: int, unit: int = 1) -> list[slice]:
    """From start to stop in as few parts as can be, of about one length, a multiple of a unit but for the last."""
    step = math.ceil((stop - start) / math.ceil((stop - start) / most) / unit) * unit
    return [slice(at, min(at + step, stop)) for at in range(start, stop, step)]


def _laid_out(tokens: Tensor, blocks: Sequence[Block]) -> Tensor:
    """Tokens in such an order in memory that blocks of several heads and samples are views."""
    samples, heads, _ = blocks[0]
    return tokens if 1 in (samples.stop, heads.stop) else tokens.mT.contiguous().mT


def _visit(
    blocks: Sequence[Block],
    visit: Callable[[Block], None],
    others: Sequence[Block],
    visit_other: Callable[[Block], None],
) -> None:
    """Visit all blocks, and each of the others once those of its heads have been.

    What a visit makes is freed at its end, so that the next one finds memory that is still in the cache.
    """
    left = deque(blocks)
    for other in others:
        while left and left[0][1].start < other[1].stop:
            visit(left.popleft())
        visit_other(other)


def _there(
    totals: Sequence[list[Tensor]], summed: Sequence[Tensor | None], weights: Mapping[int, list[float]]
) -> Iterator[tuple[list[Tensor], Tensor, list[float]]]:
    """Each total, by groups, what is summed in it and its weights, where something is."""
    # A plain part sums features alone, which are the first.
    found = zip(totals, summed, weights.values(), strict=False)
    return ((total, one, weight) for total, one, weight in found if one is not None)


def product(left: Tensor, right: Tensor, so_far: Tensor | None) -> Tensor:
    """left · right, added to what there is, with the tokens last in memory, as the features have them."""
    left, right = left.transpose(1, 2), right.transpose(1, 2)
    if so_far is None:
        return torch.bmm(right, left).transpose(1, 2)
    return so_far.transpose(1, 2).baddbmm_(right, left).transpose(1, 2)


def masked(features: Tensor, key_mask: Tensor | None, block: Block) -> Tensor:
    """Features of a block with 0 where a key is dropped."""
    if key_mask is None:
        return features
    dropped = ~key_mask[:, None, :, None].expand(-1, block[1].stop, -1, -1)
    return features.masked_fill(of_block(dropped, block), 0.0)


def _range_of(key_range: Tensor | None, block: Block) -> Tensor | None:
    return None if key_range is None else of_block(key_range, block[:2])
