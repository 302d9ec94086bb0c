"""Squared-relu features."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from teka.functional.kernel.floored_relu import FlooredRelu


@dataclass(frozen=True)
class SquaredRelu(FlooredRelu):
    """κ(q, k) = φ(q)ᵀφ(k), φ(x) = r² with r = max(x, ε ‖x‖/√d): d features, deterministic, non-negative.

    The normalised weights do not change when a query, or all keys, are multiplied by a positive number.

    Source: cf. So et al. 2021 (Primer) for the activation; as a feature map, this library's default.

    Args:
        epsilon: ε > 0, the floor of r as a fraction of the root mean square of the vector's entries. It lets a query
            without a positive entry attend to the keys evenly, weighted by Σφ(k), and not to nothing.

    Raises:
        ValueError: ε is not positive.
    """

    name: ClassVar[str] = "squared_relu"
    nonnegative: ClassVar[bool] = True
    degree: ClassVar[int | None] = 2

    epsilon: float = 1e-3

    def features_of(self, rectified: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch features"]:
        """φ = r²."""
        return rectified.square()

    def gradient_of(
        self, rectified: Float[Tensor, "*batch dim"], gradient: Float[Tensor, "*batch features"]
    ) -> Float[Tensor, "*batch dim"]:
        """2r times that of φ."""
        return gradient.mul_(rectified).mul_(2)
