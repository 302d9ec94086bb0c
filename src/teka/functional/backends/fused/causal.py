"""Causal attention by blocks of tokens: every pair within a chunk, sums of the chunks before, features not kept."""

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.autograd import Function

from teka._compat import by_hand
from teka.functional.backends.fused.parts import (
    Factors,
    Group,
    Part,
    WavedPart,
    empty_like,
    of_group,
    of_tokens,
    product,
)
from teka.functional.backends.fused.position_maps import KEYS, QUERIES, Parts, PositionMap
from teka.functional.backends.fused.two_sided import BLOCK_TOKENS, differentiable_gradients
from teka.functional.kernels.rectified import LocalKernel
from teka.functional.shapes import KeyMask, Keys, Outputs, Queries, Values

# Tokens of which every pair is computed: with heads of 32 that costs about as much as what chunks hand on.
CHUNK_TOKENS = 64


def fused_causal(
    query: Queries,
    key: Keys,
    value: Values,
    *,
    kernel: LocalKernel,
    positions: PositionMap,
    scale: float,
    key_mask: KeyMask,
) -> Outputs:
    """The weighted means that `causal_linear` gives the sums of, of keys in range, with features made anew.

    With φ̃ the one part that positions make of φ, S the sum φ̃(k) vᵀ over the chunks before, and f what the denominator
    sums, each with its weight,

        N_i = φ̃(q_i)ᵀ S + Σ_{j ≤ i in the chunk} φ̃(q_i)ᵀφ̃(k_j) v_j,   D_i = Σ_f f(q_i)ᵀ Σ_{j ≤ i} f(k_j).

    Forward, sums are handed on from block to block, and kept as they are before each; backward, in reverse, what later
    queries ask of keys is handed on.
    """
    return _FusedCausal.apply(
        query, key, value, kernel, positions, scale, key_mask, *positions.tensors
    )


class _FusedCausal(Function):
    @staticmethod
    def forward(ctx, query, key, value, kernel, positions, scale, key_mask, *tensors):
        inverse = value.new_empty(*query.shape[:3], 1)
        shape = (*query.shape[:3], value.shape[-1])
        output = empty_like(query) if query.shape == shape else query.new_empty(shape)

        def weigh(group: Group, tokens: slice, parts: Parts, sums: _Sums) -> None:
            queries, keys, values, over, out = _of(
                (query, key, value, inverse, output), group, tokens
            )
            query_features = kernel.query_block(queries, scale=scale)[0]
            key_features = _masked(kernel.feature_map(keys, scale=scale), key_mask, group, tokens)
            num_rows = len(key_features)
            asking, asked = (
                _only(parts(*one, tokens))
                for one in ((query_features, QUERIES), (key_features, KEYS))
            )
            left, right, values = _chunks(asking.rows), _chunks(asked.rows), _chunks(values)
            before = sums.hand_on(right.mT @ values, num_rows)
            above = product(torch.bmm(left, right.mT).tril_(), values, product(left, before, None))
            below = over.zero_()
            for place, ((weight, one), (_, other)) in enumerate(
                zip(asking.summed, asked.summed, strict=True)
            ):
                below.add_(
                    sums.run_on(place, other).mul_(one).sum(dim=-1, keepdim=True), alpha=weight
                )
            below.clamp_min_(torch.finfo(value.dtype).tiny).reciprocal_()
            torch.mul(_tokens(above, num_rows), below, out=out)

        kept = []
        ctx.groups, ctx.spans = _groups_and_spans(query)
        for group in ctx.groups:
            sums, parts = _Sums(), positions.parts(group, [])
            for tokens in ctx.spans:
                kept.append(sums.copy())
                weigh(group, tokens, parts, sums)
        ctx.save_for_backward(query, key, value, key_mask, inverse, output, *tensors)
        ctx.kernel, ctx.positions, ctx.scale = kernel, positions.with_tensors(()), scale
        ctx.num_tensors, ctx.is_causal, ctx.sums = len(tensors), True, kept
        return output

    @staticmethod
    @by_hand
    def backward(ctx, *grad_outputs):
        (gradient,) = grad_outputs
        nothing = (None,) * 4
        if torch.is_grad_enabled():
            first, *others = differentiable_gradients(ctx, gradient)
            return first, *others[:2], *nothing, *others[2:]
        query, key, value, key_mask, inverse, output, *tensors = ctx.saved_tensors
        kernel, scale, positions = ctx.kernel, ctx.scale, ctx.positions.with_tensors(tensors)
        of_query, of_key, of_value = empty_like(query), empty_like(key), empty_like(value)
        noted = [torch.zeros_like(one) for one in tensors]

        def pull(group: Group, tokens: slice, parts: Parts, sums: _Sums, later: _Sums) -> None:
            given_here = _of((query, key, value, inverse, output, gradient), group, tokens)
            queries, keys, values, over, out, of_out = given_here
            of_queries, of_keys, of_values = _of((of_query, of_key, of_value), group, tokens)
            query_features, pull_query = kernel.query_block(queries, scale=scale)
            key_features, pull_key = kernel.feature_map_pullback(keys, scale=scale)
            key_features, num_rows = (
                _masked(key_features, key_mask, group, tokens),
                len(key_features),
            )
            of_above = of_out * over
            of_below = -(of_above * out).sum(dim=-1, keepdim=True)
            asking, asked = (
                _only(parts(*one, tokens))
                for one in ((query_features, QUERIES), (key_features, KEYS))
            )
            left, right, of_above, values = (
                _chunks(one) for one in (asking.rows, asked.rows, of_above, values)
            )
            before = sums.hand_on(right.mT @ values, num_rows)
            after = later.hand_on(left.mT @ of_above, num_rows, back=True)
            pairs, of_pairs = (
                torch.bmm(left, right.mT).tril_(),
                torch.bmm(of_above, values.mT).tril_(),
            )
            of_values.copy_(
                _tokens(product(pairs.mT, of_above, product(right, after, None)), num_rows)
            )
            of_left = _tokens(
                product(of_pairs, right, product(of_above, before.mT, None)), num_rows
            )
            of_right = _tokens(
                product(of_pairs.mT, left, product(values, after.mT, None)), num_rows
            )
            of_asking: list[Factors] = []
            of_asked: list[Factors] = []
            for place, ((weight, one), (_, other)) in enumerate(
                zip(asking.summed, asked.summed, strict=True)
            ):
                of_sum = of_below * weight
                of_asking.append((of_sum, sums.run_on(place, other)))
                of_asked.append((None, later.run_on(place, one * of_sum, back=True)))
            pull_query(asking.pull(of_left, of_asking, None), of_queries)
            pull_key(
                _masked(asked.pull(of_right, of_asked, None), key_mask, group, tokens), of_keys
            )

        kept = iter(reversed(ctx.sums))
        for group in reversed(ctx.groups):
            later, parts = _Sums(), positions.parts(group, noted)
            for tokens in reversed(ctx.spans):
                pull(
                    group, tokens, parts, next(kept).copy(), later
                )  # a graph may be gone through twice
        return of_query, of_key, of_value, *nothing, *noted


