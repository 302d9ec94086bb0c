"""What every content kernel κ(q, k) offers."""

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka.errors import wrong_shape


class Kernel(ABC):
    """A content kernel: how much query q attends to key k for what they are, wherever they are."""

    name: ClassVar[str]
    uses_content: ClassVar[bool] = True
    estimates_softmax: ClassVar[bool] = False

    @abstractmethod
    def weights(
        self,
        query: Float[Tensor, "batch heads queries dim"],
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        log_relative: Float[Tensor, "#batch #heads #queries #keys"] | None,
        key_mask: Bool[Tensor, "batch keys"] | None,
    ) -> Float[Tensor, "batch heads queries keys"]:
        """Weights κ(q_i, k_j) · c_ij of every pair, up to one factor a row: the dense truth.

        Args:
            query: Queries.
            key: Keys.
            scale: Factor of the inner product qᵀk.
            log_relative: log c of every pair, or None for c = 1.
            key_mask: True where a key is kept; a dropped key has weight 0.
        """


class FeatureKernel(Kernel):
    """A content kernel with a feature map, κ(q, k) = φ(q)ᵀφ(k), so that sums over keys cost O(L)."""

    nonnegative: ClassVar[bool] = True

    @abstractmethod
    def num_features(self, dim: int) -> int:
        """Length m of φ for vectors of size `dim`."""

    @abstractmethod
    def query_features(
        self, query: Float[Tensor, "batch heads queries dim"], *, scale: float
    ) -> Float[Tensor, "batch heads queries features"]:
        """φ(q), up to one factor for each query, which cancels in the normaliser."""

    @abstractmethod
    def key_features(
        self,
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
    ) -> Float[Tensor, "batch heads keys features"]:
        """φ(k), up to one factor for all keys of one batch and head; 0 where masked."""

    def weights(
        self,
        query: Float[Tensor, "batch heads queries dim"],
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        log_relative: Float[Tensor, "#batch #heads #queries #keys"] | None,
        key_mask: Bool[Tensor, "batch keys"] | None,
    ) -> Float[Tensor, "batch heads queries keys"]:
        """Weights φ(q_i)ᵀφ(k_j) · c_ij, with c divided by its largest value in the row."""
        features = self.key_features(key, scale=scale, key_mask=key_mask)
        weights = self.query_features(query, scale=scale) @ features.transpose(-2, -1)
        if log_relative is None:
            return weights
        log_relative = mask_scores(log_relative, key_mask)
        return weights * torch.exp(log_relative - log_relative.amax(dim=-1, keepdim=True).detach())


def mask_scores(
    scores: Float[Tensor, "#batch #heads #queries keys"], key_mask: Bool[Tensor, "batch keys"] | None
) -> Float[Tensor, "..."]:
    """Scores with −∞ where a key is dropped."""
    return scores if key_mask is None else scores.masked_fill(~key_mask[:, None, None, :], -math.inf)


def mask_features(
    features: Float[Tensor, "batch heads keys features"], key_mask: Bool[Tensor, "batch keys"] | None
) -> Float[Tensor, "batch heads keys features"]:
    """Features with 0 where a key is dropped: it then counts neither in the numerator nor in the denominator."""
    return features if key_mask is None else features.masked_fill(~key_mask[:, None, :, None], 0.0)


def check_projection(projection: Tensor, dim: int) -> None:
    """Hold that a projection fits vectors of size `dim`.

    Raises:
        ValueError: It does not.
    """
    if projection.ndim != 2 or projection.shape[-1] != dim:
        raise wrong_shape("projection", projection.shape, f"(features, {dim}) for vectors of size {dim}")
