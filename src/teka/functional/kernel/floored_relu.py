"""What kernels of rectified vectors share: a floor that is relative to the vector."""

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka.errors import wrong_value
from teka.functional.kernel.base import FeatureKernel, mask_features


@dataclass(frozen=True)
class FlooredRelu(FeatureKernel):
    """A kernel of r(x) = relu(x) + ε ‖x‖/√d, the same map for queries and keys, of d features.

    The floor lets a query attend to keys of which it shares no positive entry. It grows with x, r(τx) = τ r(x) for
    τ > 0, so that it never swamps the entries of a small vector, and only the vector 0 has r = 0. φ is homogeneous in
    r: the scale of qᵀk is one factor of all weights, which cancels in the normaliser and is left out.

    Args:
        epsilon: ε > 0, the floor as a fraction of the root mean square of the vector's entries.

    Raises:
        ValueError: ε is not positive.
    """

    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise wrong_value("epsilon", self.epsilon, "a positive finite number")

    def num_features(self, dim: int) -> int:
        """Length d of φ."""
        return dim

    @abstractmethod
    def features(
        self, rectified: Float[Tensor, "batch heads tokens dim"]
    ) -> Float[Tensor, "batch heads tokens features"]:
        """φ as a function of r."""

    def query_features(
        self, query: Float[Tensor, "batch heads queries dim"], *, scale: float
    ) -> Float[Tensor, "batch heads queries features"]:
        """φ(q)."""
        # The norm's gradient at 0 is 0.
        length = torch.linalg.vector_norm(query, dim=-1, keepdim=True)
        return self.features(torch.relu(query) + self.epsilon / math.sqrt(query.shape[-1]) * length)

    def key_features(
        self,
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
    ) -> Float[Tensor, "batch heads keys features"]:
        """φ(k)."""
        return mask_features(self.query_features(key, scale=scale), key_mask)
