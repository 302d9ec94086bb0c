"""Optimal positive random features (OPRF)."""

import math
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Bool, Float
from torch import Tensor

from teka.functional.kernel.base import check_projection
from teka.functional.kernel.exponential import Exponential
from teka.functional.kernel.kept_mean import kept_mean


@dataclass(frozen=True)
class Optimal(Exponential):
    """κ(q, k) ≈ exp(scale · qᵀk), unbiased, from φ_r(x) ∝ exp(A‖w_r‖² + √(1−4A) w_rᵀx − ‖x‖²/2), x = √scale · q (or k).

    The constant (1−4A)^(d/4) / √m is left out: it cancels in the normaliser. A = 0 is `Positive`. For any A < 1/8

        E[κ̂²] / κ² = ((1+ρ)/2)^d ρ^(−d/2) exp(ρ ‖x+y‖²),   ρ = 1/(1−8A),

    whose logarithm, averaged over the pairs, has its minimum at ρ = 2d / (√((2s+d)² + 8ds) + 2s + d) with s the mean
    of ‖x_i + y_j‖². Both factors below grow with s. Adding one vector to all keys multiplies κ by a factor of the query
    alone, so the vector is free, and −(x̄ + ȳ) makes s least: s = mean‖x−x̄‖² + mean‖y−ȳ‖². `fitted` therefore centres
    first and takes s of what is left. As only x + y meets w, queries and keys each lose their own mean, which keeps
    both exponents small, and the exact factor exp(x̄ᵀ(y−ȳ)) of the key makes up for it:

        exp(xᵀy) = exp(xᵀȳ) · exp((x−x̄)ᵀ(y−ȳ)) · exp(x̄ᵀ(y−ȳ)).

    The statistics are detached. The estimate is unbiased whatever they are, so that its derivative by them has mean 0
    but for one factor a query: the gradient stays unbiased without it, and loses only noise.

    Source: Likhosherstov et al. 2022 (Chefs' Random Tables), §3; the shift is derived above.

    Args:
        projection: Draws w ~ N(0, I), shape (m, d).
        mean_square: s of every batch and head; None for that of unit-normal queries and keys, 2 · d · scale.
        query_mean: x̄ of every batch and head, in units of x, or None for 0.
        key_mean: ȳ likewise.
    """

    name: ClassVar[str] = "optimal"

    projection: Float[Tensor, "features dim"]
    mean_square: Float[Tensor, "batch heads 1 1"] | None = None
    query_mean: Float[Tensor, "batch heads 1 dim"] | None = None
    key_mean: Float[Tensor, "batch heads 1 dim"] | None = None

    def num_features(self, dim: int) -> int:
        """Length m of φ."""
        check_projection(self.projection, dim)
        return self.projection.shape[0]

    def fitted(
        self,
        query: Float[Tensor, "batch heads queries dim"],
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        query_mask: Bool[Tensor, "batch queries"] | None,
        key_mask: Bool[Tensor, "batch keys"] | None,
    ) -> "Optimal":
        """The kernel with x̄, ȳ and s of the kept queries and keys of every batch and head."""
        mean_square: float | Tensor = 0.0
        means = []
        for vectors, mask in ((query, query_mask), (key, key_mask)):
            scaled = vectors.detach() * math.sqrt(scale)
            means.append(kept_mean(scaled, mask))
            mean_square = mean_square + kept_mean((scaled - means[-1]).square().sum(dim=-1, keepdim=True), mask)
        return Optimal(self.projection, mean_square=mean_square, query_mean=means[0], key_mean=means[1])

    def query_exponent(
        self, query: Float[Tensor, "batch heads queries dim"], *, scale: float
    ) -> Float[Tensor, "batch heads queries features"]:
        """A‖w_r‖² + √(1−4A) w_rᵀ(x−x̄) − ‖x−x̄‖²/2."""
        scaled = query * math.sqrt(scale)
        return self._exponent(scaled if self.query_mean is None else scaled - self.query_mean, scale=scale)

    def key_exponent(
        self, key: Float[Tensor, "batch heads keys dim"], *, scale: float
    ) -> Float[Tensor, "batch heads keys features"]:
        """A‖w_r‖² + √(1−4A) w_rᵀ(y−ȳ) − ‖y−ȳ‖²/2 + x̄ᵀ(y−ȳ)."""
        scaled = key * math.sqrt(scale)
        if self.key_mean is not None:
            scaled = scaled - self.key_mean
        exponent = self._exponent(scaled, scale=scale)
        return exponent if self.query_mean is None else exponent + scaled @ self.query_mean.transpose(-2, -1)

    def _exponent(
        self, centred: Float[Tensor, "batch heads tokens dim"], *, scale: float
    ) -> Float[Tensor, "batch heads tokens features"]:
        check_projection(self.projection, centred.shape[-1])
        draws = self.projection.to(centred)
        coefficient = optimal_coefficient(self.mean_square, draws.shape[-1], scale=scale)
        lengths = coefficient * draws.square().sum(dim=-1)
        slope = (1 - 4 * coefficient) ** 0.5 * (centred @ draws.T)
        return lengths + slope - centred.square().sum(dim=-1, keepdim=True) / 2


def optimal_coefficient(
    mean_square: Float[Tensor, "batch heads 1 1"] | None, dim: int, *, scale: float
) -> float | Float[Tensor, "batch heads 1 1"]:
    """A = (1 − 1/ρ)/8 ≤ 0 of the least variance for vectors of size d with s = mean‖x_i + y_j‖².

    Args:
        mean_square: s, or None for that of unit-normal queries and keys, 2 · d · scale.
        dim: Size d of the vectors.
        scale: Factor of the inner product qᵀk.
    """
    spread = 2 * dim * scale if mean_square is None else mean_square
    root = ((2 * spread + dim) ** 2 + 8 * dim * spread) ** 0.5
    return (1 - (root + 2 * spread + dim) / (2 * dim)) / 8
