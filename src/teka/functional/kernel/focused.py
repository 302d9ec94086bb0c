"""Focused features."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from teka.functional.kernel.floored_relu import FlooredRelu


@dataclass(frozen=True)
class Focused(FlooredRelu):
    """κ(q, k) = φ(q)ᵀφ(k), φ(x) = ‖r‖ · r³/‖r³‖ with r = relu(x) + ε ‖x‖/√d: d features.

    Cubing turns a vector towards its nearest axes and keeps its length ‖r‖, so that similar pairs gain weight and
    dissimilar ones lose it. The normalised weights do not change when a query, or all keys, are multiplied by a
    positive number.

    Source: Han et al. 2023 (FLatten Transformer), focused function with p = 3; the relative floor is ours.

    Args:
        epsilon: ε > 0, the floor of r as a fraction of the root mean square of the vector's entries.

    Raises:
        ValueError: ε is not positive.
    """

    name: ClassVar[str] = "focused"

    def features(
        self, rectified: Float[Tensor, "batch heads tokens dim"]
    ) -> Float[Tensor, "batch heads tokens features"]:
        """φ = ‖r‖ · r³/‖r³‖, and 0 where r = 0."""
        peak = rectified.amax(dim=-1, keepdim=True).detach()
        cubed = (rectified / torch.where(peak > 0, peak, 1.0)).pow(3)
        # The largest entry of `cubed` is 1 and its norm at least that, unless all of them are 0.
        direction = cubed / torch.linalg.vector_norm(cubed, dim=-1, keepdim=True).clamp_min(1.0)
        return torch.linalg.vector_norm(rectified, dim=-1, keepdim=True) * direction
