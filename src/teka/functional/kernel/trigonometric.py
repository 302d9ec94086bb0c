"""Trigonometric random features (FAVOR)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka.functional.kernel.base import FeatureKernel, check_projection, mask_features


@dataclass(frozen=True)
class Trigonometric(FeatureKernel):
    """κ(q, k) ≈ exp(scale · qᵀk), unbiased, from φ(x) = exp(‖x‖²/2) · [sin(wᵀx), cos(wᵀx)] / √m, x = √scale · q (or k).

    The features have both signs, so that for large vectors the denominator can come near 0 and the estimate explode
    (Choromanski et al. 2021, §2.3): kept for parity with Horn et al.'s text; use `Positive` instead.

    Source: Rahimi and Recht 2007; Horn et al. 2021, §2.1.

    Args:
        projection: Draws w ~ N(0, I), shape (m, d); φ has 2m entries.
    """

    name: ClassVar[str] = "trigonometric"
    estimates_softmax: ClassVar[bool] = True
    nonnegative: ClassVar[bool] = False

    projection: Float[Tensor, "features dim"]

    def num_features(self, dim: int) -> int:
        """Length 2m of φ."""
        check_projection(self.projection, dim)
        return 2 * self.projection.shape[0]

    def _waves(self, scaled: Float[Tensor, "batch heads tokens dim"]) -> Float[Tensor, "batch heads tokens features"]:
        check_projection(self.projection, scaled.shape[-1])
        phase = scaled @ self.projection.to(scaled).T
        return torch.cat([torch.sin(phase), torch.cos(phase)], dim=-1) / math.sqrt(self.projection.shape[0])

    def query_features(
        self, query: Float[Tensor, "batch heads queries dim"], *, scale: float
    ) -> Float[Tensor, "batch heads queries features"]:
        """φ(q) without exp(‖x‖²/2), which is one factor for each query."""
        return self._waves(query * math.sqrt(scale))

    def key_features(
        self,
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
    ) -> Float[Tensor, "batch heads keys features"]:
        """φ(k) with the largest ‖x‖²/2 of its batch and head subtracted in the exponent."""
        scaled = key * math.sqrt(scale)
        exponent = scaled.square().sum(dim=-1, keepdim=True) / 2
        kept = exponent if key_mask is None else exponent.masked_fill(~key_mask[:, None, :, None], -math.inf)
        peak = kept.amax(dim=-2, keepdim=True).detach()
        return mask_features(torch.exp((exponent - peak).clamp_max(0.0)) * self._waves(scaled), key_mask)

    def causal_key_features(
        self,
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
    ) -> tuple[Float[Tensor, "batch heads keys features"], Float[Tensor, "batch heads keys"] | None]:
        """[sin(wᵀx), cos(wᵀx)] / √m, and s = ‖x‖²/2."""
        scaled = key * math.sqrt(scale)
        return mask_features(self._waves(scaled), key_mask), scaled.square().sum(dim=-1) / 2
