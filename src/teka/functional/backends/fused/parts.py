"""Parts of the features of a block of tokens: what is summed of each, and the way back."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Group = tuple[slice, slice]  # samples, heads
Factors = tuple[Tensor | None, Tensor]  # whose product is meant, None being 1
# The features' gradient, added to what there is, from that of the rows and those of what the denominator sums. What a
# part is made of may be overwritten: it comes last.
Pull = Callable[[Tensor, Sequence[Factors], Tensor | None], Tensor]

# Products of features and waves that a thread makes at once: 1 MiB, a level of the cache that is near.
PIECE_FEATURES = 2**18
# As many numbers of float32 as a line of the cache holds: matrix products of rows of other lengths take a fifth longer.
ALIGNED_TOKENS = 16


def of_group(tensor: Tensor, group: Group) -> Tensor:
    """What (#batch, heads, rows, columns) has of a group, (samples · heads, rows, columns), #samples of one head.

    It is a view where there is one head, one sample, or in memory one after the other all heads of every sample.
    """
    samples, heads = group
    found = tensor[samples if tensor.shape[0] > 1 else slice(None), heads]
    if found.shape[1] > 1 and found.shape[0] < samples.stop - samples.start:
        found = found.expand(samples.stop - samples.start, -1, -1, -1)
    if 1 in found.shape[:2] or found.stride(0) == found.shape[1] * found.stride(1):
        return found.flatten(0, 1)
    return found.mT.flatten(0, 1).mT  # the copy has the last rows last in memory


def has_rows_apart(tensor: Tensor) -> bool:
    """Whether (batch, heads, tokens, size) has all tokens of a number side by side, perhaps with room after them."""
    batch, _, num_tokens, size = tensor.shape
    apart = tensor.stride(3)
    return tensor.stride() == (num_tokens, size * apart, 1, apart) and apart >= batch * num_tokens


def empty_like(tensor: Tensor) -> Tensor:
    """Memory for (batch, heads, tokens, size) in the same order, rows of tokens as far apart."""
    if has_rows_apart(tensor):
        return torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
        )
    return torch.empty_like(tensor)


def of_tokens(tensor: Tensor, tokens: slice) -> Tensor:
    """What (rows, tokens, columns) has of some tokens."""
    return tensor if tokens.stop - tokens.start == tensor.shape[1] else tensor[:, tokens]


def in_slices(start: int, stop: int, most: int, unit: int = 1) -> list[slice]:
    """From start to stop in as few parts as can be, of about one length, a multiple of a unit but for the last."""
    step = -(-(stop - start) // -(-(stop - start) // most) // unit) * unit
    return [slice(at, min(at + step, stop)) for at in range(start, stop, step)]


def product(left: Tensor, right: Tensor, so_far: Tensor | None) -> Tensor:
    """left · right, added to what there is, with the tokens last in memory, as the features have them."""
    left, right = left.transpose(1, 2), right.transpose(1, 2)
    if so_far is None:
        return torch.bmm(right, left).transpose(1, 2)
    return so_far.transpose(1, 2).baddbmm_(right, left).transpose(1, 2)


def add_product(to: Tensor, factors: Factors) -> Tensor:
    """A tensor with a product added in place."""
    first, second = factors
    return to.add_(second) if first is None else to.addcmul_(first, second)


def added(one: Tensor, so_far: Tensor | None) -> Tensor:
    """One tensor, added to what there is."""
    return one if so_far is None else so_far.add_(one)


def pull_plain(of_rows: Tensor, of_summed: Sequence[Factors], so_far: Tensor | None) -> Tensor:
    """The gradient of features that are the rows as they are."""
    return added(add_product(of_rows, of_summed[0]), so_far)


@dataclass(frozen=True)
class Part:
    """Rows r for the numerator, Σ r vᵀ, and f for the denominator, Σ f each; the sums are these, r's first.

    Args:
        number: Which part it is.
        rows: r, (samples · heads, tokens, size).
        summed: Each f, (samples · heads, tokens, size), with its weight.
        pull: The way back.
    """

    number: int
    rows: Tensor
    summed: Sequence[tuple[float, Tensor]]
    pull: Pull = pull_plain

    def add_to(self, sums: Sequence[Tensor], values: Tensor) -> None:
        """Add these keys to the sums."""
        state, *totals = sums
        state.baddbmm_(self.rows.transpose(1, 2), values)
        for total, (weight, one) in zip(totals, self.summed, strict=True):
            total.add_(one.sum(dim=1)[..., None], alpha=weight)

    def ask(
        self, sums: Sequence[Tensor], above: Tensor | None, below: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """What these queries have of the sums, added to a numerator and a denominator so far."""
        state, *totals = sums
        for total, (_, one) in zip(totals, self.summed, strict=True):
            below = product(one, total, below)
        assert below is not None
        return product(self.rows, state, above), below

    def pull_queries(
        self,
        of_above: Tensor,
        of_below: Tensor,
        sums: Sequence[Tensor],
        of_sums: Sequence[Tensor],
        so_far: Tensor | None,
    ) -> Tensor:
        """The gradient of the queries' features, added to what there is; that of the sums is added to."""
        (state, *totals), (of_state, *of_totals) = sums, of_sums
        of_state.baddbmm_(self.rows.transpose(1, 2), of_above)
        for of_total, (weight, one) in zip(of_totals, self.summed, strict=True):
            of_total.baddbmm_(one.transpose(1, 2), of_below, alpha=weight)
        return self.pull(
            product(of_above, state.mT, None), [(of_below, total.mT) for total in totals], so_far
        )

    def pull_keys(
        self, values: Tensor, of_values: Tensor, of_sums: Sequence[Tensor], so_far: Tensor | None
    ) -> Tensor:
        """The gradient of the keys' features, added to what there is, like that of the values."""
        of_state, *of_totals = of_sums
        of_values.mT.baddbmm_(of_state.mT, self.rows.mT, beta=0 if so_far is None else 1)
        return self.pull(
            product(values, of_state.mT, None), [(None, one.mT) for one in of_totals], so_far
        )


@dataclass(frozen=True)
class WavedPart:
    """Features f times waves, Σ f ⊗ wave ⊗ v and Σ f ⊗ wave: made of some tokens at a time, nearer in the cache.

    Args:
        features: f, (samples · heads, tokens, size).
        waves: (samples · heads, tokens, W).
        note: Takes the gradient of the waves; None where none is asked for.
    """

    features: Tensor
    waves: Tensor
    note: Callable[[Tensor], None] | None
    number: int = 0

    def add_to(self, sums: Sequence[Tensor], values: Tensor) -> None:
        """As of a `Part`."""
        state, total = sums
        total.baddbmm_(self.features.transpose(1, 2), self.waves)
        for tokens, _, _, rows in self._pieces():
            state.baddbmm_(rows, values[:, tokens])

    def ask(
        self, sums: Sequence[Tensor], above: Tensor | None, below: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """As of a `Part`."""
        state, total = sums
        of_waves = product(self.features, total, None).mul_(self.waves)
        found = self.features.new_empty(len(state), state.shape[2], self.features.shape[1])
        for tokens, _, _, rows in self._pieces():
            found[:, :, tokens].baddbmm_(state.mT, rows, beta=0)
        return added(found.mT, above), added(of_waves.sum(dim=-1, keepdim=True), below)

    def pull_queries(
        self,
        of_above: Tensor,
        of_below: Tensor,
        sums: Sequence[Tensor],
        of_sums: Sequence[Tensor],
        so_far: Tensor | None,
    ) -> Tensor:
        """As of a `Part`."""
        (state, total), (of_state, of_total) = sums, of_sums
        scaled = self.waves * of_below
        of_total.baddbmm_(self.features.transpose(1, 2), scaled)
        of_waves = product(self.features, total, None).mul_(of_below)
        of_features = product(scaled, total.mT, None)
        for tokens, features, waves, rows in self._pieces():
            of_piece = of_above[:, tokens]
            of_state.baddbmm_(rows, of_piece)
            of_rows = torch.bmm(state, of_piece.mT)
            self._pull(of_rows, features, waves, rows, of_features[:, tokens], of_waves[:, tokens])
        return self._noted(of_features, of_waves, so_far)

    def pull_keys(
        self, values: Tensor, of_values: Tensor, of_sums: Sequence[Tensor], so_far: Tensor | None
    ) -> Tensor:
        """As of a `Part`."""
        of_state, of_total = of_sums
        of_waves = product(self.features, of_total, None)
        of_features = product(self.waves, of_total.mT, None)
        for tokens, features, waves, rows in self._pieces():
            of_values[:, tokens].mT.baddbmm_(of_state.mT, rows, beta=0 if so_far is None else 1)
            of_rows = torch.bmm(of_state, values[:, tokens].mT)
            self._pull(of_rows, features, waves, rows, of_features[:, tokens], of_waves[:, tokens])
        return self._noted(of_features, of_waves, so_far)

    def _pieces(self) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        """Some tokens, features and waves of theirs, (…, 1 or W, size or 1, tokens), and products, (…, W · size, …)."""
        features, waves = self.features.mT[:, None], self.waves.mT[:, :, None]
        shape = len(features), waves.shape[1], features.shape[2]
        most = max(1, PIECE_FEATURES * torch.get_num_threads() // (shape[0] * shape[1] * shape[2]))
        for tokens in in_slices(0, self.features.shape[1], most, ALIGNED_TOKENS):
            of_features, of_waves = features[..., tokens], waves[..., tokens]
            rows = features.new_empty(*shape, of_features.shape[-1])
            torch.mul(of_features, of_waves, out=rows)
            yield tokens, of_features, of_waves, rows.flatten(1, 2)

    def _pull(
        self,
        of_rows: Tensor,
        features: Tensor,
        waves: Tensor,
        rows: Tensor,
        of_features: Tensor,
        of_waves: Tensor,
    ) -> None:
        """Add the gradients of features and waves from that of their products; both products are overwritten."""
        shape = len(rows), waves.shape[1], features.shape[2], rows.shape[2]
        of_rows = of_rows.view(shape)
        if self.note is not None:
            of_waves.mT.add_(torch.mul(of_rows, features, out=rows.view(shape)).sum(dim=2))
        of_features.mT.add_(of_rows.mul_(waves).sum(dim=1))

    def _noted(self, of_features: Tensor, of_waves: Tensor, so_far: Tensor | None) -> Tensor:
        if self.note is not None:
            self.note(of_waves)
        return added(of_features, so_far)
