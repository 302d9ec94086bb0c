"""Elu features."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka.functional.kernel.base import FeatureKernel, mask_features
from teka.functional.kernel.exponential import LOWEST_EXPONENT


@dataclass(frozen=True)
class Elu(FeatureKernel):
    """κ(q, k) = φ(q)ᵀφ(k), φ(x) = elu(x) + 1 with x = √scale · q (or k): d features, deterministic, positive.

    elu(x) + 1 is 1 + x for x > 0 and exp(x) below, taken as such: 1 + expm1(x) would lose the digits of small
    features. Exponents stop at −40, so that no feature is 0.

    Source: Katharopoulos et al. 2020, equation 7.
    """

    name: ClassVar[str] = "elu"
    nonnegative: ClassVar[bool] = True

    def num_features(self, dim: int) -> int:
        """Length d of φ."""
        return dim

    def query_features(
        self, query: Float[Tensor, "batch heads queries dim"], *, scale: float
    ) -> Float[Tensor, "batch heads queries features"]:
        """φ(q)."""
        scaled = query * math.sqrt(scale)
        return torch.where(scaled > 0, 1 + scaled, torch.exp(scaled.clamp(LOWEST_EXPONENT, 0.0)))

    def key_features(
        self,
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
    ) -> Float[Tensor, "batch heads keys features"]:
        """φ(k)."""
        return mask_features(self.query_features(key, scale=scale), key_mask)
