"""Random features of the softmax kernel."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from teka.checks import check_tensor
from teka.functional.kernels.base import LOWEST_EXPONENT, FeatureKernel, mask_features, masked_mean
from teka.functional.shapes import (
    CausalFeatures,
    KeyFeatures,
    KeyMask,
    Keys,
    ProjectionMatrix,
    Queries,
    QueryFeatures,
    QueryMask,
)


@dataclass(frozen=True)
class RandomKernel(FeatureKernel):
    """An estimate of the softmax kernel from draws w ~ N(0, I), shape (m, d)."""

    estimates_softmax: ClassVar[bool] = True
    features_per_draw: ClassVar[int] = 1

    projection: ProjectionMatrix

    def num_features(self, dim: int) -> int:
        check_tensor("projection", self.projection, "features", dim)
        return self.features_per_draw * self.projection.shape[0]

    def along_draws(self, scaled: Keys) -> KeyFeatures:
        """w_rᵀx for every draw."""
        check_tensor("projection", self.projection, "features", scaled.shape[-1])
        return scaled @ self.projection.to(scaled).T


class Exponential(RandomKernel):
    """φ_r(x) = exp(e_r(x)), divided by its largest entry before exp is taken, which cancels in the normaliser.

    It is the largest of a query, or of all kept keys of one batch and head; if causal, of each key by itself.
    """

    nonnegative: ClassVar[bool] = True

    @abstractmethod
    def query_exponent(self, query: Queries, *, scale: float) -> QueryFeatures:
        """e(q)."""

    def key_exponent(self, key: Keys, *, scale: float) -> KeyFeatures:
        """e(k), as for queries by default."""
        return self.query_exponent(key, scale=scale)

    def query_features(self, query: Queries, *, scale: float) -> QueryFeatures:
        return _raise_over_peak(self.query_exponent(query, scale=scale))[0]

    def key_features(self, key: Keys, *, scale: float, key_mask: KeyMask = None) -> KeyFeatures:
        exponent = self.key_exponent(key, scale=scale)
        kept = (
            exponent
            if key_mask is None
            else exponent.masked_fill(~key_mask[:, None, :, None], -torch.inf)
        )
        peak = kept.amax(dim=(-2, -1), keepdim=True).detach()
        below = exponent - peak if key_mask is None else _below(exponent, peak)
        return mask_features(_raised(below), key_mask)

    def causal_key_features(
        self, key: Keys, *, scale: float, key_mask: KeyMask = None
    ) -> CausalFeatures:
        features, log_scale = _raise_over_peak(self.key_exponent(key, scale=scale))
        return mask_features(features, key_mask), log_scale


def _below(exponent: Tensor, peak: Tensor) -> Tensor:
    """e − peak, and 0 for dropped keys above it; not by `clamp`, whose gradient at its ends depends on torch."""
    below = exponent - peak
    return below.masked_fill(below > 0, 0.0)


def _raise_over_peak(exponent: Tensor) -> tuple[Tensor, Tensor]:
    peak = exponent.amax(dim=-1, keepdim=True).detach()
    return _raised(exponent - peak), peak[..., 0]


def _raised(below: Tensor) -> Tensor:
    """exp, of the least exponent and more; what has no gradient shows in the features, and need not be kept."""
    return torch.exp(below).clamp_min(math.exp(LOWEST_EXPONENT))


class SlopedExponential(Exponential):
    """Features φ_r(x) ∝ exp(√scale s_rᵀx − scale ‖x‖²/2) for slopes s made of the draws."""

    @property
    @abstractmethod
    def slopes(self) -> ProjectionMatrix:
        """Return s, shape (features, d)."""

    def query_exponent(self, query: Queries, *, scale: float) -> QueryFeatures:
        scaled = query * math.sqrt(scale)
        check_tensor("projection", self.projection, "features", scaled.shape[-1])
        return scaled @ self.slopes.to(scaled).T - scaled.square().sum(dim=-1, keepdim=True) / 2


@dataclass(frozen=True)
class Positive(SlopedExponential):
    """κ(q, k) ≈ exp(scale · qᵀk), unbiased, from φ_r(x) = exp(w_rᵀx − ‖x‖²/2) / √m with x = √scale · q (or k).

    Draws w ~ N(0, I) are `projection`, (m, d). Source: Choromanski et al. 2021, Lemma 1 and equation 5.

    >>> import torch
    >>> from teka.functional import Positive, attention
    >>> query, key, value = torch.randn(3, 1, 1, 6, 4) / 2
    >>> exact = attention(query, key, value, kernel="softmax")
    >>> estimates = [attention(query, key, value, kernel=Positive(torch.randn(draws, 4))) for draws in (4, 4096)]
    >>> rough, fine = ((estimate - exact).norm() / exact.norm() for estimate in estimates)
    >>> bool(fine < rough / 2)
    True
    """

    name: ClassVar[str] = "positive"

    @property
    def slopes(self) -> ProjectionMatrix:
        return self.projection


@dataclass(frozen=True)
class Hyperbolic(SlopedExponential):
    """κ(q, k) ≈ exp(scale · qᵀk), unbiased, from φ(x) = exp(−‖x‖²/2) · [exp(wᵀx), exp(−wᵀx)] / √(2m), x = √scale · q.

    For independent draws (`projection`, (m, d)) the variance is (1 − exp(−‖x+y‖²))/2 times that of `Positive` with the
    same draws, and so below that of `Positive` with as many features. Source: Choromanski et al. 2021, Lemmas 1 and 2.

    >>> import torch
    >>> from teka.functional import Hyperbolic
    >>> kernel = Hyperbolic(torch.randn(8, 4))
    >>> query = torch.randn(1, 1, 6, 4)
    >>> features, of_opposite = kernel.query_features(query, scale=0.5), kernel.query_features(-query, scale=0.5)
    >>> features.shape, torch.allclose(of_opposite, features.roll(8, dims=-1))
    (torch.Size([1, 1, 6, 16]), True)
    """

    name: ClassVar[str] = "hyperbolic"
    features_per_draw: ClassVar[int] = 2

    @property
    def slopes(self) -> ProjectionMatrix:
        return torch.cat([self.projection, -self.projection])


@dataclass(frozen=True)
class Optimal(Exponential):
    """κ(q, k) ≈ exp(scale · qᵀk), unbiased, from φ_r(x) ∝ exp(A‖w_r‖² + √(1−4A) w_rᵀx − ‖x‖²/2), x = √scale · q (or k).

    The constant (1−4A)^(d/4) / √m cancels in the normaliser. A = 0 is `Positive`. For any A < 1/8

        E[κ̂²] / κ² = ((1+ρ)/2)^d ρ^(−d/2) exp(ρ ‖x+y‖²),   ρ = 1/(1−8A),

    whose logarithm, averaged over the pairs, has its minimum at ρ = 2d / (√((2s+d)² + 8ds) + 2s + d) with s the mean of
    ‖x_i + y_j‖². Both factors grow with s. One vector added to all keys multiplies κ by a factor of the query alone, so
    it is free, and −(x̄ + ȳ) makes s least: s = mean‖x−x̄‖² + mean‖y−ȳ‖². As only x + y meets w, queries and keys each
    lose their own mean, which keeps both exponents small, and the factor exp(x̄ᵀ(y−ȳ)) makes up for it:

        exp(xᵀy) = exp(xᵀȳ) · exp((x−x̄)ᵀ(y−ȳ)) · exp(x̄ᵀ(y−ȳ)).

    The statistics are detached: the estimate is unbiased whatever they are, and so is the gradient without them.
    Source: Likhosherstov et al. 2022 (Chefs' Random Tables), §3; the shift is derived above.

    >>> import torch
    >>> from teka.functional import Optimal, attention
    >>> kernel = Optimal(torch.randn(8, 4))
    >>> query, key, value = torch.randn(3, 1, 2, 6, 4, dtype=torch.float64)
    >>> moved = attention(query, key + 5, value, kernel=kernel)  # all by one vector, which softmax does not see
    >>> torch.allclose(moved, attention(query, key, value, kernel=kernel))
    True

    Args:
        projection: Draws w ~ N(0, I), shape (m, d).
        mean_square: s of every batch and head; None for that of unit-normal queries and keys, 2 · d · scale.
        query_mean: x̄ of every batch and head, in units of x, or None for 0.
        key_mean: ȳ likewise.
    """

    name: ClassVar[str] = "optimal"
    fitted_tensors: ClassVar[tuple[str, ...]] = ("mean_square", "query_mean", "key_mean")

    mean_square: Float[Tensor, "batch heads 1 1"] | None = None
    query_mean: Float[Tensor, "batch heads 1 dim"] | None = None
    key_mean: Float[Tensor, "batch heads 1 dim"] | None = None

    def fitted(
        self, query: Queries, key: Keys, *, scale: float, query_mask: QueryMask, key_mask: KeyMask
    ) -> "Optimal":
        """The kernel with x̄, ȳ and s of the kept queries and keys of every batch and head."""
        mean_square: float | Tensor = 0.0
        means = []
        for vectors, mask in ((query, query_mask), (key, key_mask)):
            scaled = vectors.detach() * math.sqrt(scale)
            means.append(masked_mean(scaled, mask))
            mean_square = mean_square + masked_mean(
                (scaled - means[-1]).square().sum(dim=-1, keepdim=True), mask
            )
        return Optimal(
            self.projection, mean_square=mean_square, query_mean=means[0], key_mean=means[1]
        )

    def query_exponent(self, query: Queries, *, scale: float) -> QueryFeatures:
        """A‖w_r‖² + √(1−4A) w_rᵀ(x−x̄) − ‖x−x̄‖²/2."""
        scaled = query * math.sqrt(scale)
        return self._exponent(
            scaled if self.query_mean is None else scaled - self.query_mean, scale=scale
        )

    def key_exponent(self, key: Keys, *, scale: float) -> KeyFeatures:
        """A‖w_r‖² + √(1−4A) w_rᵀ(y−ȳ) − ‖y−ȳ‖²/2 + x̄ᵀ(y−ȳ)."""
        scaled = key * math.sqrt(scale)
        if self.key_mean is not None:
            scaled = scaled - self.key_mean
        exponent = self._exponent(scaled, scale=scale)
        return (
            exponent
            if self.query_mean is None
            else exponent + scaled @ self.query_mean.transpose(-2, -1)
        )

    def _exponent(self, centred: Keys, *, scale: float) -> KeyFeatures:
        coefficient = optimal_coefficient(self.mean_square, centred.shape[-1], scale=scale)
        lengths = coefficient * self.projection.to(centred).square().sum(dim=-1)
        slope = (1 - 4 * coefficient) ** 0.5 * self.along_draws(centred)
        return lengths + slope - centred.square().sum(dim=-1, keepdim=True) / 2


def optimal_coefficient(mean_square: Tensor | None, dim: int, *, scale: float) -> float | Tensor:
    """A = (1 − 1/ρ)/8 ≤ 0 of the least variance for vectors of size d with s = mean‖x_i + y_j‖²; see `Optimal`."""
    spread = 2 * dim * scale if mean_square is None else mean_square
    root = ((2 * spread + dim) ** 2 + 8 * dim * spread) ** 0.5
    return (1 - (root + 2 * spread + dim) / (2 * dim)) / 8


@dataclass(frozen=True)
class Trigonometric(RandomKernel):
    """κ(q, k) ≈ exp(scale · qᵀk), unbiased, from φ(x) = exp(‖x‖²/2) · [sin(wᵀx), cos(wᵀx)] / √m, x = √scale · q (or k).

    The features, of draws `projection` of shape (m, d), have both signs: for large vectors the denominator can come
    near 0 and the estimate explode (Choromanski et al. 2021, §2.3). Kept for parity with Horn et al.; use `Positive`
    instead. Source: Rahimi and Recht 2007; Horn et al. 2021, §2.1.

    >>> import torch
    >>> from teka.functional import Trigonometric
    >>> kernel = Trigonometric(torch.randn(8, 4))
    >>> query, key = 2 * torch.randn(2, 1, 1, 50, 4)
    >>> bool(kernel.weights(query, key, scale=1.0).min() < 0)  # of an estimate of exp(qᵀk)
    True
    """

    name: ClassVar[str] = "trigonometric"
    nonnegative: ClassVar[bool] = False
    features_per_draw: ClassVar[int] = 2

    def query_features(self, query: Queries, *, scale: float) -> QueryFeatures:
        """φ(q) without exp(‖x‖²/2), which is one factor for each query."""
        phase = self.along_draws(query * math.sqrt(scale))
        return torch.cat([torch.sin(phase), torch.cos(phase)], dim=-1) / math.sqrt(
            self.projection.shape[0]
        )

    def key_features(self, key: Keys, *, scale: float, key_mask: KeyMask = None) -> KeyFeatures:
        """φ(k) with the largest ‖x‖²/2 of its batch and head subtracted in the exponent."""
        waves, exponent = self.causal_key_features(key, scale=scale, key_mask=key_mask)
        kept = exponent if key_mask is None else exponent.masked_fill(~key_mask[:, None], -math.inf)
        peak = kept.amax(dim=-1, keepdim=True).detach()
        return mask_features(torch.exp(_below(exponent, peak))[..., None] * waves, key_mask)

    def causal_key_features(
        self, key: Keys, *, scale: float, key_mask: KeyMask = None
    ) -> tuple[KeyFeatures, Tensor]:
        squares = (key * math.sqrt(scale)).square().sum(dim=-1)
        return mask_features(self.query_features(key, scale=scale), key_mask), squares / 2
