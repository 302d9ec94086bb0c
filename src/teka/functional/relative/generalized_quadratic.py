"""The generalized quadratic kernel: attention about a displaced point, wider in some directions than in others."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from teka.checks import check_tensor
from teka.errors import wrong_shape
from teka.functional.kernel import Kernel
from teka.functional.placement import Placement
from teka.functional.relative.base import StationaryRelative
from teka.functional.relative.drawable import DrawableRelative
from teka.functional.relative.torus import wrap_axis


@dataclass(frozen=True)
class GeneralizedQuadratic(StationaryRelative, DrawableRelative):
    """log c = −½ (δ − Δ_h)ᵀ Σ⁻¹ (δ − Δ_h) with δ = x_j − x_i and Σ⁻¹ = LᵀL: a Gaussian of any shape for each head.

    With offsets x_i − x_j, as everywhere here, that is −½ ‖L ((x_i − x_j) + Δ_h)‖². An oblique one is no sum over axes.
    On a periodic axis the component along it of δ − Δ_h is the shorter one round the torus.

    Source: Cordonnier et al. 2020, equation 16.

    Args:
        center: Δ_h, key minus query, in physical units, shape (heads, axes).
        precision_factor: L in units of length^−1, any square matrix, shape (heads, axes, axes).
        periods: Period of every axis in physical units, None where it is not periodic; `on` takes the grid's.

    Raises:
        ValueError: Shapes that do not fit each other.
    """

    name: ClassVar[str] = "generalized_quadratic"

    center: Float[Tensor, "heads axes"]
    precision_factor: Float[Tensor, "heads axes axes"]
    periods: tuple[float | None, ...] | None = None

    def __post_init__(self) -> None:
        check_tensor("center", self.center, "heads", "axes")
        heads, num_axes = self.center.shape
        check_tensor("precision_factor", self.precision_factor, heads, num_axes, num_axes)

    @classmethod
    def draw(
        cls, generator: Generator, *, heads: int, dim: int, num_axes: int, kernel: str | Kernel
    ) -> "GeneralizedQuadratic":
        """Centres within ±2 along every axis, factors ~ N(0, 0.4²)."""
        center = 4 * torch.rand(heads, num_axes, generator=generator, dtype=torch.float64) - 2
        factor = torch.randn(heads, num_axes, num_axes, generator=generator, dtype=torch.float64)
        return cls(center, 0.4 * factor)

    def check(self, *, heads: int, dim: int, num_axes: int, kernel: Kernel) -> None:
        """Check that there is a centre for each of the heads, in as many axes."""
        if tuple(self.center.shape) != (heads, num_axes):
            expected = f"({heads}, {num_axes}) for {heads} heads and positions of {num_axes} axes"
            raise wrong_shape("relative.center", self.center.shape, expected)

    def on(self, placement: Placement) -> "GeneralizedQuadratic":
        """The kernel with the periods of the grid."""
        return GeneralizedQuadratic(self.center, self.precision_factor, placement.periods)

    def pair_passes(self, num_axes: int) -> int:
        """A matrix times every offset, and an inner product."""
        return 25 * num_axes

    def log_at(self, offsets: Float[Tensor, "*pairs axes"]) -> Float[Tensor, "heads *pairs"]:
        """−½ ‖L (Δ + Δ_h)‖² at offsets Δ."""
        heads, num_axes = self.center.shape
        away = offsets + self.center.to(offsets).reshape(heads, *(1,) * (offsets.ndim - 1), num_axes)
        if self.periods is not None:
            away = torch.stack([wrap_axis(away[..., axis], self.periods[axis]) for axis in range(num_axes)], dim=-1)
        return torch.einsum("hmn,h...n->h...m", self.precision_factor.to(offsets), away).square().sum(dim=-1) / -2
