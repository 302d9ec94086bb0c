"""Hyperbolic positive random features."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from teka.functional.kernel.base import check_projection
from teka.functional.kernel.exponential import Exponential


@dataclass(frozen=True)
class Hyperbolic(Exponential):
    """κ(q, k) ≈ exp(scale · qᵀk), unbiased, from φ(x) = exp(−‖x‖²/2) · [exp(wᵀx), exp(−wᵀx)] / √(2m), x = √scale · q.

    Every draw serves twice, as w and as −w, which are of opposite luck: for independent draws the variance is
    (1 − exp(−‖x+y‖²))/2 times that of `Positive` with the same draws, and so below that of `Positive` with as many
    features.

    Source: Choromanski et al. 2021, Lemma 1 and Lemma 2.

    Args:
        projection: Draws w ~ N(0, I), shape (m, d); φ has 2m entries.
    """

    name: ClassVar[str] = "hyperbolic"

    projection: Float[Tensor, "features dim"]

    def num_features(self, dim: int) -> int:
        """Length 2m of φ."""
        check_projection(self.projection, dim)
        return 2 * self.projection.shape[0]

    def query_exponent(
        self, query: Float[Tensor, "batch heads queries dim"], *, scale: float
    ) -> Float[Tensor, "batch heads queries features"]:
        """[w_rᵀx, −w_rᵀx] − ‖x‖²/2."""
        check_projection(self.projection, query.shape[-1])
        scaled = query * math.sqrt(scale)
        slope = scaled @ self.projection.to(scaled).T
        return torch.cat([slope, -slope], dim=-1) - scaled.square().sum(dim=-1, keepdim=True) / 2
