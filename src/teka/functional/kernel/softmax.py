"""The softmax kernel."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka.functional.kernel.base import Kernel, mask_scores


@dataclass(frozen=True)
class Softmax(Kernel):
    """κ(q, k) = exp(scale · qᵀk): the reference, with no finite feature map, so that it costs O(L²).

    Source: Vaswani et al. 2017, equation 1.
    """

    name: ClassVar[str] = "softmax"
    estimates_softmax: ClassVar[bool] = True

    @property
    def bound(self) -> float:
        """1: outputs are means of the values."""
        return 1.0

    def dense_vectors(
        self,
        query: Float[Tensor, "batch heads queries dim"],
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        key_mask: Bool[Tensor, "batch keys"] | None,
        is_causal: bool,
    ) -> tuple[
        Float[Tensor, "batch heads queries size"],
        Float[Tensor, "batch heads keys size"],
        Float[Tensor, "batch heads keys"] | None,
    ]:
        """scale · q and k."""
        return scale * query, key, None

    def dense_weights(
        self,
        products: Float[Tensor, "batch heads queries keys"],
        *,
        log_relative: Float[Tensor, "#batch #heads #queries #keys"] | None,
        log_scale: Float[Tensor, "batch heads keys"] | None,
        keep: Bool[Tensor, "#batch 1 #queries keys"] | None,
    ) -> Float[Tensor, "batch heads queries keys"]:
        """Weights exp(scale · q_iᵀk_j + log c_ij), normalised over the keys."""
        scores = products if log_relative is None else products + log_relative
        return torch.softmax(mask_scores(scores, keep), dim=-1)

    def dense_size(self, dim: int) -> int:
        """Length d of queries and keys."""
        return dim
