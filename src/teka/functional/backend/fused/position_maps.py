"""What positions make of features, a block of tokens at a time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from teka._compat import replace
from teka.functional.backend import Featured, Sums, add_prefix
from teka.functional.backend.linear import linear
from teka.functional.backend.sums import plain_sums
from teka.functional.positions import Positions, phases

QUERIES, KEYS = 0, 1
Block = tuple[slice, slice, slice]  # samples, heads, tokens
Factors = tuple[Tensor | None, Tensor]  # whose product is meant, None being 1
# The features' gradient, added to what there is, from that of a part and those of what its denominator sums. What a
# part is made of may be overwritten: it comes last.
Pull = Callable[[Tensor, Sequence[Factors], Tensor | None], Tensor]
# The number of a group of parts of the numerator, these side by side and what their denominators sum, (samples · heads,
# tokens, parts · size), the way back.
Part = tuple[int, Tensor, Sequence[Tensor | None], Pull]


def of_block(tensor: Tensor, block: tuple[slice, ...]) -> Tensor:
    """What (#batch, heads, rows, columns) has of a block, (samples · heads, rows, columns), #samples of one head.

    It is a view where there is one head, one sample, or in memory one after the other all heads of every sample.
    """
    samples, *others = block
    found = tensor[(samples if tensor.shape[0] > 1 else slice(None), *others)]
    if found.shape[1] > 1 and found.shape[0] < samples.stop - samples.start:
        found = found.expand(samples.stop - samples.start, -1, -1, -1)
    if 1 in found.shape[:2] or found.stride(0) == found.shape[1] * found.stride(1):
        return found.flatten(0, 1)
    return found.mT.flatten(0, 1).mT  # the copy has the last rows last in memory


def add_product(to: Tensor, factors: Factors) -> Tensor:
    """A tensor with a product added in place."""
    first, second = factors
    return to.add_(second) if first is None else to.addcmul_(first, second)


def plain_part(number: int, features: Tensor) -> Part:
    """Features as they are."""

    def pull(of_part: Tensor, of_summed: Sequence[Factors], so_far: Tensor | None) -> Tensor:
        of_part = add_product(of_part, of_summed[0])
        return of_part if so_far is None else so_far.add_(of_part)

    return number, features, (features,), pull


@dataclass(frozen=True)
class PositionMap:
    """Features as they are, in one part, which the denominator is made of too.

    Args:
        tensors: What has gradients beside queries, keys and values.
    """

    tensors: tuple[Tensor, ...] = ()
    form: ClassVar[str] = "none"  # its name to kernels of a GPU
    length_share: ClassVar[float] = 0.0  # λ, the weight of lengths in the denominator
    first: ClassVar[int] = 0  # how many tokens go before those that are somewhere

    @property
    def groups(self) -> tuple[int, ...]:
        """How many parts of features are side by side in every group of them."""
        return (1,)

    @property
    def num_parts(self) -> int:
        """How many parts there are of features."""
        return sum(self.groups)

    def sums(self, num_features: int) -> dict[int, list[float]]:
        """The sizes of what denominators sum, features first, with the weight in that of every group."""
        return {num_features: [1.0] * len(self.groups)}

    def with_tensors(self, tensors: Sequence[Tensor]) -> "PositionMap":
        """The same with other tensors."""
        return replace(self, tensors=tuple(tensors))

    def places(self, like: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """What kernels of a GPU read for every query and key, (#batch, heads, tokens, angles or waves)."""
        return None, None

    def new_gradients(self, batch: int) -> list[Tensor]:
        """Zeros, to which pulling back adds the gradients of the tensors."""
        return []

    def gradients(self, summed: list[Tensor]) -> list[Tensor]:
        """The gradients of the tensors from what was added up."""
        return summed

    def parts(self, features: Tensor, side: int, block: Block, gradients: list[Tensor]) -> Iterator[Part]:
        """The parts of a block of features of queries, side 0, or of keys, side 1."""
        yield plain_part(0, features)

    def plain_sums(self, tokens: Featured) -> Sums:
        """The sums by torch's operations, which can be differentiated twice."""
        return plain_sums(tokens, *self.tensors)


@dataclass(frozen=True)
class WaveMap(PositionMap):
    """Features times W waves of queries and of keys, the `tensors`, each (#batch, heads, tokens, W), tokens last."""

    form: ClassVar[str] = "fourier"

    def places(self, like: Tensor) -> tuple[Tensor | None, Tensor | None]:
        query_waves, key_waves = self.tensors
        return query_waves, key_waves

    @property
    def groups(self) -> tuple[int, ...]:
        return (self.tensors[0].shape[-1],)

    def new_gradients(self, batch: int) -> list[Tensor]:
        return [waves.new_zeros(batch, *waves.shape[1:]) for waves in self.tensors]

    def gradients(self, summed: list[Tensor]) -> list[Tensor]:
        pairs = zip(summed, self.tensors, strict=True)
        return [one if waves.shape[0] > 1 else one.sum(dim=0, keepdim=True) for one, waves in pairs]

    def parts(self, features: Tensor, side: int, block: Block, gradients: list[Tensor]) -> Iterator[Part]:
        waves = self.tensors[side]
        # (samples · heads, W, features, tokens): products of small matrices are slow one by one.
        wave = of_block(waves, block).mT.contiguous()[:, :, None]
        rows = features.mT[:, None]
        part = features.new_empty(len(features), wave.shape[1], *features.mT.shape[1:])
        torch.mul(rows, wave, out=part)

        def pull(of_part: Tensor, of_summed: Sequence[Factors], so_far: Tensor | None) -> Tensor:
            of_waved = add_product(of_part, of_summed[0]).mT.unflatten(1, part.shape[1:3])
            if waves.requires_grad:
                of_block(gradients[side], block).copy_(torch.mul(of_waved, rows, out=part).sum(dim=2).mT)
            of_features = of_waved.mul_(wave).sum(dim=1).mT
            return of_features if so_far is None else so_far.add_(of_features)

        waved = part.flatten(1, 2).mT
        yield 0, waved, (waved,), pull


@dataclass(frozen=True)
class RotationMap(PositionMap):
    """All pairs of features rotated by ω·x, with ω, (heads, pairs, axes), the tensor; see `Rotary`.

    The denominator sums features, with weight 1 − λ, and lengths of pairs, with weight λ.

    Args:
        tensors: ω.
        positions: Where queries and keys are.
        dtype: Of features.
        length_share: λ.
        plain: The sums by torch's operations, with ω.
    """

    form: ClassVar[str] = "rotary"

    positions: Positions = field(default_factory=Positions)
    dtype: torch.dtype = torch.float32
    length_share: float = 0.0  # pyright: ignore[reportIncompatibleVariableOverride]
    plain: Callable[[Featured, Tensor], Sums] | None = None

    def sums(self, num_features: int) -> dict[int, list[float]]:
        return {num_features: [1 - self.length_share], num_features // 2: [self.length_share]}

    def places(self, like: Tensor) -> tuple[Tensor | None, Tensor | None]:
        angles = self.positions.angles(self.tensors[0], like)
        query_angle, key_angle = (one if one.ndim == 4 else one[None] for one in angles)
        return query_angle, key_angle

    def with_tensors(self, tensors: Sequence[Tensor]) -> "RotationMap":
        other = replace(self, tensors=tuple(tensors))
        # Where all heads are gone through at once their cosines and sines do for the backward pass too.
        other._phasors.update({key: one for key, one in self._phasors.items() if key[1] == 0})
        return other

    def new_gradients(self, batch: int) -> list[Tensor]:
        return [torch.zeros_like(self.tensors[0])]

    def plain_sums(self, tokens: Featured) -> Sums:
        assert self.plain is not None
        return self.plain(tokens, self.tensors[0])

    def parts(self, features: Tensor, side: int, block: Block, gradients: list[Tensor]) -> Iterator[Part]:
        cosine, sine = self._phasor(side, block)
        first, second = features[..., 0::2], features[..., 1::2]
        rotated = torch.empty_like(features)
        turned = rotated[..., 0::2], rotated[..., 1::2]
        torch.mul(first, cosine, out=turned[0]).addcmul_(second, sine, value=-1)
        torch.mul(first, sine, out=turned[1]).addcmul_(second, cosine)
        share = self.length_share
        # No feature of a kernel that is brought into range is so small that its square is not there.
        lengths = first.square().addcmul_(second, second).sqrt_() if share else None

        def pull(of_part: Tensor, of_summed: Sequence[Factors], so_far: Tensor | None) -> Tensor:
            of_first, of_second = of_part[..., 0::2], of_part[..., 1::2]
            if self.tensors[0].requires_grad:
                of_angle = torch.mul(turned[0], of_second).addcmul_(turned[1], of_first, value=-1)
                self._add_of_frequency(of_angle.mT, side, block, gradients[0])
            of_features, back = rotated, turned
            torch.mul(of_first, cosine, out=back[0]).addcmul_(of_second, sine)
            torch.mul(of_second, cosine, out=back[1]).addcmul_(of_first, sine, value=-1)
            if share < 1:
                add_product(of_features, of_summed[0])
            if lengths is not None:
                # ∂ψ/∂φ = φ/ψ; a dropped key's is 0.
                of_row, row = of_summed[1]
                ratio = torch.div(row, lengths.clamp_min_(torch.finfo(self.dtype).tiny), out=lengths)
                ratio = ratio if of_row is None else ratio.mul_(of_row)
                back[0].addcmul_(first, ratio)
                back[1].addcmul_(second, ratio)
            return of_features

        yield 0, rotated, (features if share < 1 else None, lengths), pull

    def _phasor(self, side: int, block: Block) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the angles of a block, (#samples · heads, tokens, pairs), tokens last in memory."""
        samples, heads, tokens = block
        key = (self._distinct(side), heads.start, heads.stop)
        if key not in self._phasors:  # of some heads at a time, whose blocks come one after another
            self._phasors.clear()
            self._phasors[key] = self._phasor_of_heads(key[0], heads)
        cosine, sine = (of_block(one, (samples, slice(None), slice(None), tokens)) for one in self._phasors[key])
        return cosine.mT, sine.mT

    @cached_property
    def _phasors(self) -> dict[tuple[int, int, int], tuple[Tensor, Tensor]]:
        return {}

    def _phasor_of_heads(self, side: int, heads: slice) -> tuple[Tensor, Tensor]:
        """Cosines and sines of all angles, (#batch, heads, pairs, tokens); on a grid from those of every axis."""
        positions = self.positions.of_keys if side else self.positions
        frequency = self.tensors[0].detach()
        if positions.grid is None:
            return _cosines_and_sines(phases(frequency[heads], positions.places(frequency.device), self.dtype))
        if side not in self._axes:
            rows = positions.axis_places(frequency.device)
            self._axes[side] = _cosines_and_sines(phases(frequency, rows, self.dtype))
        (cosine, *cosines), (sine, *sines) = (
            of_rows[:, heads].split(positions.grid.shape, dim=-1) for of_rows in self._axes[side]
        )
        for along, across in zip(cosines, sines, strict=True):
            # e^{i(a + b)} = e^{ia} e^{ib}, of every cell so far with every row.
            along, across = along[..., None, :], across[..., None, :]
            cosine, sine = cosine[..., None], sine[..., None]
            products = (cosine * along).addcmul_(sine, across, value=-1), (sine * along).addcmul_(cosine, across)
            cosine, sine = (one.flatten(-2) for one in products)
        return cosine, sine

    @cached_property
    def _axes(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Cosines and sines of every row of every axis of a side, of all heads."""
        return {}

    def _add_of_frequency(self, of_angle: Tensor, side: int, block: Block, of_frequency: Tensor) -> None:
        """Add what the angles of a block, (samples · heads, pairs, tokens), ask of ω."""
        samples, heads, tokens = block
        of_heads = of_frequency[heads]
        offsets = self._offsets[self._distinct(side)][..., tokens]
        if offsets.ndim == 2:
            found = [torch.mv(of_angle.reshape(-1, of_angle.shape[-1]), one) for one in offsets]
        else:
            of_samples = offsets[samples] if len(offsets) > 1 else offsets
            sizes = samples.stop - samples.start, heads.stop - heads.start
            each = of_samples[:, None].expand(*sizes, -1, -1).flatten(0, 1)
            found = torch.bmm(of_angle, each.mT).unbind(dim=-1)
        for axis, one in enumerate(found):
            of_heads[..., axis].add_(one.view(-1, *of_heads.shape[:2]).sum(dim=0))

    @cached_property
    def _offsets(self) -> list[Tensor]:
        """The places of queries, and of keys that have others, less the first query's, (…, axes, tokens).

        What all have turns nothing.
        """
        sides = (self.positions, self.positions.of_keys)[: self._distinct(KEYS) + 1]
        query, *key = (one.places(torch.device("cpu")) for one in sides)
        return [(one - query.flatten(0, -2)[0]).to(self.dtype).mT.contiguous() for one in (query, *key)]

    def _distinct(self, side: int) -> int:
        """The side that has the places: keys may be where queries are."""
        return side if self.positions.key is not None else QUERIES


def _cosines_and_sines(angles: Tensor) -> tuple[Tensor, Tensor]:
    """Of angles (…, heads, tokens, pairs), as (#batch, heads, pairs, tokens).

    Tokens are last in memory, as those of features: of two orders products take four times as long.
    """
    angles = angles.mT.contiguous()
    angles = angles if angles.ndim == 4 else angles[None]
    return torch.cos(angles), torch.sin(angles)


@dataclass(frozen=True)
class PrefixMap(PositionMap):
    """Another map of the tokens after the first ones, which are nowhere: every pair with one of these meets as it is.

    Two parts are added: keys that are nowhere, which all queries see, and all others for queries that are nowhere.

    Args:
        tensors: Those of the other map.
        placed: The other map.
        first: Number of first tokens, of queries and keys that are the same.
    """

    placed: PositionMap = field(default_factory=PositionMap)
    first: int = 0  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def groups(self) -> tuple[int, ...]:
        return *self.placed.groups, 1, 1

    def with_tensors(self, tensors: Sequence[Tensor]) -> "PrefixMap":
        return replace(self, tensors=tuple(tensors), placed=self.placed.with_tensors(tensors))

    def sums(self, num_features: int) -> dict[int, list[float]]:
        sums = self.placed.sums(num_features)
        return {size: [*weights, *[float(size == num_features)] * 2] for size, weights in sums.items()}

    def new_gradients(self, batch: int) -> list[Tensor]:
        return self.placed.new_gradients(batch)

    def gradients(self, summed: list[Tensor]) -> list[Tensor]:
        return self.placed.gradients(summed)

    def parts(self, features: Tensor, side: int, block: Block, gradients: list[Tensor]) -> Iterator[Part]:
        samples, heads, tokens = block
        of_first, of_others = (plain_part(len(self.placed.groups) + number, features) for number in range(2))
        if tokens.start < self.first:
            yield of_first
            if side == QUERIES:
                yield of_others
            return
        after = samples, heads, slice(tokens.start - self.first, tokens.stop - self.first)
        yield from self.placed.parts(features, side, after, gradients)
        yield of_others if side == KEYS else of_first

    def plain_sums(self, tokens: Featured) -> Sums:
        return add_prefix(self.placed.plain_sums(tokens.after(self.first)), tokens, self.first, linear)
