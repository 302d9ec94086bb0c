"""Focused features."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from teka.functional.kernel.floored_relu import FlooredRelu


@dataclass(frozen=True)
class Focused(FlooredRelu):
    """κ(q, k) = φ(q)ᵀφ(k), φ(x) = ‖r‖ · r³/‖r³‖ with r = max(x, ε ‖x‖/√d): d features.

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
    nonnegative: ClassVar[bool] = True

    def features_of(self, rectified: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch features"]:
        """φ = ‖r‖ · r³/‖r³‖: with u = r over its largest entry, ‖u‖ · u³/‖u³‖ times that entry."""
        peak, unit, length, cube_length = _parts(rectified)
        return unit.pow(3) * (peak * length / cube_length)

    def gradient_of(
        self, rectified: Float[Tensor, "*batch dim"], gradient: Float[Tensor, "*batch features"]
    ) -> Float[Tensor, "*batch dim"]:
        """With n = ‖u‖, m = ‖u³‖ and s = gᵀu³: (n/m) 3u²g + (s/(n m)) u − (3 n s/m³) u⁵."""
        _, unit, length, cube_length = _parts(rectified)
        square = unit.square()
        inner = (gradient * square * unit).sum(dim=-1, keepdim=True)
        along = inner / (length * cube_length) - 3 * length * inner / cube_length.pow(3) * square.square()
        return gradient.mul_(square).mul_(3 * length / cube_length).addcmul_(unit, along)


def _parts(
    rectified: Float[Tensor, "*batch dim"],
) -> tuple[
    Float[Tensor, "*batch 1"], Float[Tensor, "*batch dim"], Float[Tensor, "*batch 1"], Float[Tensor, "*batch 1"]
]:
    """The largest entry, u = r over it, ‖u‖ and ‖u³‖, which is at least 1, unless r is all but 0."""
    peak = rectified.amax(dim=-1, keepdim=True)
    unit = rectified / peak.detach()
    length, cube_length = (unit.pow(power).sum(dim=-1, keepdim=True).sqrt() for power in (2, 6))
    return peak.detach(), unit, length, cube_length
