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

    def weights(
        self,
        query: Float[Tensor, "batch heads queries dim"],
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        log_relative: Float[Tensor, "#batch #heads #queries #keys"] | None,
        key_mask: Bool[Tensor, "batch keys"] | None,
    ) -> Float[Tensor, "batch heads queries keys"]:
        """Weights exp(scale · q_iᵀk_j + log c_ij), normalised over the keys."""
        scores = scale * (query @ key.transpose(-2, -1))
        if log_relative is not None:
            scores = scores + log_relative
        return torch.softmax(mask_scores(scores, key_mask), dim=-1)
