"""Relu features."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from teka.functional.kernel.floored_relu import FlooredRelu


@dataclass(frozen=True)
class Relu(FlooredRelu):
    """κ(q, k) = φ(q)ᵀφ(k), φ(x) = max(x, ε ‖x‖/√d): d features, deterministic.

    The normalised weights do not change when a query, or all keys, are multiplied by a positive number.

    Source: Choromanski et al. 2021 (Performer-ReLU), with a relative floor in place of an absolute one.

    Args:
        epsilon: ε > 0, the floor as a fraction of the root mean square of the vector's entries.

    Raises:
        ValueError: ε is not positive.
    """

    name: ClassVar[str] = "relu"
    nonnegative: ClassVar[bool] = True

    def features_of(self, rectified: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch features"]:
        """φ = r."""
        return rectified

    def gradient_of(
        self, rectified: Float[Tensor, "*batch dim"], gradient: Float[Tensor, "*batch features"]
    ) -> Float[Tensor, "*batch dim"]:
        """That of φ."""
        return gradient
