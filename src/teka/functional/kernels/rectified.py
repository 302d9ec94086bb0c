"""Kernels whose features are powers of rectified vectors: squared relu, relu and focused."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka.checks import POSITIVE_NUMBER, is_positive
from teka.errors import wrong_value
from teka.execution_mode import ExecutionMode, execution_mode, is_readable
from teka.functional.kernels.base import FeatureKernel, mask_features
from teka.functional.shapes import (
    CausalFeatures,
    FeatureVectors,
    KeyFeatures,
    KeyMask,
    Keys,
    Queries,
    QueryFeatures,
    Vectors,
)

# Vectors are scaled by powers of 2 with this step in the exponent.
RANGE_BITS = 8.0
# Features of the zero vector. Products of two of them are normal float32 numbers, so keys that are all zero count
# evenly. A zero key among larger keys has no visible weight.
LEAST_FEATURE = 1e-14


class PointwiseKernel(FeatureKernel):
    """A kernel whose feature map φ is the same for queries and keys and acts on one vector at a time."""

    @abstractmethod
    def feature_map(self, vectors: Vectors, *, scale: float) -> FeatureVectors:
        """Return φ(x)."""

    def query_features(self, query: Queries, *, scale: float) -> QueryFeatures:
        return self.feature_map(query, scale=scale)

    def key_features(self, key: Keys, *, scale: float, key_mask: KeyMask = None) -> KeyFeatures:
        return mask_features(self.feature_map(key, scale=scale), key_mask)


def _scaled(vectors: Vectors, factor: Float[Tensor, "*#batch 1"] | None) -> Vectors:
    return vectors if factor is None else vectors * factor


def _range_factor(vectors: Tensor, dims: tuple[int, ...]) -> Tensor | None:
    """Return powers of 2⁸ that scale the largest entry to between 1/16 and 16, or None if all are in that range."""
    vectors = vectors.detach()
    peak = torch.maximum(
        vectors.amax(dim=dims, keepdim=True), -vectors.amin(dim=dims, keepdim=True)
    )
    if execution_mode(peak) is ExecutionMode.SHAPES_ONLY or (
        is_readable(peak) and peak.is_cpu and _is_in_range(peak)
    ):
        return None
    # Coarse steps let vectors of similar size share one factor. Powers of 2 lose no digits.
    tiny = torch.finfo(vectors.dtype).tiny
    steps = torch.round(peak.clamp_min(tiny).log2() / RANGE_BITS).clamp(-15.0, 15.0)
    return torch.exp2(-RANGE_BITS * steps)


def _is_in_range(peak: Tensor) -> bool:
    least, largest = torch.aminmax(peak)
    return float(least) >= 2 ** (-RANGE_BITS / 2) and float(largest) <= 2 ** (RANGE_BITS / 2)


def _first_kept(key: Keys, key_mask: KeyMask) -> Float[Tensor, "batch heads first dim"]:
    """Return the first key of every batch and head that the mask keeps."""
    if key_mask is None:
        return key[:, :, :1]
    first = key_mask.int().argmax(dim=-1)[:, None, None, None]
    return key.gather(2, first.expand(*key.shape[:2], 1, key.shape[-1]))


@dataclass(frozen=True)
class FlooredRelu(PointwiseKernel):
    """A kernel of r(x) = max(x, ε ‖x‖/√d), with d features.

    The floor lets a query without a positive entry attend to all keys evenly, weighted by Σφ(k). It grows with x:
    r(τx) = τ r(x) for τ > 0. The features of the zero vector are 10⁻¹⁴.

    Because φ(τx) = τ^degree φ(x), the size of a query and the common size of all keys cancel in the normalizer.
    Vectors are therefore scaled into range before powers are taken, by factors without a gradient. Keys may be 10⁹
    times smaller than the largest key in float32.

    Raises:
        ValueError: `epsilon` is not positive.
    """

    nonnegative: ClassVar[bool] = True
    degree: ClassVar[int] = 1

    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if not is_positive(self.epsilon):
            raise wrong_value("epsilon", self.epsilon, POSITIVE_NUMBER)

    def num_features(self, dim: int) -> int:
        return dim

    @abstractmethod
    def features_of(self, rectified: Vectors) -> FeatureVectors:
        """Return φ as a function of r."""

    def feature_map(self, vectors: Vectors, *, scale: float) -> FeatureVectors:
        length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
        floor = (length * (self.epsilon / math.sqrt(vectors.shape[-1]))).clamp_min(
            self._least_floor(vectors)
        )
        # The same as torch.maximum(vectors, floor), whose gradient takes four times as long.
        return self.features_of(torch.relu(vectors - floor) + floor)

    def query_features(self, query: Queries, *, scale: float) -> QueryFeatures:
        return self.feature_map(_scaled(query, _range_factor(query, (-1,))), scale=scale)

    def key_features(self, key: Keys, *, scale: float, key_mask: KeyMask = None) -> KeyFeatures:
        factor = _range_factor(mask_features(key, key_mask), (-2, -1))
        return mask_features(self.feature_map(_scaled(key, factor), scale=scale), key_mask)

    def causal_key_features(
        self, key: Keys, *, scale: float, key_mask: KeyMask = None
    ) -> CausalFeatures:
        """Return φ(k) of each key scaled into its own range, and the logarithm of the factor that was taken out.

        If the first kept keys are in range, no key is scaled: later keys must not decide how earlier outputs are
        computed, and much smaller keys have no weight beside the first one.
        """
        factor = None
        if _range_factor(_first_kept(key, key_mask), (-1,)) is not None:
            factor = _range_factor(key, (-1,))
        features = mask_features(self.feature_map(_scaled(key, factor), scale=scale), key_mask)
        return features, None if factor is None else -self.degree * factor[..., 0].log()

    def _least_floor(self, vectors: Vectors) -> float:
        """Return the floor of the zero vector."""
        return LEAST_FEATURE ** (1 / self.degree)


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
    degree: ClassVar[int] = 2

    epsilon: float = 1e-3

    def features_of(self, rectified: Vectors) -> FeatureVectors:
        return rectified.square()


@dataclass(frozen=True)
class Relu(FlooredRelu):
    """φ(x) = max(x, ε ‖x‖/√d), else as `SquaredRelu`: Performer-ReLU (Choromanski et al. 2021) with our floor.

    >>> import torch
    >>> from teka.functional import Relu
    >>> Relu(epsilon=0.01).feature_map(torch.tensor([3.0, -4.0]), scale=1.0).round(decimals=4)  # 0.01 · 5/√2 for −4
    tensor([3.0000, 0.0354])
    """

    name: ClassVar[str] = "relu"

    def features_of(self, rectified: Vectors) -> FeatureVectors:
        return rectified


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

    def query_features(self, query: Queries, *, scale: float) -> QueryFeatures:
        return super().query_features(_ones_for_zeros(query), scale=scale)

    def _least_floor(self, vectors: Vectors) -> float:
        # The features of a key have entries down to (ε/√d)³, and a key of 0 must not count more than that. The second
        # number is the floor of the shortest vector whose squares the dtype holds.
        share = self.epsilon / math.sqrt(vectors.shape[-1])
        shortest = 1.01 * math.sqrt(torch.finfo(vectors.dtype).tiny) * share
        return min(LEAST_FEATURE, max(1e-6 * share**3, shortest))

    def features_of(self, rectified: Vectors) -> FeatureVectors:
        """φ = ‖r‖ · r³/‖r³‖: with u = r over its largest entry, ‖u‖ · u³/‖u³‖ times that entry."""
        peak, unit, length, cube_length = _parts(rectified)
        return unit.pow(3) * (peak * length / cube_length)


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
