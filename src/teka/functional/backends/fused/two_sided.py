"""Sums over all keys by blocks of tokens, with features made anew in the backward pass and not kept."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from teka._compat import by_hand, replace
from teka.functional.backends.custom_ops import ByHand, in_order_of
from teka.functional.backends.feature_sums import featured
from teka.functional.backends.fused.parts import (
    ALIGNED_TOKENS,
    Group,
    empty_like,
    in_slices,
    of_group,
    of_tokens,
)
from teka.functional.backends.fused.position_maps import KEYS, QUERIES, Parts, PositionMap
from teka.functional.kernels.base import FusedKernel, Pullback
from teka.functional.shapes import Gradients, KeyMask, Keys, Outputs, Queries, Values

# Tokens, counted anew for each head, and features (2 MiB), that a thread works on at once. Fewer are nearer to the core
# and take longer all the same, by the calls that there are for each.
BLOCK_TOKENS = 8192
BLOCK_FEATURES = 2**19
# The calls for a block cost as much as copying this many tokens, which several heads of several samples need to be one.
BLOCK_COST = 2048
# Queries, keys, values, which keys are kept, and what a kernel takes of all of them.
Given = tuple[Queries, Keys, Values, KeyMask, Tensor | None]
SumsOfParts = Sequence[Sequence[Tensor]]  # for the numerator, then for the denominator


def fused_linear(
    query: Queries,
    key: Keys,
    value: Values,
    *,
    kernel: FusedKernel,
    positions: PositionMap,
    scale: float,
    key_mask: KeyMask,
) -> Outputs:
    """The weighted means that `linear` gives the sums of, with features made anew in the backward pass and not kept.

    With g the gradient of out_i = N_i / D_i, those of N_i and D_i are g/D_i and −gᵀout_i/D_i; the others are products.
    Any order in memory will do; fastest is (heads, dim, batch, tokens).
    """
    means = WeightedMeans.of(query, key, kernel, positions, scale)
    return _FusedLinear.apply(means, *means.given(query, key, value, key_mask), *positions.tensors)


class _Rows(NamedTuple):
    """What is given of a group of samples and heads, and found, each (samples · heads, …)."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    inverse: Tensor
    sums: SumsOfParts
    dropped: Tensor | None
    key_range: Tensor | None
    parts: Parts


class _Gradients(NamedTuple):
    """The gradients of what a group has."""

    output: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    sums: SumsOfParts


