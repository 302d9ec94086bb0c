"""Causal attention by blocks of tokens: every pair within a chunk, sums of the chunks before, features not kept."""

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd import Function

from teka._compat import by_hand
from teka.functional.backend.fused.position_maps import KEYS, QUERIES, Block, Factors, PositionMap, of_block
from teka.functional.backend.fused.two_sided import BLOCK_TOKENS, differentiable_gradients, masked, product
from teka.functional.kernel.local import LocalKernel
from teka.functional.shapes import Kept, Keys, Outputs, Queries, Values

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
    key_mask: Kept,
) -> Outputs:
    """The weighted means that `causal_linear` gives the sums of, of keys in range, with features made anew.

    With φ̃ the one part that positions make of φ, S the sum φ̃(k) vᵀ over the chunks before, and f what the denominator
    sums, each with its weight,

        N_i = φ̃(q_i)ᵀ S + Σ_{j ≤ i in the chunk} φ̃(q_i)ᵀφ̃(k_j) v_j,   D_i = Σ_f f(q_i)ᵀ Σ_{j ≤ i} f(k_j).

    Forward, sums are handed on from block to block, and kept as they are before each; backward, in reverse, what later
    queries ask of keys is handed on.
    """
    return _FusedCausal.apply(query, key, value, kernel, positions, scale, key_mask, *positions.tensors)


class _FusedCausal(Function):
    @staticmethod
    def forward(ctx, query, key, value, kernel, positions, scale, key_mask, *tensors):
        weights = _weights(positions, kernel, query)
        inverse = value.new_empty(*query.shape[:3], 1)
        shape = (*query.shape[:3], value.shape[-1])
        output = torch.empty_like(query) if query.shape == shape else query.new_empty(shape)

        def weigh(block: Block, sums: _Sums) -> None:
            query_features = kernel.query_block(of_block(query, block), scale=scale)[0]
            key_features = masked(kernel.feature_map(of_block(key, block), scale=scale), key_mask, block)
            num_rows = len(key_features)
            _, left, asked, _ = next(positions.parts(query_features, QUERIES, block, []))
            _, right, given, _ = next(positions.parts(key_features, KEYS, block, []))
            left, right, values = _chunks(left), _chunks(right), _chunks(of_block(value, block))
            before = sums.hand_on(right.mT @ values, num_rows)
            above = product(torch.bmm(left, right.mT).tril_(), values, product(left, before, None))
            below = of_block(inverse, block).zero_()
            for place, weight in weights.items():
                below.add_(sums.run_on(place, given[place]).mul_(asked[place]).sum(dim=-1, keepdim=True), alpha=weight)
            below.clamp_min_(torch.finfo(value.dtype).tiny).reciprocal_()
            torch.mul(_tokens(above, num_rows), below, out=of_block(output, block))

        sums, kept = _Sums(), []
        ctx.blocks = list(_blocks(query))
        for block in ctx.blocks:
            sums = _Sums() if block[2].start == 0 else sums.copy()
            kept.append(sums.copy())
            weigh(block, sums)
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
        weights = _weights(positions, kernel, query)
        of_query, of_key, of_value = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        noted = positions.new_gradients(query.shape[0])

        def pull(block: Block, sums: _Sums, later: _Sums) -> None:
            query_features, pull_query = kernel.query_block(of_block(query, block), scale=scale)
            key_features, pull_key = kernel.feature_map_pullback(of_block(key, block), scale=scale)
            key_features, num_rows = masked(key_features, key_mask, block), len(key_features)
            of_above = of_block(gradient, block) * of_block(inverse, block)
            of_below = -(of_above * of_block(output, block)).sum(dim=-1, keepdim=True)
            _, left, asked, pull_left = next(positions.parts(query_features, QUERIES, block, noted))
            _, right, given, pull_right = next(positions.parts(key_features, KEYS, block, noted))
            left, right, asking, values = (_chunks(one) for one in (left, right, of_above, of_block(value, block)))
            before = sums.hand_on(right.mT @ values, num_rows)
            after = later.hand_on(left.mT @ asking, num_rows, back=True)
            pairs, of_pairs = torch.bmm(left, right.mT).tril_(), torch.bmm(asking, values.mT).tril_()
            of_values = _tokens(product(pairs.mT, asking, product(right, after, None)), num_rows)
            of_block(of_value, block).copy_(of_values)
            of_left = _tokens(product(of_pairs, right, product(asking, before.mT, None)), num_rows)
            of_right = _tokens(product(of_pairs.mT, left, product(values, after.mT, None)), num_rows)
            of_asked: list[Factors] = [(None, of_below)] * len(asked)
            of_given = list(of_asked)
            for place, weight in weights.items():
                of_sum = of_below * weight
                of_asked[place] = of_sum, sums.run_on(place, given[place])
                of_given[place] = None, later.run_on(place, asked[place] * of_sum, back=True)
            pull_query(pull_left(of_left, of_asked, None), of_block(of_query, block))
            pull_key(masked(pull_right(of_right, of_given, None), key_mask, block), of_block(of_key, block))

        later = _Sums()
        for block, before_block in zip(reversed(ctx.blocks), reversed(ctx.sums), strict=True):
            later = _Sums() if block[2].stop == query.shape[2] else later
            pull(block, before_block.copy(), later)  # a graph may be gone through twice
        return of_query, of_key, of_value, *nothing, *positions.gradients(noted)


class _Sums:
    """What the tokens so far have left: φ̃(k) vᵀ, and by its place what the denominator sums."""

    def __init__(self, state: Tensor | None = None, totals: dict[int, Tensor] | None = None) -> None:
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


def _weights(positions: PositionMap, kernel: LocalKernel, query: Tensor) -> dict[int, float]:
    """What has a weight in the denominator, by its place."""
    weights = positions.sums(kernel.num_features(query.shape[-1])).values()
    return {place: weight for place, (weight,) in enumerate(weights) if weight}


def _blocks(tokens: Tensor) -> Iterator[Block]:
    """The tokens head by head in whole chunks, then what is left; all samples of some tokens before the next ones."""
    batch, heads, num_tokens, _ = tokens.shape
    most = BLOCK_TOKENS * torch.get_num_threads()
    samples, whole = max(1, most // num_tokens), num_tokens // CHUNK_TOKENS * CHUNK_TOKENS
    bounds = sorted({0, *range(0, whole, most), whole, num_tokens})
    for head, first in itertools.product(range(heads), range(0, batch, samples)):
        for start, stop in itertools.pairwise(bounds):
            yield slice(first, min(first + samples, batch)), slice(head, head + 1), slice(start, stop)


def _chunks(tokens: Tensor) -> Tensor:
    """(rows · chunks, tokens of a chunk, size) of (rows, tokens, size)."""
    return tokens.unflatten(1, (-1, min(CHUNK_TOKENS, tokens.shape[1]))).flatten(0, 1)


def _tokens(chunks: Tensor, num_rows: int) -> Tensor:
    """(rows, tokens, size) of (rows · chunks, tokens of a chunk, size), tokens last in memory."""
    chunks = chunks.unflatten(0, (num_rows, -1)).permute(3, 0, 1, 2)
    return chunks.flatten(2).permute(1, 2, 0)