class _Sums:
    """What the tokens so far have left: φ̃(k) vᵀ, and by its place what the denominator sums."""

    def __init__(
        self, state: Tensor | None = None, totals: dict[int, Tensor] | None = None
    ) -> None:
        self.state, self.totals = state, totals or {}

    def copy(self) -> "_Sums":
        """One that goes on by itself."""
        return _Sums(self.state, dict(self.totals))

    def hand_on(self, own: Tensor, num_rows: int, *, back: bool = False) -> Tensor:
        """What there is before every chunk, (rows · chunks, size, channels), to which the chunk's own is added."""
        own = own.unflatten(0, (num_rows, -1))
        first = torch.zeros_like(own[:, 0]) if self.state is None else self.state
        sums = torch.cat([first[:, None], own.flip(1) if back else own], dim=1)
        # `cumsum`, which adds across the order in memory, takes two to six times as long.
        for so_far, one in itertools.pairwise(sums.unbind(dim=1)):
            one.add_(so_far)
        self.state = sums[:, -1].clone()
        return (sums[:, :-1].flip(1) if back else sums[:, :-1]).flatten(0, 1)

    def run_on(self, place: int, tokens: Tensor, *, back: bool = False) -> Tensor:
        """The sum up to every token, itself among them, of (rows, tokens, size)."""
        # Along what is last in memory, and so it stays: products with sums in another order take ten times as long.
        sums = (tokens.mT.flip(2) if back else tokens.mT).cumsum(dim=2)
        if place in self.totals:
            sums.add_(self.totals[place])
        self.totals[place] = sums[:, :, -1:].clone()
        return (sums.flip(2) if back else sums).mT


def _groups_and_spans(tokens: Tensor) -> tuple[list[Group], list[slice]]:
    """Some samples of one head at a time; and their tokens, in whole chunks, then what is left."""
    batch, heads, num_tokens, _ = tokens.shape
    most = BLOCK_TOKENS * torch.get_num_threads()
    samples, whole = max(1, most // num_tokens), num_tokens // CHUNK_TOKENS * CHUNK_TOKENS
    bounds = sorted({0, *range(0, whole, most), whole, num_tokens})
    starts = itertools.product(range(heads), range(0, batch, samples))
    groups = [
        (slice(first, min(first + samples, batch)), slice(head, head + 1)) for head, first in starts
    ]
    return groups, list(itertools.starmap(slice, itertools.pairwise(bounds)))


def _of(tensors: Sequence[Tensor], group: Group, tokens: slice) -> Iterator[Tensor]:
    """Some tokens of a group of each, (rows, tokens, size)."""
    return (of_tokens(of_group(one, group), tokens) for one in tensors)


def _only(parts: Iterator[Part | WavedPart]) -> Part:
    (part,) = parts
    assert isinstance(part, Part)
    return part


def _masked(features: Tensor, key_mask: KeyMask, group: Group, tokens: slice) -> Tensor:
    return (
        features
        if key_mask is None
        else features.masked_fill(~key_mask[group[0], tokens, None], 0.0)
    )


def _chunks(tokens: Tensor) -> Tensor:
    """(rows · chunks, tokens of a chunk, size) of (rows, tokens, size)."""
    return tokens.unflatten(1, (-1, min(CHUNK_TOKENS, tokens.shape[1]))).flatten(0, 1)


def _tokens(chunks: Tensor, num_rows: int) -> Tensor:
    """(rows, tokens, size) of (rows · chunks, tokens of a chunk, size), tokens last in memory."""
    chunks = chunks.unflatten(0, (num_rows, -1)).permute(3, 0, 1, 2)
    return chunks.flatten(2).permute(1, 2, 0)
