"""What kernels of rectified vectors share: a floor that is relative to the vector."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from teka.checks import POSITIVE, is_positive
from teka.errors import wrong_value
from teka.functional.kernel.local import LocalKernel

# No feature is smaller, so that the vector 0 has features too, whose products float32 still holds: keys that are all 0
# count evenly, and a key of 0 among others for nothing that can be seen.
LEAST_FEATURE = 1e-14


@dataclass(frozen=True)
class FlooredRelu(LocalKernel):
    """A kernel of r(x) = max(x, ε ‖x‖/√d), the same map for queries and keys, of d features.

    The floor in place of 0 lets a query attend to keys of which it shares no positive entry. It grows with x,
    r(τx) = τ r(x) for τ > 0, so that it never swamps the entries of a small vector; of the vector 0 φ is 10⁻¹⁴.
    φ is homogeneous in r: the scale of qᵀk is one factor of all weights, which cancels in the normaliser and is left
    out. So is the size of a query, and that of the largest key: keys may be 10⁹ times smaller than it in float32.

    Args:
        epsilon: ε > 0, the floor as a fraction of the root mean square of the vector's entries.

    Raises:
        ValueError: ε is not positive.
    """

    degree: ClassVar[int | None] = 1

    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if not is_positive(self.epsilon):
            raise wrong_value("epsilon", self.epsilon, POSITIVE)

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

    @property
    def _least_floor(self) -> float:
        return LEAST_FEATURE ** (1 / (self.degree or 1))

    def _floor(self, vectors: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch 1"]:
        # The sum is clamped so that the root has a gradient at the vector 0, where it is 0.
        square = vectors.square().sum(dim=-1, keepdim=True).clamp_min(torch.finfo(vectors.dtype).tiny)
        return (square.sqrt() * (self.epsilon / math.sqrt(vectors.shape[-1]))).clamp_min(self._least_floor)

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
            below = total.sub_(gradient.sum(dim=-1, keepdim=True)).mul_(floor > self._least_floor)
            # The floor's gradient is ε² x / (d · floor).
            torch.addcmul(gradient, vectors, below.div_(floor).mul_(self.epsilon**2 / vectors.shape[-1]), out=out)

        return self.features_of(rectified), pull
