"""What every relative kernel c(x_i − x_j; q_i) offers."""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

from jaxtyping import Float, Int
from torch import Tensor

from teka.functional.kernel.base import Kernel
from teka.grid import Grid


class Relative(ABC):
    """How much a query attends to a key for where the key lies, seen from the query.

    `equivariance` says what a shift of all positions does to the attention: nothing for any single draw of random
    features ("exact"), or nothing to its mean over draws ("in expectation").
    """

    name: ClassVar[str]
    equivariance: ClassVar[Literal["exact", "in expectation"]] = "exact"

    @abstractmethod
    def check(self, *, heads: int, dim: int, num_axes: int, kernel: Kernel) -> None:
        """Hold that this fits heads of size `dim`, `num_axes` axes and the content kernel.

        Raises:
            ValueError: It does not.
        """

    @abstractmethod
    def log_kernel(
        self,
        query: Float[Tensor, "batch heads queries dim"],
        offsets: Float[Tensor, "*batch queries keys axes"],
        *,
        scale: float,
    ) -> Float[Tensor, "#batch heads queries keys"]:
        """log c for every pair: the dense truth.

        Args:
            query: Queries.
            offsets: x_i − x_j, shape (L, L, n) or (B, L, L, n).
            scale: Factor of inner products with the query.
        """


class SeparableRelative(Relative):
    """A relative kernel that does not look at the query and whose log is a sum over axes, so that c is a product."""

    @abstractmethod
    def axis_log_kernel(self, axis: int, offsets: Float[Tensor, "side side"]) -> Float[Tensor, "heads side side"]:
        """One axis' term of log c, at offsets along that axis."""


class RingRelative(Relative):
    """A relative kernel that sees of an offset only its ring r = 0 … k."""

    @property
    @abstractmethod
    def max_distance(self) -> int:
        """The last ring k, which holds everything at least as far."""

    @abstractmethod
    def rings_fit(self, grid: Grid) -> bool:
        """Whether ring r of this kernel is the cells r steps away on the grid, each once."""

    @abstractmethod
    def ring(self, offsets: Float[Tensor, "*batch axes"]) -> Int[Tensor, "*batch"]:
        """The ring of every offset."""

    @abstractmethod
    def log_rings(
        self, query: Float[Tensor, "batch heads queries dim"], *, scale: float
    ) -> Float[Tensor, "batch heads queries rings"]:
        """log c of every ring for every query."""

    def log_kernel(
        self,
        query: Float[Tensor, "batch heads queries dim"],
        offsets: Float[Tensor, "*batch queries keys axes"],
        *,
        scale: float,
    ) -> Float[Tensor, "#batch heads queries keys"]:
        """log c for every pair, looked up by its ring."""
        log_rings = self.log_rings(query, scale=scale)
        ring = self.ring(offsets)
        ring = ring[:, None] if ring.ndim == 3 else ring
        return log_rings.gather(-1, ring.expand(*log_rings.shape[:-1], ring.shape[-1]))
