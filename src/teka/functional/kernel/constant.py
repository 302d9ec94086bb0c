"""The constant kernel: attention by position alone."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka.functional.kernel.base import FeatureKernel, mask_features


@dataclass(frozen=True)
class Constant(FeatureKernel):
    """κ(q, k) = 1, φ(x) = [1]: what a query attends to depends only on where the keys are.

    Source: Cordonnier et al. 2020, §3 (content left out).
    """

    name: ClassVar[str] = "constant"
    uses_content: ClassVar[bool] = False
    nonnegative: ClassVar[bool] = True

    def num_features(self, dim: int) -> int:
        """Length 1 of φ."""
        return 1

    def query_features(
        self, query: Float[Tensor, "batch heads queries dim"], *, scale: float
    ) -> Float[Tensor, "batch heads queries features"]:
        """φ(q) = [1]."""
        return torch.ones_like(query[..., :1])

    def key_features(
        self,
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
    ) -> Float[Tensor, "batch heads keys features"]:
        """φ(k) = [1]."""
        return mask_features(torch.ones_like(key[..., :1]), key_mask)
