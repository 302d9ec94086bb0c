"""The quadratic kernel: attention about a point that is displaced from the query."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from teka.checks import check_nonnegative, check_tensor
from teka.errors import wrong_shape
from teka.functional.kernel import Kernel
from teka.functional.placement import Placement
from teka.functional.relative.base import SeparableRelative
from teka.functional.relative.drawable import DrawableRelative
from teka.functional.relative.torus import wrap_axis


@dataclass(frozen=True)
class Quadratic(SeparableRelative, DrawableRelative):
    """log c = −α ‖(x_j − x_i) − Δ_h‖²: a Gaussian about the place Δ_h away from the query, one for each head.

    With offsets x_i − x_j, as everywhere here, that is −α ‖(x_i − x_j) + Δ_h‖². It is a sum over axes. On a periodic
    axis the distance from the centre is the shorter one round the torus.

    Source: Cordonnier et al. 2020, equation 9; its δ is x_j − x_i.

    Args:
        center: Δ_h, key minus query, in physical units, shape (heads, axes).
        precision: α ≥ 0 in units of length^−2, shape (heads,).
        periods: Period of every axis in physical units, None where it is not periodic; `on` takes the grid's.

    Raises:
        ValueError: Shapes that do not fit each other, or a negative precision.
    """

    name: ClassVar[str] = "quadratic"

    center: Float[Tensor, "heads axes"]
    precision: Float[Tensor, "heads"]
    periods: tuple[float | None, ...] | None = None

    def __post_init__(self) -> None:
        check_tensor("center", self.center, "heads", "axes")
        check_tensor("precision", self.precision, self.center.shape[0])
        check_nonnegative("precision", self.precision)

    @classmethod
    def draw(cls, generator: Generator, *, heads: int, dim: int, num_axes: int, kernel: str | Kernel) -> "Quadratic":
        """Centres within ±2 along every axis, precisions from 0.1 to 0.4."""
        center = 4 * torch.rand(heads, num_axes, generator=generator, dtype=torch.float64) - 2
        return cls(center, 0.1 + 0.3 * torch.rand(heads, generator=generator, dtype=torch.float64))

    def check(self, *, heads: int, dim: int, num_axes: int, kernel: Kernel) -> None:
        """Check that there is a centre for each of the heads, in as many axes."""
        if tuple(self.center.shape) != (heads, num_axes):
            expected = f"({heads}, {num_axes}) for {heads} heads and positions of {num_axes} axes"
            raise wrong_shape("relative.center", self.center.shape, expected)

    def on(self, placement: Placement) -> "Quadratic":
        """The kernel with the periods of the grid."""
        return Quadratic(self.center, self.precision, placement.periods)

    def axis_log_kernel(self, axis: int, offsets: Float[Tensor, "*pairs"]) -> Float[Tensor, "heads *pairs"]:
        """−α (Δ + Δ_h)² at offsets Δ along one axis."""
        per_head = (-1,) + (1,) * offsets.ndim
        away = offsets + self.center[:, axis].to(offsets).reshape(per_head)
        if self.periods is not None:
            away = wrap_axis(away, self.periods[axis])
        return -self.precision.to(offsets).reshape(per_head) * away.square()
