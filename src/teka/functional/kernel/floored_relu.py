"""What kernels of rectified vectors share: a floor that is relative to the vector."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from teka.errors import wrong_value
from teka.functional.kernel.local import LocalKernel


@dataclass(frozen=True)
class FlooredRelu(LocalKernel):
    """A kernel of r(x) = max(x, ε ‖x‖/√d), the same map for queries and keys, of d features.

    The floor in place of 0 lets a query attend to keys of which it shares no positive entry. It grows with x,
    r(τx) = τ r(x) for τ > 0, so that it never swamps the entries of a small vector, and only the vector 0 has r = 0.
    φ is homogeneous in r: the scale of qᵀk is one factor of all weights, which cancels in the normaliser and is left
    out.

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
    def features_of(self, rectified: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch features"]:
        """φ as a function of r."""

    @abstractmethod
    def gradient_of(
        self, rectified: Float[Tensor, "*batch dim"], gradient: Float[Tensor, "*batch features"]
    ) -> Float[Tensor, "*batch dim"]:
        """Gradient of r from that of φ; either may be overwritten."""

    def _floor(self, vectors: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch 1"]:
        # The sum is clamped so that the root has a gradient at the vector 0, where it is 0.
        square = vectors.square().sum(dim=-1, keepdim=True).clamp_min(torch.finfo(vectors.dtype).tiny)
        return square.sqrt() * (self.epsilon / math.sqrt(vectors.shape[-1]))

    def feature_map(self, vectors: Float[Tensor, "*batch dim"], *, scale: float) -> Float[Tensor, "*batch features"]:
        """φ(x), whatever the scale."""
        return self.features_of(torch.maximum(vectors, self._floor(vectors)))

    def feature_map_pullback(
        self, vectors: Float[Tensor, "*batch dim"], *, scale: float
    ) -> tuple[Float[Tensor, "*batch features"], Callable[[Tensor, Tensor], None]]:
        """φ(x), and the gradient of x: that of r where x is above the floor, and through ‖x‖ where it is not."""
        floor = self._floor(vectors)
        rectified = torch.maximum(vectors, floor)

        def pull(gradient: Tensor, out: Tensor) -> None:
            gradient = self.gradient_of(rectified, gradient)
            total = gradient.sum(dim=-1, keepdim=True)
            # As numbers and not as truth values, by which torch selects thirty times as slowly.
            above = torch.ge(vectors, floor, out=torch.empty_like(vectors))
            gradient = gradient.mul_(above)
            below = total.sub_(gradient.sum(dim=-1, keepdim=True))
            # The floor's gradient is ε² x / (d · floor).
            torch.addcmul(gradient, vectors, below.div_(floor).mul_(self.epsilon**2 / vectors.shape[-1]), out=out)

        return self.features_of(rectified), pull
