"""Squared-relu features."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka.errors import wrong_value
from teka.functional.kernel.base import FeatureKernel, mask_features


@dataclass(frozen=True)
class SquaredRelu(FeatureKernel):
    """κ(q, k) = φ(q)ᵀφ(k), φ(x) = relu(x)² + ε with x = √scale · q (or k): d features, deterministic, non-negative.

    Source: cf. So et al. 2021 (Primer) for the activation; as a feature map, this library's default.

    Args:
        epsilon: ε > 0, added to every feature, so that a query without a positive entry attends to the keys evenly
            weighted by Σφ(k) and not to nothing.

    Raises:
        ValueError: ε is not positive.
    """

    name: ClassVar[str] = "squared_relu"

    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise wrong_value("epsilon", self.epsilon, "a positive number")

    def num_features(self, dim: int) -> int:
        """Length d of φ."""
        return dim

    def query_features(
        self, query: Float[Tensor, "batch heads queries dim"], *, scale: float
    ) -> Float[Tensor, "batch heads queries features"]:
        """φ(q)."""
        return torch.relu(query * math.sqrt(scale)).square() + self.epsilon

    def key_features(
        self,
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
    ) -> Float[Tensor, "batch heads keys features"]:
        """φ(k)."""
        return mask_features(self.query_features(key, scale=scale), key_mask)
