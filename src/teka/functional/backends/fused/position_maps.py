"""What positions make of features, a block of tokens at a time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from teka._compat import replace
from teka.functional.backends import FeatureInputs, WeightedSums, add_prefix
from teka.functional.backends.feature_sums import plain_sums
from teka.functional.backends.fused.parts import (
    Factors,
    Group,
    Part,
    WavedPart,
    add_product,
    of_group,
    of_tokens,
)
from teka.functional.backends.linear import linear
from teka.functional.positions import Positions, phases

QUERIES, KEYS = 0, 1
# The parts of the features of some tokens: of queries, side 0, or of keys, side 1.
Parts = Callable[[Tensor, int, slice], Iterator[Part | WavedPart]]


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
    def num_waves(self) -> int:
        """How many products there are of every feature with a wave; 0 where there are none."""
        return 0

    def sums(self, num_features: int, num_channels: int) -> list[list[tuple[int, int]]]:
        """The shapes of what is summed of every part, for the numerator, then for the denominator."""
        return [[(num_features, num_channels), (num_features, 1)]]

    def with_tensors(self, tensors: Sequence[Tensor]) -> "PositionMap":
        """The same with other tensors."""
        return replace(self, tensors=tuple(tensors))

    def places(self, like: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """What kernels of a GPU read for every query and key, (#batch, heads, tokens, angles or waves)."""
        return None, None

    def parts(self, group: Group, gradients: list[Tensor]) -> Parts:
        """What makes parts of the features of a group; their pullbacks add to the gradients of the tensors."""
        return lambda features, side, tokens: iter([Part(0, features, [(1.0, features)])])

    def plain_sums(self, tokens: FeatureInputs) -> WeightedSums:
        """The sums by torch's operations, which can be differentiated twice."""
        return plain_sums(tokens, *self.tensors)


@dataclass(frozen=True)
class WaveMap(PositionMap):
    """Features times W waves of queries and of keys, the `tensors`, each (#batch, heads, tokens, W), tokens last."""

    form: ClassVar[str] = "fourier"

    @property
    def num_waves(self) -> int:
        return self.tensors[0].shape[-1]

    def places(self, like: Tensor) -> tuple[Tensor | None, Tensor | None]:
        query_waves, key_waves = self.tensors
        return query_waves, key_waves

    def sums(self, num_features: int, num_channels: int) -> list[list[tuple[int, int]]]:
        return [[(self.num_waves * num_features, num_channels), (num_features, self.num_waves)]]

    def parts(self, group: Group, gradients: list[Tensor]) -> Parts:
        of_sides = [of_group(one, group) for one in self.tensors]

        def parts(features: Tensor, side: int, tokens: slice) -> Iterator[WavedPart]:
            waves = of_tokens(of_sides[side], tokens).expand(len(features), -1, -1)

            def note(of_waves: Tensor) -> None:
                self._add_of_waves(of_waves, group, tokens, gradients[side])

            yield WavedPart(features, waves, note if self.tensors[side].requires_grad else None)

        return parts

    def _add_of_waves(self, of_wave: Tensor, group: Group, tokens: slice, of_waves: Tensor) -> None:
        """Add what some tokens ask of their waves, (samples · heads, tokens, W)."""
        samples, heads = group
        of_samples = of_wave.unflatten(0, (samples.stop - samples.start, -1))
        if len(of_waves) > 1:
            of_waves[samples, heads, tokens].add_(of_samples)
            return
        for one in of_samples:  # a sum over them takes ten times as long
            of_waves[0, heads, tokens].add_(one)


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
    plain: Callable[[FeatureInputs, Tensor], WeightedSums] | None = None

    def sums(self, num_features: int, num_channels: int) -> list[list[tuple[int, int]]]:
        sizes = (num_features, 1 - self.length_share), (num_features // 2, self.length_share)
        return [[(num_features, num_channels), *((size, 1) for size, weight in sizes if weight)]]

    def places(self, like: Tensor) -> tuple[Tensor | None, Tensor | None]:
        angles = self.positions.angles(self.tensors[0], like)
        query_angle, key_angle = (one if one.ndim == 4 else one[None] for one in angles)
        return query_angle, key_angle

    def with_tensors(self, tensors: Sequence[Tensor]) -> "RotationMap":
        other = replace(self, tensors=tuple(tensors))
        # Where all heads are gone through at once their cosines and sines do for the backward pass too.
        other._phasors.update({key: one for key, one in self._phasors.items() if key[1] == 0})
        return other

    def plain_sums(self, tokens: FeatureInputs) -> WeightedSums:
        assert self.plain is not None
        return self.plain(tokens, self.tensors[0])

    def parts(self, group: Group, gradients: list[Tensor]) -> Parts:
        share, phasors = (
            self.length_share,
            [self._phasor(side, group) for side in range(self._distinct(KEYS) + 1)],
        )

        def parts(features: Tensor, side: int, tokens: slice) -> Iterator[Part]:
            cosine, sine = (of_tokens(one, tokens) for one in phasors[self._distinct(side)])
            first, second = features[..., 0::2], features[..., 1::2]
            rotated = torch.empty_like(features)
            turned = rotated[..., 0::2], rotated[..., 1::2]
            torch.mul(first, cosine, out=turned[0]).addcmul_(second, sine, value=-1)
            torch.mul(first, sine, out=turned[1]).addcmul_(second, cosine)
            # No feature of a kernel that is brought into range is so small that its square is not there.
            lengths = first.square().addcmul_(second, second).sqrt_() if share else None
            weighted = ((1 - share, features), (share, lengths))
            summed = [(weight, one) for weight, one in weighted if one is not None and weight]

            def pull(
                of_part: Tensor, of_summed: Sequence[Factors], so_far: Tensor | None
            ) -> Tensor:
                of_first, of_second = of_part[..., 0::2], of_part[..., 1::2]
                if self.tensors[0].requires_grad:
                    of_angle = torch.mul(of_second, turned[0]).addcmul_(
                        of_first, turned[1], value=-1
                    )
                    self._add_of_frequency(of_angle.mT, side, group, tokens, gradients[0])
                of_features, back = rotated, turned
                torch.mul(of_first, cosine, out=back[0]).addcmul_(of_second, sine)
                torch.mul(of_second, cosine, out=back[1]).addcmul_(of_first, sine, value=-1)
                if share < 1:
                    add_product(of_features, of_summed[0])
                if lengths is not None:
                    # ∂ψ/∂φ = φ/ψ; a dropped key's is 0.
                    of_row, row = of_summed[-1]
                    ratio = torch.div(
                        row, lengths.clamp_min_(torch.finfo(self.dtype).tiny), out=lengths
                    )
                    ratio = ratio if of_row is None else ratio.mul_(of_row)
                    back[0].addcmul_(first, ratio)
                    back[1].addcmul_(second, ratio)
                return of_features

            yield Part(0, rotated, summed, pull)

        return parts

    def _phasor(self, side: int, group: Group) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the angles of a group, (#samples · heads, tokens, pairs), tokens last in memory."""
        samples, heads = group
        key = side, heads.start, heads.stop
        if key not in self._phasors:
            if any(
                other[1:] != key[1:] for other in self._phasors
            ):  # groups of the same heads are one after another
                self._phasors.clear()
            self._phasors[key] = self._phasor_of_heads(side, heads)
        cosine, sine = (of_group(one, (samples, slice(None))) for one in self._phasors[key])
        return cosine.mT, sine.mT

    @cached_property
    def _phasors(self) -> dict[tuple[int, int, int], tuple[Tensor, Tensor]]:
        """Cosines and sines by side and heads, as they were last asked for."""
        return {}

    def _phasor_of_heads(self, side: int, heads: slice) -> tuple[Tensor, Tensor]:
        """Cosines and sines of some heads, (#batch, heads, pairs, tokens); on a grid from those of every axis."""
        positions = self.positions.of_keys if side else self.positions
        frequency = self.tensors[0].detach()
        if positions.grid is None:
            return _cosines_and_sines(
                phases(frequency[heads], positions.places(frequency.device), self.dtype)
            )
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
            products = (
                (cosine * along).addcmul_(sine, across, value=-1),
                (sine * along).addcmul_(cosine, across),
            )
            cosine, sine = (one.flatten(-2) for one in products)
        return cosine, sine

    @cached_property
    def _axes(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Cosines and sines of every row of every axis of a side, of all heads."""
        return {}

    def _add_of_frequency(
        self, of_angle: Tensor, side: int, group: Group, tokens: slice, of_frequency: Tensor
    ) -> None:
        """Add what the angles of some tokens, (samples · heads, pairs, tokens), ask of ω."""
        samples, heads = group
        offsets = self._offsets[self._distinct(side)][..., tokens]
        sizes = samples.stop - samples.start, heads.stop - heads.start
        if offsets.ndim == 2:
            rows = of_angle.flatten(0, 1)
            found = torch.stack([torch.mv(rows, one) for one in offsets], dim=-1)
        else:
            of_samples = offsets[samples] if len(offsets) > 1 else offsets
            found = torch.bmm(of_angle, of_samples[:, None].expand(*sizes, -1, -1).flatten(0, 1).mT)
        of_frequency[heads].add_(found.view(*sizes, -1, found.shape[-1]).sum(dim=0))

    @cached_property
    def _offsets(self) -> list[Tensor]:
        """The places of queries, and of keys that have others, less the first query's, (…, axes, tokens).

        What all have turns nothing.
        """
        sides = (self.positions, self.positions.of_keys)[: self._distinct(KEYS) + 1]
        query, *key = (one.places(torch.device("cpu")) for one in sides)
        return [
            (one - query.flatten(0, -2)[0]).to(self.dtype).mT.contiguous() for one in (query, *key)
        ]

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

    def sums(self, num_features: int, num_channels: int) -> list[list[tuple[int, int]]]:
        return [
            *self.placed.sums(num_features, num_channels),
            *super().sums(num_features, num_channels) * 2,
        ]

    def with_tensors(self, tensors: Sequence[Tensor]) -> "PrefixMap":
        return replace(self, tensors=tuple(tensors), placed=self.placed.with_tensors(tensors))

    def parts(self, group: Group, gradients: list[Tensor]) -> Parts:
        of_placed = self.placed.parts(group, gradients)

        def parts(features: Tensor, side: int, tokens: slice) -> Iterator[Part | WavedPart]:
            of_first, of_others = (Part(number, features, [(1.0, features)]) for number in (1, 2))
            if tokens.start < self.first:
                yield of_first
                if side == QUERIES:
                    yield of_others
                return
            yield from of_placed(
                features, side, slice(tokens.start - self.first, tokens.stop - self.first)
            )
            yield of_others if side == KEYS else of_first

        return parts

    def plain_sums(self, tokens: FeatureInputs) -> WeightedSums:
        return add_prefix(
            self.placed.plain_sums(tokens.after(self.first)), tokens, self.first, linear
        )
