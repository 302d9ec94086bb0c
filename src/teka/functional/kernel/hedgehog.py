"""Hedgehog features: a learned map that can mimic the spikes of softmax."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka.checks import check_tensor
from teka.errors import wrong_shape
from teka.functional.kernel.base import FeatureKernel, mask_features
from teka.functional.kernel.exponential import LOWEST_EXPONENT


@dataclass(frozen=True)
class Hedgehog(FeatureKernel):
    """κ(q, k) = φ(q)ᵀφ(k), φ(x) = softmax([Wx + b, −(Wx + b)]) over the 2r features: learned, positive, at most 1.

    Queries and keys have a W and b each, and so has every head. A vector's features depend on that vector alone and add
    up to 1: for a query the sum cancels in the normaliser, for a key it does not, so that a key's length changes how it
    shares its weight among queries and not how much it has.

    x = √(scale · √d) · q (or k), which with the scale of 1/√d is q itself, as in the paper. Exponents stop at −40, so
    that no feature is 0.

    Source: Zhang et al. 2024 (The Hedgehog & the Porcupine), §4.

    Args:
        query_weight: W of the queries, shape (H, r, d), or (1, r, d) for all heads.
        key_weight: W of the keys.
        query_bias: b of the queries, shape (H, r), or (1, r).
        key_bias: b of the keys.

    Raises:
        ValueError: Shapes that do not fit each other.
    """

    name: ClassVar[str] = "hedgehog"
    nonnegative: ClassVar[bool] = True

    query_weight: Float[Tensor, "#heads maps dim"]
    key_weight: Float[Tensor, "#heads maps dim"]
    query_bias: Float[Tensor, "#heads maps"]
    key_bias: Float[Tensor, "#heads maps"]

    def __post_init__(self) -> None:
        check_tensor("query_weight", self.query_weight, "heads", "maps", "dim")
        heads, maps, dim = self.query_weight.shape
        check_tensor("key_weight", self.key_weight, heads, maps, dim)
        check_tensor("query_bias", self.query_bias, heads, maps)
        check_tensor("key_bias", self.key_bias, heads, maps)

    @classmethod
    def identity(cls, dim: int, heads: int = 1) -> "Hedgehog":
        """W = identity and b = 0, with which the paper begins to learn.

        Args:
            dim: Size of queries and keys.
            heads: Number of heads, 1 for the same in all.
        """
        weight, bias = torch.eye(dim).repeat(heads, 1, 1), torch.zeros(heads, dim)
        return cls(weight, weight.clone(), bias, bias.clone())

    def num_features(self, dim: int) -> int:
        """Length 2r of φ."""
        return 2 * self.query_weight.shape[1]

    def query_features(
        self, query: Float[Tensor, "batch heads queries dim"], *, scale: float
    ) -> Float[Tensor, "batch heads queries features"]:
        """φ(q)."""
        return self._features(query, self.query_weight, self.query_bias, scale)

    def key_features(
        self,
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
    ) -> Float[Tensor, "batch heads keys features"]:
        """φ(k)."""
        return mask_features(self._features(key, self.key_weight, self.key_bias, scale), key_mask)

    def _features(
        self,
        vectors: Float[Tensor, "batch heads tokens dim"],
        weight: Float[Tensor, "#heads maps dim"],
        bias: Float[Tensor, "#heads maps"],
        scale: float,
    ) -> Float[Tensor, "batch heads tokens features"]:
        heads, dim = vectors.shape[1], vectors.shape[-1]
        if weight.shape[0] not in (1, heads) or weight.shape[-1] != dim:
            raise wrong_shape("query_weight", weight.shape, f"({heads} or 1, maps, {dim}) for these vectors")
        # The factor is 1 but for rounding where the scale is 1/√d; it meets W, which is small, and not the vectors.
        factor = math.sqrt(scale * math.sqrt(dim))
        mapped = vectors @ (factor * weight.to(vectors)).transpose(-2, -1) + bias.to(vectors)[:, None]
        exponent = torch.log_softmax(torch.cat([mapped, -mapped], dim=-1), dim=-1)
        return torch.exp(exponent.clamp_min(LOWEST_EXPONENT))
