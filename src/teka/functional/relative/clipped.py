"""The clipped kernel (strategy 2), exactly."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from teka.checks import POSITIVE, check_tensor, is_positive
from teka.errors import wrong_shape, wrong_value
from teka.functional.kernel import Kernel
from teka.functional.relative.base import RingRelative
from teka.functional.relative.drawable import DrawableRelative
from teka.grid import Grid

MAX_DISTANCE = 6  # Horn et al. 2021, §3


@dataclass(frozen=True)
class Clipped(RingRelative, DrawableRelative):
    """c(Δ; q) = exp(scale · qᵀw_r) with the ring r = min(‖Δ‖₁ / ring_width, k), rounded to a whole number.

    Only k + 1 numbers a query are distinct, so the sum over keys is a weighted sum of k + 1 ring sums: O(L · k).

    Source: Horn et al. 2021, §2.3 (strategy 2), after Shaw et al. 2018; with w_0 … w_k, the Manhattan distance and the
    denominator, which the paper's text leaves out.

    Args:
        distance_embedding: w_0 … w_k, shape (k + 1, d).
        ring_width: Distance between neighbouring rings in physical units.

    Raises:
        ValueError: Fewer than two embeddings, or a width that is not positive.
    """

    name: ClassVar[str] = "clipped"

    distance_embedding: Float[Tensor, "rings dim"]
    ring_width: float = 1.0

    def __post_init__(self) -> None:
        check_tensor("distance_embedding", self.distance_embedding, "k + 1", "dim")
        if self.distance_embedding.shape[0] < 2:
            raise wrong_shape("distance_embedding", self.distance_embedding.shape, "(k + 1, dim) with k of at least 1")
        if not is_positive(self.ring_width):
            raise wrong_value("ring_width", self.ring_width, POSITIVE)

    @classmethod
    def draw(cls, generator: Generator, *, heads: int, dim: int, num_axes: int, kernel: str | Kernel) -> "Clipped":
        """Embeddings ~ N(0, 1) up to the paper's distance."""
        return cls(torch.randn(MAX_DISTANCE + 1, dim, generator=generator, dtype=torch.float64))

    @property
    def max_distance(self) -> int:
        """The last ring k."""
        return self.distance_embedding.shape[0] - 1

    def check(self, *, heads: int, dim: int, num_axes: int, kernel: Kernel) -> None:
        """Check that the embeddings have the queries' size."""
        if self.distance_embedding.shape[-1] != dim:
            expected = f"({self.max_distance + 1}, {dim}) for queries of size {dim}"
            raise wrong_shape("relative.distance_embedding", self.distance_embedding.shape, expected)

    def rings_fit(self, grid: Grid) -> bool:
        """Whether cells are one ring width apart and no ring below k meets itself round a periodic axis."""
        axes = range(grid.num_axes)
        apart = all(abs(grid.axis_spacing(axis) - self.ring_width) < 1e-9 * self.ring_width for axis in axes)
        return apart and all(
            2 * (self.max_distance - 1) < grid.shape[axis] for axis in axes if grid.axis_periodic(axis)
        )

    def ring(self, offsets: Float[Tensor, "*batch axes"]) -> Int[Tensor, "*batch"]:
        """min(‖Δ‖₁ / ring_width, k), rounded."""
        # Halves, which a real spacing can give, all go up: left to rounding errors, equal offsets would differ.
        distance = torch.floor(offsets.abs().sum(dim=-1) / self.ring_width + 0.501)
        return distance.clamp_max(self.max_distance).long()

    def log_rings(
        self, query: Float[Tensor, "batch heads queries dim"], *, scale: float
    ) -> Float[Tensor, "batch heads queries rings"]:
        """scale · qᵀw_r for every ring."""
        return scale * (query @ self.distance_embedding.to(query).T)
