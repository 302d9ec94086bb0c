"""Positive random features (FAVOR+)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka.functional.kernel.base import FeatureKernel, check_projection, mask_features, mask_scores

# Exponents are taken relative to the largest; below e^−40 of it a feature stays at e^−40, so that the product of two
# features stays a normal float32 and a denominator can never be 0. Being relative, the floor cannot swamp the features.
LOWEST_EXPONENT = -40.0


@dataclass(frozen=True)
class Positive(FeatureKernel):
    """κ(q, k) ≈ exp(scale · qᵀk), unbiased, from φ_r(x) = exp(w_rᵀx − ‖x‖²/2) / √m with x = √scale · q (or k).

    The largest exponent is subtracted before exp: over the features of a query, and over all kept keys and features of
    one batch and head, so that it cancels in the normaliser and no sample sees another.

    Source: Choromanski et al. 2021, Lemma 1 and equation 5.

    Args:
        projection: Draws w ~ N(0, I), shape (m, d).
    """

    name: ClassVar[str] = "positive"
    estimates_softmax: ClassVar[bool] = True

    projection: Float[Tensor, "features dim"]

    def num_features(self, dim: int) -> int:
        """Length m of φ."""
        check_projection(self.projection, dim)
        return self.projection.shape[0]

    def exponent(
        self, vectors: Float[Tensor, "batch heads tokens dim"], scale: float
    ) -> Float[Tensor, "batch heads tokens features"]:
        """w_rᵀx − ‖x‖²/2 with x = √scale · vectors."""
        check_projection(self.projection, vectors.shape[-1])
        scaled = vectors * math.sqrt(scale)
        return scaled @ self.projection.to(scaled).T - scaled.square().sum(dim=-1, keepdim=True) / 2

    def query_features(
        self, query: Float[Tensor, "batch heads queries dim"], *, scale: float
    ) -> Float[Tensor, "batch heads queries features"]:
        """φ(q) divided by its largest entry."""
        exponent = self.exponent(query, scale)
        peak = exponent.amax(dim=-1, keepdim=True).detach()
        return torch.exp((exponent - peak).clamp_min(LOWEST_EXPONENT))

    def key_features(
        self,
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
    ) -> Float[Tensor, "batch heads keys features"]:
        """φ(k) divided by the largest entry of its batch and head."""
        exponent = self.exponent(key, scale)
        kept = exponent if key_mask is None else mask_scores(exponent.transpose(-2, -1), key_mask).transpose(-2, -1)
        peak = kept.amax(dim=(-2, -1), keepdim=True).detach()
        return mask_features(torch.exp((exponent - peak).clamp(LOWEST_EXPONENT, 0.0)), key_mask)