@dataclass(frozen=True)
class WeightedMeans:
    """What is summed, by groups of samples and heads, and in which blocks of queries and of keys."""

    kernel: FusedKernel
    positions: PositionMap
    scale: float
    groups: Sequence[Group]
    query_blocks: Sequence[slice]
    key_blocks: Sequence[slice]

    @classmethod
    def of(
        cls, query: Queries, key: Keys, kernel: FusedKernel, positions: PositionMap, scale: float
    ) -> "WeightedMeans":
        """Those for queries and keys like these."""
        most = max(1, min(BLOCK_TOKENS, BLOCK_FEATURES // kernel.num_features(query.shape[-1])))
        most *= torch.get_num_threads()
        batch, heads, num_queries, _ = query.shape
        groups = _groups(batch, heads, max(num_queries, key.shape[2]), most)
        most = max(1, most // math.prod(one.stop for one in groups[0]))
        query_blocks, key_blocks = (
            _blocks(one.shape[2], positions.first, most) for one in (query, key)
        )
        return cls(kernel, positions, scale, groups, query_blocks, key_blocks)

    def given(self, query: Queries, key: Keys, value: Values, key_mask: KeyMask) -> Given:
        """The tokens in an order in memory in which groups of them are views, and what the kernel takes of all keys."""
        query, key, value = (_laid_out(one, self.groups[0]) for one in (query, key, value))
        return query, key, value, key_mask, self.kernel.key_range(key, key_mask, scale=self.scale)

    def values(self, given: Given) -> tuple[Tensor, Tensor, SumsOfParts]:
        """out, 1/D, and the sums over keys for both."""
        query, _, value, *_ = given
        (batch, heads, num_queries, dim), channels = query.shape, value.shape[-1]
        shapes = self.positions.sums(self.kernel.num_features(dim), channels)
        sums = [[value.new_zeros(batch, heads, *one) for one in of_part] for of_part in shapes]
        inverse = value.new_empty(batch, heads, num_queries, 1)
        output = (
            empty_like(query)
            if dim == channels
            else value.new_empty(batch, heads, channels, num_queries).mT
        )
        for group in self.groups:
            rows = self._rows(group, given, output, inverse, sums, [])
            for block in self.key_blocks:
                self._add_keys(block, rows)
            for block in self.query_blocks:
                self._ask(block, rows)
        return output, inverse, sums

    def gradients(
        self, gradient: Tensor, given: Given, output: Tensor, inverse: Tensor, sums: SumsOfParts
    ) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
        """Those of queries, keys, values, and of the tensors of `positions`."""
        query, key, value, *_ = given
        of_query, of_key, of_value = (empty_like(one) for one in (query, key, value))
        noted = [torch.zeros_like(one) for one in self.positions.tensors]
        for group in self.groups:
            rows = self._rows(group, given, output, inverse, sums, noted)
            found = [of_group(one, group) for one in (gradient, of_query, of_key, of_value)]
            of_rows = _Gradients(
                *found, sums=[[torch.zeros_like(one) for one in of_part] for of_part in rows.sums]
            )
            for block in self.query_blocks:
                self._pull_queries(block, rows, of_rows)
            for block in self.key_blocks:
                self._pull_keys(block, rows, of_rows)
        # What waves are made of has the tokens first in memory: products with another order take four times as long.
        return of_query, of_key, of_value, [one.contiguous() for one in noted]

    def _rows(
        self,
        group: Group,
        given: Given,
        output: Tensor,
        inverse: Tensor,
        sums: SumsOfParts,
        noted: list[Tensor],
    ) -> _Rows:
        *tokens, key_mask, key_range = given
        dropped = (
            None
            if key_mask is None
            else ~key_mask[:, None, :, None].expand(-1, output.shape[1], -1, -1)
        )
        return _Rows(
            *[of_group(one, group) for one in (*tokens, output, inverse)],
            sums=[[of_group(one, group) for one in of_part] for of_part in sums],
            dropped=None if dropped is None else of_group(dropped, group),
            key_range=None if key_range is None else of_group(key_range, group),
            parts=self.positions.parts(group, noted),
        )

    # What a visit to a block makes is freed at its end, so that the next one finds memory that is still in the cache.

    def _add_keys(self, block: slice, rows: _Rows) -> None:
        features, _ = self._key_features(block, rows)
        for part in rows.parts(features, KEYS, block):
            part.add_to(rows.sums[part.number], of_tokens(rows.value, block))

    def _ask(self, block: slice, rows: _Rows) -> None:
        features, _ = self.kernel.query_block(of_tokens(rows.query, block), scale=self.scale)
        above, below = None, None
        for part in rows.parts(features, QUERIES, block):
            above, below = part.ask(rows.sums[part.number], above, below)
        assert above is not None
        assert below is not None
        below.clamp_min_(torch.finfo(below.dtype).tiny)
        inverse = torch.reciprocal(below, out=of_tokens(rows.inverse, block))
        torch.mul(above, inverse, out=of_tokens(rows.output, block))

    def _pull_queries(self, block: slice, rows: _Rows, gradients: _Gradients) -> None:
        features, pull = self.kernel.query_block(of_tokens(rows.query, block), scale=self.scale)
        of_above = of_tokens(gradients.output, block) * of_tokens(rows.inverse, block)
        of_below = -(of_above * of_tokens(rows.output, block)).sum(dim=-1, keepdim=True)
        of_features = None
        for part in rows.parts(features, QUERIES, block):
            sums = rows.sums[part.number], gradients.sums[part.number]
            of_features = part.pull_queries(of_above, of_below, *sums, of_features)
        assert of_features is not None
        pull(of_features, of_tokens(gradients.query, block))

    def _pull_keys(self, block: slice, rows: _Rows, gradients: _Gradients) -> None:
        features, pull = self._key_features(block, rows)
        values, of_values = of_tokens(rows.value, block), of_tokens(gradients.value, block)
        of_features = None
        for part in rows.parts(features, KEYS, block):
            of_features = part.pull_keys(
                values, of_values, gradients.sums[part.number], of_features
            )
        assert of_features is not None
        pull(_masked(of_features, rows.dropped, block), of_tokens(gradients.key, block))

    def _key_features(self, block: slice, rows: _Rows) -> tuple[Tensor, Pullback]:
        features, pull = self.kernel.key_block(
            of_tokens(rows.key, block), rows.key_range, scale=self.scale
        )
        return _masked(features, rows.dropped, block), pull


class _FusedLinear(Function):
    @staticmethod
    def forward(ctx, means, *inputs):
        given, tensors = inputs[:5], inputs[5:]
        output, inverse, sums = means.values(given)
        ctx.save_for_backward(*given, output, inverse, *itertools.chain(*sums), *tensors)
        ctx.kernel, ctx.positions, ctx.scale = (
            means.kernel,
            means.positions.with_tensors(()),
            means.scale,
        )
        ctx.means, ctx.num_tensors = replace(means, positions=ctx.positions), len(tensors)
        ctx.num_sums = [len(of_part) for of_part in sums]
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
        tensors, others = others[len(others) - ctx.num_tensors :], iter(others)
        sums = [list(itertools.islice(others, number)) for number in ctx.num_sums]
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
        return [empty_like(query) if query.shape[-1] == dim_value else output, *others]

    def output_gradients(
        self,
        gradient: Tensor,
        tensors: Sequence[Tensor],
        outputs: Sequence[Tensor],
        needs: Sequence[bool],
    ) -> Gradients:
        means, given = self._means(tensors)
        output, inverse, *sums = outputs
        found = means.gradients(gradient, given, output, inverse, [sums])[:3]
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
    query, key, value, *tensors = inputs = [
        one.view_as(one) for one in (query, key, value, *tensors)
    ]
    options = {"scale": ctx.scale, "key_mask": key_mask, "is_causal": ctx.is_causal}
    tokens = featured(ctx.kernel, query, key, value, **options)
    output = ctx.positions.with_tensors(tensors).plain_sums(tokens).divide(nonnegative=True)
    wanted = [one for one in inputs if one.requires_grad]
    found = iter(torch.autograd.grad(output, wanted, gradient, create_graph=True))
    return [next(found) if one.requires_grad else None for one in inputs]


def _groups(batch: int, heads: int, num_tokens: int, most: int) -> list[Group]:
    """Samples of a head, heads of a sample, or all heads of samples, by what that costs."""
    rows = max(1, most // num_tokens)
    ways = [(1, min(rows, batch)), (min(rows, heads), 1)]
    if rows > heads:
        ways.append((heads, min(rows // heads, batch)))

    def cost(way: tuple[int, int]) -> int:
        num_blocks = math.ceil(heads / way[0]) * math.ceil(batch / way[1])
        return num_blocks * BLOCK_COST + (min(way) > 1) * batch * heads * num_tokens

    most_heads, most_samples = min(ways, key=cost)
    groups = itertools.product(in_slices(0, heads, most_heads), in_slices(0, batch, most_samples))
    return [(of_samples, of_heads) for of_heads, of_samples in groups]


def _blocks(num_tokens: int, first: int, most: int) -> list[slice]:
    """The tokens in blocks, the first ones apart."""
    return [
        *([slice(0, first)] if first else []),
        *in_slices(first, num_tokens, most, ALIGNED_TOKENS),
    ]


def _laid_out(tokens: Tensor, group: Group) -> Tensor:
    """Tokens in such an order in memory that groups of several heads and samples are views."""
    return tokens if 1 in (one.stop for one in group) else tokens.mT.contiguous().mT


def _masked(features: Tensor, dropped: Tensor | None, tokens: slice) -> Tensor:
    """Features of some tokens with 0 where a key is dropped."""
    return features if dropped is None else features.masked_fill(of_tokens(dropped, tokens), 0.0)
