"""The ring backend: a relative kernel that sees only the Manhattan distance, clipped, on a grid."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from teka.functional.backends import (
    BYTES,
    Cost,
    DifferentiableOp,
    FeatureInputs,
    WeightedSums,
    with_ones,
)
from teka.functional.backends.linear import CHUNK_ELEMENTS, product_features
from teka.functional.backends.ring_sums import mix_rings, read_rings, spread_rings, sum_far
from teka.functional.shapes import RingWeights, Tokens
from teka.grid import Grid


def rings_cost(grid: Grid, num_features: int, dim_value: int, max_distance: int) -> Cost:
    """Additions of maps, each a multiply-add that reads two numbers and writes one.

    A ring takes 3n − 2 in n dimensions and a product that lasts as long as five (measured). With more than one feature
    the last ring takes as much as the others, two cumulative sums an axis, and φ ⊗ [v, 1].
    """
    additions = a_ring = (3 * grid.num_axes - 2 + 5) * max_distance
    if num_features > 1:
        additions += a_ring + 2 * grid.num_axes + 3
    numbers = grid.num_tokens * num_features * (dim_value + 1)
    return Cost(numbers * additions, numbers * additions * 3 * BYTES)


def rings(log_rings: RingWeights, tokens: FeatureInputs, grid: Grid) -> WeightedSums:
    """Σ_r c_ir φ(q_i)ᵀR_r(i) from log c; R_r(i) = Σ φ(k_j) ⊗ [v_j, 1] at distance r from i, R_k at k and beyond.

    A row's largest c_ir is over the rings that hold a kept key; others count for nothing, so no rounding is amplified.
    """
    query_features, key_features, value = tokens.query_features, tokens.key_features, tokens.value
    key_mask = tokens.key_mask
    keep = (
        value.new_ones(1, 1, grid.num_tokens, 1)
        if key_mask is None
        else key_mask[:, None, :, None].to(value)
    )
    distance = log_rings.shape[-1] - 1
    filled = (
        ring_read(keep, torch.ones_like(keep), distance, grid) > 0.5
    )  # the counts are whole numbers and so exact
    log_peak = log_rings.detach().masked_fill(~filled, -torch.inf).amax(dim=-1)
    log_peak = log_peak.masked_fill(~filled.any(dim=-1), 0.0)
    # A ring without keys has a sum of exactly 0, the last one apart: its weight must be 0.
    weights = torch.exp((log_rings - log_peak[..., None]).masked_fill(~filled, -torch.inf))
    if key_features.shape[-1] > 1:
        sums = ProductRings(grid).of(weights, query_features, key_features, with_ones(value))
        return WeightedSums.of_channels(sums, log_peak)
    weights = weights * query_features
    # Apart, values keep an even number of channels. Terms are of one size: the last ring is the total less the others
    # without loss. Of the denominator the rings are kept, which are no larger than the weights.
    numerator = ring_mix(weights, key_features * value, grid)
    denominator = (
        weights * ring_read(key_features, torch.ones_like(key_features), distance, grid)
    ).sum(dim=-1)
    return WeightedSums(numerator, denominator, log_peak)


# T(a, V, g) = Σ_i Σ_r a_ir R_r(V)(i) · g_i is linear in all three. Its derivative in one is a map of the other two:
# in g it mixes the rings of V, in V it spreads g over them, and in a it reads them off against g. The derivatives of
# such a map of two are the other two maps, of its other tensor and of the gradient; True where the gradient is first.
PARTIALS = {
    "mix": (("read", False), ("spread", False)),
    "spread": (("read", True), ("mix", False)),
    "read": (("spread", True), ("mix", True)),
}


@dataclass(frozen=True)
class RingForm(DifferentiableOp):
    """mix(a, V), spread(a, g) or read(V, g): its derivatives are the other two, so that it has any number of them."""

    form: str
    num_rings: int
    grid: Grid

    def value(self, *tensors: Tensor) -> Tensor:
        first, second = tensors
        if self.form == "read":
            return read_rings(first, second, self.num_rings, self.grid)
        return (mix_rings if self.form == "mix" else spread_rings)(first, second, self.grid)

    def gradients(
        self, gradient: Tensor, tensors: Sequence[Tensor], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        found: list[Tensor | None] = []
        for need, other, (form, gradient_first) in zip(
            needs, reversed(tensors), PARTIALS[self.form], strict=True
        ):
            pair = (gradient, other) if gradient_first else (other, gradient)
            found.append(RingForm(form, self.num_rings, self.grid).of(*pair) if need else None)
        return found


def ring_mix(weights: RingWeights, tokens: Tokens, grid: Grid) -> Tokens:
    """out_i = Σ_{r ≤ k} a_ir R_r(i), R_r(i) the sum of the tokens r steps from i and R_k the total less those.

    Exact for terms of one size (else see `FarSums`, with a_k = 0 here). 2(k − 1) is below the side of a periodic axis.
    """
    return RingForm("mix", weights.shape[-1] - 1, grid).of(weights, tokens)


def ring_read(tokens: Tokens, others: Tokens, num_rings: int, grid: Grid) -> RingWeights:
    """out_ir = R_r(i) · g_i for r = 0 … num_rings: the derivative of `ring_mix` in its weights."""
    return RingForm("read", num_rings, grid).of(tokens, others)


@dataclass(frozen=True)
class FarSums(DifferentiableOp):
    """Σ of the tokens at Manhattan distance `distance` ≥ 1 or more, which is its own adjoint.

    A_0 is summed along an axis from either end, and A_1, A_2, … of one dimension fewer are added, as by `AxisSweep`;
    the total less near rings would lose digits.
    """

    distance: int
    grid: Grid

    def value(self, *tensors: Tensor) -> Tensor:
        return sum_far(tensors[0], self.distance, self.grid)

    def gradients(
        self, gradient: Tensor, tensors: Sequence[Tensor], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        return [self.of(gradient)]


@dataclass(frozen=True)
class ProductRings(DifferentiableOp):
    """out_i = Σ_r a_ir φ(q_i)ᵀR_r(i), R_r the ring sums of φ(k_j) ⊗ v_j, made for a few features at a time."""

    grid: Grid

    def value(self, *tensors: Tensor) -> Tensor:
        weights, query_features, key_features, value = tensors
        near, last, reach = *_near_and_last(weights), weights.shape[-1] - 1
        total = torch.zeros_like(value)
        for features in _chunks(key_features, value):
            mapped = product_features(value, key_features[..., features])
            mixed = mix_rings(near, mapped, self.grid).addcmul_(
                last, sum_far(mapped, reach, self.grid)
            )
            total += _contract(query_features[..., features], mixed)
        return total

    def gradients(
        self, gradient: Tensor, tensors: Sequence[Tensor], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        """Those of the weights and φ(q) from the sums, made again, and those of φ(k) and v from what they spread."""
        weights, query_features, key_features, value = tensors
        near, last, reach, grid = *_near_and_last(weights), weights.shape[-1] - 1, self.grid
        far_sums = FarSums(reach, grid)
        of_weights, of_value = torch.zeros_like(weights), torch.zeros_like(value)
        of_query, of_key = [], []
        for features in _chunks(key_features, value):
            mapped = product_features(value, key_features[..., features])
            given = product_features(gradient, query_features[..., features])
            if needs[0] or needs[1]:
                far = far_sums.of(mapped)
                read = [
                    ring_read(mapped, given, reach, grid)[..., :-1],
                    (far * given).sum(dim=-1, keepdim=True),
                ]
                of_weights = of_weights + torch.cat(read, dim=-1)
                mixed = (ring_mix(near, mapped, grid) + last * far).unflatten(
                    -1, (-1, value.shape[-1])
                )
                of_query.append((mixed @ gradient[..., None])[..., 0])
            if needs[2] or needs[3]:
                spread = RingForm("spread", reach, grid).of(near, given) + far_sums.of(last * given)
                of_key.append(
                    (spread.unflatten(-1, (-1, value.shape[-1])) @ value[..., None])[..., 0]
                )
                of_value = of_value + _contract(key_features[..., features], spread)
        of_query, of_key = (
            torch.cat(parts, dim=-1) if parts else None for parts in (of_query, of_key)
        )
        found = zip((of_weights, of_query, of_key, of_value), needs, strict=True)
        return [one if need else None for one, need in found]


def _near_and_last(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weights with 0 for the last ring, whose sums are taken with more care, and that of the last ring."""
    last = weights[..., -1:]
    return torch.cat([weights[..., :-1], torch.zeros_like(last)], dim=-1), last


def _contract(features: Tensor, mixed: Tensor) -> Tensor:
    return (features[..., None, :] @ mixed.unflatten(-1, (features.shape[-1], -1)))[..., 0, :]


def _chunks(features: Tensor, value: Tensor) -> Iterator[slice]:
    size = max(1, CHUNK_ELEMENTS // max(1, value.numel()))
    return (slice(start, start + size) for start in range(0, features.shape[-1], size))
