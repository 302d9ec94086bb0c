"""Positive random features (FAVOR+)."""

import math
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from teka.functional.kernel.base import check_projection
from teka.functional.kernel.exponential import Exponential


@dataclass(frozen=True)
class Positive(Exponential):
    """κ(q, k) ≈ exp(scale · qᵀk), unbiased, from φ_r(x) = exp(w_rᵀx − ‖x‖²/2) / √m with x = √scale · q (or k).

    Source: Choromanski et al. 2021, Lemma 1 and equation 5.

    Args:
        projection: Draws w ~ N(0, I), shape (m, d).
    """

    name: ClassVar[str] = "positive"

    projection: Float[Tensor, "features dim"]

    def num_features(self, dim: int) -> int:
        """Length m of φ."""
        check_projection(self.projection, dim)
        return self.projection.shape[0]

    def query_exponent(
        self, query: Float[Tensor, "batch heads queries dim"], *, scale: float
    ) -> Float[Tensor, "batch heads queries features"]:
        """w_rᵀx − ‖x‖²/2."""
        check_projection(self.projection, query.shape[-1])
        scaled = query * math.sqrt(scale)
        return scaled @ self.projection.to(scaled).T - scaled.square().sum(dim=-1, keepdim=True) / 2
