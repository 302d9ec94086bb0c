"""Random features, whose inner products estimate the weights of softmax attention."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from teka.checks import check_tensor
from teka.functional.kernels.content_kernel import (
    LOWEST_EXPONENT,
    FeatureKernel,
    mask_features,
    masked_mean,
)
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
class RandomFeatureKernel(FeatureKernel):
    """Base class of kernels with random features, which estimate the softmax kernel exp(qᵀk).

    The similarity of a query and a key is the inner product of their features.

    Args:
        projection: Draws w_r ~ N(0, I), shape (m, d).
    """

    estimates_softmax = True
    features_per_draw: ClassVar[int] = 1

    projection: ProjectionMatrix

    def num_features(self, dim: int) -> int:
        check_tensor("projection", self.projection, "features", dim)
        return self.features_per_draw * self.projection.shape[0]

    def project(self, vectors: Keys) -> KeyFeatures:
        """Multiply vectors by the random projection matrix.

        The results are the inner products w_rᵀx of each vector x with all random vectors w_r.
        """
        check_tensor("projection", self.projection, "features", vectors.shape[-1])
        return vectors @ self.projection.to(vectors).T


class ExponentialFeatureKernel(RandomFeatureKernel):
    """Base class of random features that are exponentials, and therefore positive.

    Inner products of the features estimate the softmax kernel. To avoid overflow, the largest
    exponent is subtracted before the exponential is taken. This multiplies attention weights by
    numbers that cancel in the normalization. Each query has its own largest exponent. All unmasked
    keys of a head share one. In causal attention, each key has its own, because outputs must not
    depend on later keys.
    """

    nonnegative = True

    def query_exponent(self, query: Queries, *, scale: float) -> QueryFeatures:
        """Return the logarithms of the random features of queries, up to an additive constant.

        For a query q and a random vector w, the logarithm is √scale wᵀq − scale ‖q‖²/2. The
        constant cancels in the normalization.
        """
        scaled = query * math.sqrt(scale)
        return self.project(scaled) - scaled.square().sum(dim=-1, keepdim=True) / 2

    def key_exponent(self, key: Keys, *, scale: float) -> KeyFeatures:
        """Return the logarithms of the random features of keys, as `query_exponent` for queries."""
        return self.query_exponent(key, scale=scale)

    def query_features(self, query: Queries, *, scale: float) -> QueryFeatures:
        exponent = self.query_exponent(query, scale=scale)
        return _floored_exp(exponent - exponent.amax(dim=-1, keepdim=True).detach())

    def key_features(self, key: Keys, *, scale: float, key_mask: KeyMask = None) -> KeyFeatures:
        exponent = _subtract_largest_exponent(self.key_exponent(key, scale=scale), key_mask)
        return mask_features(_floored_exp(exponent), key_mask)

    def causal_key_features(
        self, key: Keys, *, scale: float, key_mask: KeyMask = None
    ) -> CausalFeatures:
        exponent = self.key_exponent(key, scale=scale)
        peak = exponent.amax(dim=-1, keepdim=True).detach()
        return mask_features(_floored_exp(exponent - peak), key_mask), peak[..., 0]


def _subtract_largest_exponent(exponent: KeyFeatures, key_mask: KeyMask) -> KeyFeatures:
    """Subtract the largest exponent of the keys of each head, so that exp does not overflow.

    The exponents are the logarithms of the random features of the keys. Masked keys are ignored,
    and their exponents become 0.
    """
    unmasked = exponent
    if key_mask is not None:
        unmasked = exponent.masked_fill(~key_mask[:, None, :, None], -torch.inf)
    peak = unmasked.amax(dim=(-2, -1), keepdim=True).detach()
    return mask_features(exponent - peak, key_mask)


def _floored_exp(exponent: Tensor) -> Tensor:
    return torch.exp(exponent).clamp_min(math.exp(LOWEST_EXPONENT))


@dataclass(frozen=True)
class PositiveFeatures(ExponentialFeatureKernel):
    """Positive random features (FAVOR+), whose inner products estimate softmax attention.

        φ_r(x) = exp(w_rᵀx − ‖x‖²/2) / √m

    Here x is a query or key times √scale, and w_r is one of m random vectors with standard normal
    entries. The inner product φ(q)ᵀφ(k) is an unbiased estimate of exp(scale · qᵀk).

    Source: Choromanski et al. 2021, Lemma 1 and equation 5.

    >>> import torch
    >>> from teka.functional import PositiveFeatures, attention
    >>> query, key, value = torch.randn(3, 1, 1, 6, 4) / 2
    >>> exact = attention(query, key, value, kernel="softmax")
    >>> few = attention(query, key, value, kernel=PositiveFeatures(torch.randn(4, 4)))
    >>> many = attention(query, key, value, kernel=PositiveFeatures(torch.randn(4096, 4)))
    >>> bool((many - exact).norm() < (few - exact).norm() / 2)
    True

    Args:
        projection: Draws w_r ~ N(0, I), shape (m, d).
    """

    name = "positive"


@dataclass(frozen=True)
class HyperbolicFeatures(ExponentialFeatureKernel):
    """Random features in pairs with opposite exponents, to estimate softmax attention.

        φ(x) = [exp(wᵀx − ‖x‖²/2), exp(−wᵀx − ‖x‖²/2)] / √(2m)

    Here x is a query or key times √scale, and w is one of m random vectors with standard normal
    entries, so that there are 2m features. Inner products of the features are unbiased estimates of
    exp(scale · qᵀk). If the vectors w are independent, the variance is smaller than that of
    `PositiveFeatures` with the same number of features. It is (1 − exp(−‖x+y‖²))/2 times the
    variance of `PositiveFeatures` with the same w, where x comes from the query and y from the key.

    Source: Choromanski et al. 2021, Lemmas 1 and 2.

    >>> import torch
    >>> from teka.functional import HyperbolicFeatures
    >>> kernel = HyperbolicFeatures(torch.randn(8, 4))
    >>> query = torch.randn(1, 1, 6, 4)
    >>> features = kernel.query_features(query, scale=0.5)
    >>> opposite_features = kernel.query_features(-query, scale=0.5)
    >>> features.shape, torch.allclose(opposite_features, features.roll(8, dims=-1))
    (torch.Size([1, 1, 6, 16]), True)

    Args:
        projection: Draws w_r ~ N(0, I), shape (m, d).
    """

    name = "hyperbolic"
    features_per_draw = 2

    def project(self, vectors: Keys) -> KeyFeatures:
        products = super().project(vectors)
        return torch.cat([products, -products], dim=-1)


@dataclass(frozen=True)
class OptimalPositiveFeatures(ExponentialFeatureKernel):
    """Positive random features with the least variance, to estimate softmax attention.

        φ_r(x) ∝ exp(A‖w_r‖² + √(1−4A) w_rᵀx − ‖x‖²/2)

    Here x is a query or key times √scale, and w_r is a random vector with standard normal entries.
    Inner products of the features are unbiased estimates of exp(scale · qᵀk) for any number A <
    1/8. With A = 0, they are `PositiveFeatures`. This class chooses A for the least variance on the
    given queries and keys. It first subtracts the means of the queries and of the keys.

    Derivation: let x be a query and y a key of size d, both times √scale. The factor (1−4A)^(d/4) /
    √m of the features cancels in the normalization. With ρ = 1/(1−8A), the estimate κ̂ of κ has

        E[κ̂²] / κ² = ((1+ρ)/2)^d ρ^(−d/2) exp(ρ ‖x+y‖²).

    The mean over all pairs of the logarithm is smallest for ρ = 2d / (√((2s+d)² + 8ds) + 2s + d),
    where s is the mean of ‖x_i + y_j‖², and it grows with s. A vector that is added to all keys
    changes κ by a factor for each query, which cancels. With the means x̄ and ȳ, adding −(x̄ + ȳ)
    gives the smallest s = mean‖x−x̄‖² + mean‖y−ȳ‖². Because w is multiplied by x + y only, the
    means can be subtracted from queries and keys separately, which keeps both exponents small:

        exp(xᵀy) = exp(xᵀȳ) · exp((x−x̄)ᵀ(y−ȳ)) · exp(x̄ᵀ(y−ȳ)).

    The statistics have no gradient. The estimate is unbiased for any statistics, so that its
    gradient is correct.

    Source: Likhosherstov et al. 2022 (Chefs' Random Tables), §3. The shift is derived above.

    >>> import torch
    >>> from teka.functional import OptimalPositiveFeatures, attention
    >>> kernel = OptimalPositiveFeatures(torch.randn(8, 4))
    >>> query, key, value = torch.randn(3, 1, 2, 6, 4, dtype=torch.float64)
    >>> output = attention(query, key, value, kernel=kernel)
    >>> torch.allclose(attention(query, key + 5, value, kernel=kernel), output)  # as for softmax
    True

    Args:
        projection: Draws w_r ~ N(0, I), shape (m, d).
        mean_square: s of every head, or None for 2 · d · scale, its value for unit-normal queries
            and keys.
        query_mean: x̄ of every head, or None for 0.
        key_mean: ȳ of every head, or None for 0.
    """

    name = "optimal"
    statistics_fields = ("mean_square", "query_mean", "key_mean")

    mean_square: Float[Tensor, "batch heads 1 1"] | None = None
    query_mean: Float[Tensor, "batch heads 1 dim"] | None = None
    key_mean: Float[Tensor, "batch heads 1 dim"] | None = None

    def with_statistics(
        self, query: Queries, key: Keys, *, scale: float, query_mask: QueryMask, key_mask: KeyMask
    ) -> "OptimalPositiveFeatures":
        means, squares = [], []
        for vectors, mask in ((query, query_mask), (key, key_mask)):
            scaled = vectors.detach() * math.sqrt(scale)
            mean = masked_mean(scaled, mask)
            means.append(mean)
            squares.append(masked_mean((scaled - mean).square().sum(dim=-1, keepdim=True), mask))
        return OptimalPositiveFeatures(self.projection, squares[0] + squares[1], *means)

    def query_exponent(self, query: Queries, *, scale: float) -> QueryFeatures:
        """Return A‖w_r‖² + √(1−4A) w_rᵀ(x−x̄) − ‖x−x̄‖²/2."""
        scaled = query * math.sqrt(scale)
        if self.query_mean is not None:
            scaled = scaled - self.query_mean
        return self._feature_exponent(scaled, scale=scale)

    def key_exponent(self, key: Keys, *, scale: float) -> KeyFeatures:
        """Return A‖w_r‖² + √(1−4A) w_rᵀ(y−ȳ) − ‖y−ȳ‖²/2 + x̄ᵀ(y−ȳ)."""
        scaled = key * math.sqrt(scale)
        if self.key_mean is not None:
            scaled = scaled - self.key_mean
        exponent = self._feature_exponent(scaled, scale=scale)
        return exponent if self.query_mean is None else exponent + scaled @ self.query_mean.mT

    def _feature_exponent(self, centered: Keys, *, scale: float) -> KeyFeatures:
        coefficient = least_variance_coefficient(self.mean_square, centered.shape[-1], scale=scale)
        draw_terms = coefficient * self.projection.to(centered).square().sum(dim=-1)
        linear_terms = (1 - 4 * coefficient) ** 0.5 * self.project(centered)
        return draw_terms + linear_terms - centered.square().sum(dim=-1, keepdim=True) / 2


def least_variance_coefficient(
    mean_square: Tensor | None, dim: int, *, scale: float
) -> float | Tensor:
    """Return the coefficient A ≤ 0 of `OptimalPositiveFeatures` that minimizes their variance.

    The best A depends on the lengths of queries and keys.

    Args:
        mean_square: s, the mean of ‖x_i + y_j‖², or None for its value for unit-normal queries and
            keys.
        dim: Size d of the vectors.
        scale: Factor of qᵀk.
    """
    spread = 2 * dim * scale if mean_square is None else mean_square
    root = ((2 * spread + dim) ** 2 + 8 * dim * spread) ** 0.5
    return (1 - (root + 2 * spread + dim) / (2 * dim)) / 8


@dataclass(frozen=True)
class TrigonometricFeatures(RandomFeatureKernel):
    """Random Fourier features (sines and cosines), to estimate softmax attention.

        φ(x) = exp(‖x‖²/2) · [sin(wᵀx), cos(wᵀx)] / √m

    Here x is a query or key times √scale, and w is one of m random vectors with standard normal
    entries, so that there are 2m features. Inner products of the features are unbiased estimates of
    exp(scale · qᵀk). Because features may be negative, the denominator of attention can be close to
    0 for long vectors, and the output can be very large (Choromanski et al. 2021, §2.3). The kernel
    exists for comparisons with Horn et al. 2021. Prefer `PositiveFeatures`.

    Source: Rahimi and Recht 2007; Horn et al. 2021, §2.1.

    >>> import torch
    >>> from teka.functional import TrigonometricFeatures
    >>> kernel = TrigonometricFeatures(torch.randn(8, 4))
    >>> query, key = 2 * torch.randn(2, 1, 1, 50, 4)
    >>> bool(kernel.weights(query, key, scale=1.0).min() < 0)
    True

    Args:
        projection: Draws w_r ~ N(0, I), shape (m, d).
    """

    name = "trigonometric"
    features_per_draw = 2

    def query_features(self, query: Queries, *, scale: float) -> QueryFeatures:
        """Map each query to sines and cosines of random projections (random Fourier features).

        Their inner products with the features of keys estimate the weights of softmax attention.
        The factor exp(‖x‖²/2) of a query x is left out, because it cancels in the normalization.
        """
        phase = self.project(query * math.sqrt(scale))
        features = torch.cat([torch.sin(phase), torch.cos(phase)], dim=-1)
        return features / math.sqrt(self.projection.shape[0])

    def key_features(self, key: Keys, *, scale: float, key_mask: KeyMask = None) -> KeyFeatures:
        """Map each key to sines and cosines of random projections (random Fourier features).

        Their inner products with the features of queries estimate the weights of softmax attention.
        To avoid overflow, the factor exp(‖y‖²/2) of a key y is divided by its maximum over all keys
        of the head.
        """
        features, exponent = self.causal_key_features(key, scale=scale, key_mask=key_mask)
        return features * torch.exp(_subtract_largest_exponent(exponent[..., None], key_mask))

    def causal_key_features(
        self, key: Keys, *, scale: float, key_mask: KeyMask = None
    ) -> tuple[KeyFeatures, Tensor]:
        exponent = (key * math.sqrt(scale)).square().sum(dim=-1) / 2
        return mask_features(self.query_features(key, scale=scale), key_mask), exponent
