"""Kernels whose features are made by blocks of tokens, with their gradient: rectified vectors with a floor."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd import Function

from teka._compat import by_hand, has_numbers, is_plain_eager, is_rehearsed
from teka.checks import POSITIVE, is_positive
from teka.errors import wrong_value
from teka.functional.kernels.base import FeatureKernel, FusedKernel, Pullback, mask_features
from teka.functional.shapes import (
    CausalFeatures,
    KeyFeatures,
    KeyMask,
    Keys,
    MapFeatures,
    Queries,
    QueryFeatures,
    Vectors,
)

# Vectors are brought into range by powers of 2 to this.
RANGE_BITS = 8.0
# Features of the vector 0. Their products are normal float32 numbers, so that keys that are all 0 count evenly.
# A key of 0 among others has no visible weight.
LEAST_FEATURE = 1e-14
# Keys up to this, beside a first one in range, leave sums of squares, their gradients among them, finite in float32.
LARGEST_BESIDE_FIRST = 2.0**30


class PointwiseKernel(FeatureKernel):
    """A kernel whose φ is one map for queries and keys, of one vector at a time."""

    @abstractmethod
    def feature_map(self, vectors: Vectors, *, scale: float) -> MapFeatures:
        """φ(x)."""

    def query_features(self, query: Queries, *, scale: float) -> QueryFeatures:
        return self.feature_map(query, scale=scale)

    def key_features(self, key: Keys, *, scale: float, key_mask: KeyMask = None) -> KeyFeatures:
        return mask_features(self.feature_map(key, scale=scale), key_mask)


class LocalKernel(PointwiseKernel, FusedKernel):
    """A pointwise kernel that is fused.

    Where φ(τx) = τ^degree φ(x) for every τ > 0, a factor of a query, and one of all keys of a batch and head, cancels:
    vectors are brought into range before powers of them are taken, by factors taken as fixed.
    """

    degree: ClassVar[int | None] = None

    @abstractmethod
    def feature_map_pullback(
        self, vectors: Vectors, *, scale: float
    ) -> tuple[MapFeatures, Pullback]:
        """φ(x), and a function of the gradient of φ(x), which it may overwrite, that writes that of x to its second."""

    def key_range(
        self, key: Keys, key_mask: KeyMask, *, scale: float
    ) -> Float[Tensor, "batch heads 1 1"] | None:
        return self.key_unit(key, key_mask)

    def query_block(self, query: Vectors, *, scale: float) -> tuple[MapFeatures, Pullback]:
        return self.key_block(query, self.query_unit(query), scale=scale)

    def key_block(
        self, key: Vectors, key_range: Float[Tensor, "*#batch 1"] | None, *, scale: float
    ) -> tuple[MapFeatures, Pullback]:
        features, pull = self.feature_map_pullback(times(key, key_range), scale=scale)
        if key_range is None:
            return features, pull

        def pull_in_range(gradient: Tensor, out: Tensor) -> None:
            pull(gradient, out)
            out.mul_(key_range)

        return features, pull_in_range

    def query_features(self, query: Queries, *, scale: float) -> QueryFeatures:
        return self._features(times(query, self.query_unit(query)), scale)

    def key_features(self, key: Keys, *, scale: float, key_mask: KeyMask = None) -> KeyFeatures:
        return mask_features(
            self._features(times(key, self.key_unit(key, key_mask)), scale), key_mask
        )

    def causal_key_features(
        self, key: Keys, *, scale: float, key_mask: KeyMask = None
    ) -> CausalFeatures:
        """φ(k) of each key in its own range, and the logarithm of what that takes out."""
        if self.degree is None:
            return self.key_features(key, scale=scale, key_mask=key_mask), None
        unit = _unit(key, (-1,))
        features = mask_features(self._features(times(key, unit), scale), key_mask)
        return features, None if unit is None else -self.degree * unit[..., 0].log()

    def _features(self, vectors: Vectors, scale: float) -> MapFeatures:
        """φ(x), with the gradient by hand where nothing else is asked of it."""
        by_hand = is_plain_eager(vectors) and self.is_fused
        return (
            _Map.apply(vectors, self, scale) if by_hand else self.feature_map(vectors, scale=scale)
        )

    def starts_in_range(self, key: Keys, key_mask: KeyMask) -> bool:
        """Whether the first kept key of every batch and head needs no factor, as then no later one of any size does."""
        if self.degree is None:
            return True
        if key_mask is None:
            return _unit(key[:, :, :1], (-1,)) is None
        first = (
            key_mask.int()
            .argmax(dim=-1)[:, None, None, None]
            .expand(*key.shape[:2], 1, key.shape[-1])
        )
        return _unit(key.gather(2, first), (-1,)) is None

    def too_large(self, key: Keys) -> Bool[Tensor, "batch heads keys"] | None:
        """Which keys are of no size after all, as sums of their features might not be finite; None for none."""
        if self.degree is None or is_rehearsed(key):
            return None
        found = key.detach().abs().amax(dim=-1) > LARGEST_BESIDE_FIRST
        return found if found.any() else None

    def query_unit(self, query: Vectors) -> Float[Tensor, "*batch 1"] | None:
        """A factor of every query that brings it into range, or None where it would not cancel."""
        return None if self.degree is None else _unit(query, (-1,))

    def key_unit(self, key: Keys, key_mask: KeyMask) -> Float[Tensor, "batch heads 1 1"] | None:
        """A factor of the kept keys of every batch and head that brings them into range, or None likewise."""
        return None if self.degree is None else _unit(mask_features(key, key_mask), (-2, -1))


def times(vectors: Vectors, unit: Float[Tensor, "*#batch 1"] | None) -> Vectors:
    """Vectors times a unit of theirs, if they have one."""
    return vectors if unit is None else vectors * unit


def _unit(vectors: Tensor, dims: tuple[int, ...]) -> Tensor | None:
    """A power of 2⁸ that brings the largest entry to between 1/16 and 16; None where all are there already."""
    # Torch's norm of this order takes twenty times as long, and absolute values are another map in memory.
    vectors = vectors.detach()
    peak = torch.maximum(
        vectors.amax(dim=dims, keepdim=True), -vectors.amin(dim=dims, keepdim=True)
    )
    if is_rehearsed(peak) or (peak.is_cpu and has_numbers(peak) and _all_in_range(peak)):
        return None
    # In coarse steps, so that vectors of about one size share one factor, and no digit is lost between them.
    steps = torch.round(peak.clamp_min(torch.finfo(vectors.dtype).tiny).log2() / RANGE_BITS).clamp(
        -15.0, 15.0
    )
    return torch.exp2(-RANGE_BITS * steps)


def _all_in_range(peak: Tensor) -> bool:
    least, largest = torch.aminmax(peak)
    return float(least) >= 2 ** (-RANGE_BITS / 2) and float(largest) <= 2 ** (RANGE_BITS / 2)


class _Map(Function):
    """φ with the gradient that the kernel has by hand, which takes a third of the passes that autograd makes."""

    @staticmethod
    def forward(ctx, vectors, kernel, scale):
        ctx.save_for_backward(vectors)
        ctx.kernel, ctx.scale = kernel, scale
        return kernel.feature_map(vectors, scale=scale)

    @staticmethod
    @by_hand
    def backward(ctx, *grad_outputs):
        (gradient,) = grad_outputs
        (vectors,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient is itself to be differentiated
            features = ctx.kernel.feature_map(vectors, scale=ctx.scale)
            return *torch.autograd.grad(features, vectors, gradient, create_graph=True), None, None
        features, pull = ctx.kernel.feature_map_pullback(vectors, scale=ctx.scale)
        of_vectors = torch.empty_like(vectors)
        pull(
            torch.empty_like(features).copy_(gradient), of_vectors
        )  # in the order that vectors have in memory
        return of_vectors, None, None


@dataclass(frozen=True)
class FlooredRelu(LocalKernel):
    """A kernel of r(x) = max(x, ε ‖x‖/√d), the same map for queries and keys, of d features; ε ≤ 0 is a ValueError.

    The floor lets a query without a positive entry attend to the keys evenly, weighted by Σφ(k). It grows with x, r(τx)
    = τ r(x) for τ > 0; of the vector 0 φ is 10⁻¹⁴. The scale of qᵀk, the size of a query and that of the largest key
    cancel in the normaliser: keys may be 10⁹ times smaller than it in float32.
    """

    nonnegative: ClassVar[bool] = True
    degree: ClassVar[int | None] = 1

    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if not is_positive(self.epsilon):
            raise wrong_value("epsilon", self.epsilon, POSITIVE)

    def num_features(self, dim: int) -> int:
        return dim

    @abstractmethod
    def features_of(self, rectified: Vectors) -> MapFeatures:
        """φ as a function of r."""

    @abstractmethod
    def gradient_of(self, rectified: Vectors, gradient: MapFeatures) -> Vectors:
        """Gradient of r from that of φ; either may be overwritten."""

    def _least_floor(self, vectors: Vectors) -> float:
        """Return the floor of the vector 0."""
        return LEAST_FEATURE ** (1 / (self.degree or 1))

    def _floor(self, vectors: Vectors) -> Float[Tensor, "*batch 1"]:
        # The sum is clamped so that the root has a gradient at the vector 0, where it is 0.
        square = (
            vectors.square().sum(dim=-1, keepdim=True).clamp_min(torch.finfo(vectors.dtype).tiny)
        )
        return (square.sqrt() * (self.epsilon / math.sqrt(vectors.shape[-1]))).clamp_min(
            self._least_floor(vectors)
        )

    def feature_map(self, vectors: Vectors, *, scale: float) -> MapFeatures:
        return self.features_of(torch.maximum(vectors, self._floor(vectors)))

    def feature_map_pullback(
        self, vectors: Vectors, *, scale: float
    ) -> tuple[MapFeatures, Pullback]:
        """φ(x), and the gradient of x: that of r where x is above the floor, and through ‖x‖ where it is not."""
        floor = self._floor(vectors)
        rectified = torch.maximum(vectors, floor)

        def pull(gradient: Tensor, out: Tensor) -> None:
            gradient = self.gradient_of(rectified, gradient)
            total = gradient.sum(dim=-1, keepdim=True)
            # As numbers and not as truth values, by which torch selects thirty times as slowly; r is not needed again.
            above = torch.ge(vectors, floor, out=rectified)
            is_above_least = torch.gt(
                floor, self._least_floor(vectors), out=torch.empty_like(floor)
            )
            gradient = gradient.mul_(above)
            below = total.sub_(gradient.sum(dim=-1, keepdim=True)).mul_(is_above_least)
            # The floor's gradient is ε² x / (d · floor).
            torch.addcmul(
                gradient,
                vectors,
                below.div_(floor).mul_(self.epsilon**2 / vectors.shape[-1]),
                out=out,
            )

        return self.features_of(rectified), pull


@dataclass(frozen=True)
class SquaredRelu(FlooredRelu):
    """κ(q, k) = φ(q)ᵀφ(k), φ(x) = r² with r = max(x, ε ‖x‖/√d): d features, deterministic, non-negative; the default.

    The normalised weights do not change when a query, or all keys, are multiplied by a positive number. Source: cf. So
    et al. 2021 (Primer) for the activation; as a feature map, this library.

    >>> import torch
    >>> from teka.functional import SquaredRelu, attention
    >>> query, key, value = torch.randn(3, 1, 2, 6, 4)
    >>> larger = attention(9 * query, key / 7, value, kernel=SquaredRelu())
    >>> torch.allclose(larger, attention(query, key, value, kernel=SquaredRelu()), atol=1e-5)
    True

    Args:
        epsilon: ε > 0, a share of the root mean square of the vector's entries; else a ValueError.
    """

    name: ClassVar[str] = "squared_relu"
    goes_by_entry: ClassVar[bool] = True
    degree: ClassVar[int | None] = 2

    epsilon: float = 1e-3

    def features_of(self, rectified: Vectors) -> MapFeatures:
        return rectified.square()

    def gradient_of(self, rectified: Vectors, gradient: MapFeatures) -> Vectors:
        return gradient.mul_(rectified).mul_(2)


@dataclass(frozen=True)
class Relu(FlooredRelu):
    """φ(x) = max(x, ε ‖x‖/√d), else as `SquaredRelu`: Performer-ReLU (Choromanski et al. 2021) with our floor.

    >>> import torch
    >>> from teka.functional import Relu
    >>> Relu(epsilon=0.01).feature_map(torch.tensor([3.0, -4.0]), scale=1.0).round(decimals=4)  # 0.01 · 5/√2 for −4
    tensor([3.0000, 0.0354])
    """

    name: ClassVar[str] = "relu"
    goes_by_entry: ClassVar[bool] = True

    def features_of(self, rectified: Vectors) -> MapFeatures:
        return rectified

    def gradient_of(self, rectified: Vectors, gradient: MapFeatures) -> Vectors:
        return gradient


@dataclass(frozen=True)
class Focused(FlooredRelu):
    """κ(q, k) = φ(q)ᵀφ(k), φ(x) = ‖r‖ · r³/‖r³‖ with r = max(x, ε ‖x‖/√d), as for `SquaredRelu`: d features.

    Cubing turns a vector towards its nearest axes: similar pairs gain weight and dissimilar ones lose it. Source: Han
    et al. 2023 (FLatten Transformer), focused function with p = 3; the relative floor is ours.

    >>> import torch
    >>> from teka.functional import Focused
    >>> vector = torch.tensor([2.0, 1.0])
    >>> features = Focused().feature_map(vector, scale=1.0)
    >>> features.round(decimals=3), torch.allclose(features.norm(), vector.norm())
    (tensor([2.2190, 0.2770]), True)
    """

    name: ClassVar[str] = "focused"
    goes_by_entry: ClassVar[bool] = True

    def query_features(self, query: Queries, *, scale: float) -> QueryFeatures:
        return super().query_features(_ones_for_zeros(query), scale=scale)

    def query_block(self, query: Vectors, *, scale: float) -> tuple[MapFeatures, Pullback]:
        features, pull = super().query_block(_ones_for_zeros(query), scale=scale)

        def pull_nonzero(gradient: Tensor, out: Tensor) -> None:
            pull(gradient, out)
            out.masked_fill_(_is_zero(query), 0.0)

        return features, pull_nonzero

    def _least_floor(self, vectors: Vectors) -> float:
        # The features of a key have entries down to (ε/√d)³, and a key of 0 must not count more than that. The second
        # number is the floor of the shortest vector whose squares the dtype holds.
        share = self.epsilon / math.sqrt(vectors.shape[-1])
        shortest = 1.01 * math.sqrt(torch.finfo(vectors.dtype).tiny) * share
        return min(LEAST_FEATURE, max(1e-6 * share**3, shortest))

    def features_of(self, rectified: Vectors) -> MapFeatures:
        """φ = ‖r‖ · r³/‖r³‖: with u = r over its largest entry, ‖u‖ · u³/‖u³‖ times that entry."""
        peak, unit, length, cube_length = _parts(rectified)
        return unit.pow(3) * (peak * length / cube_length)

    def gradient_of(self, rectified: Vectors, gradient: MapFeatures) -> Vectors:
        """With n = ‖u‖, m = ‖u³‖ and s = gᵀu³: (n/m) 3u²g + (s/(n m)) u − (3 n s/m³) u⁵."""
        _, unit, length, cube_length = _parts(rectified)
        square = unit.square()
        inner = (gradient * square * unit).sum(dim=-1, keepdim=True)
        along = (
            inner / (length * cube_length)
            - 3 * length * inner / cube_length.pow(3) * square.square()
        )
        return gradient.mul_(square).mul_(3 * length / cube_length).addcmul_(unit, along)


def _is_zero(vectors: Vectors) -> Bool[Tensor, "*batch 1"]:
    return (vectors == 0).all(dim=-1, keepdim=True)


def _ones_for_zeros(query: Vectors) -> Vectors:
    """Replace queries of 0 by 1, which attend to keys in the same way, with features that are not tiny."""
    return query.masked_fill(_is_zero(query), 1.0)


def _parts(rectified: Vectors) -> tuple[Tensor, Vectors, Tensor, Tensor]:
    """The largest entry, u = r over it, ‖u‖ and ‖u³‖, which is at least 1, unless r is all but 0."""
    peak = rectified.amax(dim=-1, keepdim=True)
    unit = rectified / peak.detach()
    length, cube_length = (unit.pow(power).sum(dim=-1, keepdim=True).sqrt() for power in (2, 6))
    return peak.detach(), unit, length, cube_length
