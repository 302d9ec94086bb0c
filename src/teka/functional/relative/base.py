"""What every relative kernel c(x_i − x_j; q_i) offers."""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from teka.functional.kernel.base import Kernel
from teka.functional.placement import Placement
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
        """Check that this fits heads of size `dim`, `num_axes` axes and the content kernel.

        Raises:
            ValueError: It does not.
        """

    def for_kernel(self, kernel: Kernel) -> "Relative":
        """The kernel as it is beside this content kernel, itself by default.

        Args:
            kernel: The content kernel.
        """
        return self

    def bound_with(self, kernel: Kernel) -> float | None:
        """C with |out| ≤ C · max |v| beside a content kernel, or None; by default its own, which a factor c ≥ 0 leaves.

        Args:
            kernel: The content kernel.
        """
        return kernel.bound

    def on(self, placement: Placement) -> "Relative":
        """The kernel as it is between these places, itself by default; waves take frequencies that fit a torus.

        Raises:
            ValueError: It is not defined between these places.
        """
        return self


class FactorRelative(Relative):
    """A relative kernel c > 0 that multiplies the content kernel's weight of a pair."""

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
            offsets: x_i − x_j, shape (L_q, L_k, n) or (B, L_q, L_k, n).
            scale: Factor of inner products with the query.
        """

    def pair_passes(self, num_axes: int) -> int:
        """Passes over the pairs in the time that log c takes pair by pair, for the cost of the dense backend.

        Args:
            num_axes: Number of axes of the offsets.
        """
        return 12 * num_axes


class StationaryRelative(FactorRelative):
    """A relative kernel that does not look at the query: a function of the offset alone for each head."""

    @abstractmethod
    def log_at(self, offsets: Float[Tensor, "*pairs axes"]) -> Float[Tensor, "heads *pairs"]:
        """log c at offsets, for every head."""

    def log_kernel(
        self,
        query: Float[Tensor, "batch heads queries dim"],
        offsets: Float[Tensor, "*batch queries keys axes"],
        *,
        scale: float,
    ) -> Float[Tensor, "#batch heads queries keys"]:
        """log c for every pair; the query does not enter."""
        log_relative = self.log_at(offsets)
        return log_relative.transpose(0, 1) if log_relative.ndim == 4 else log_relative[None]


class SeparableRelative(StationaryRelative):
    """A stationary kernel whose log is a sum over axes, so that c is a product."""

    @abstractmethod
    def axis_log_kernel(self, axis: int, offsets: Float[Tensor, "*pairs"]) -> Float[Tensor, "heads *pairs"]:
        """One axis' term of log c, at offsets along that axis."""

    def log_at(self, offsets: Float[Tensor, "*pairs axes"]) -> Float[Tensor, "heads *pairs"]:
        """The sum over the axes."""
        terms = [self.axis_log_kernel(axis, offsets[..., axis]) for axis in range(offsets.shape[-1])]
        return sum(terms[1:], terms[0])


class WaveRelative(StationaryRelative):
    """A stationary kernel of a few waves: c(x_i − x_j) = Σ_w a_w(x_i) b_w(x_j), a product of features of positions."""

    @property
    @abstractmethod
    def num_waves(self) -> int:
        """Number of terms of the sum."""

    @abstractmethod
    def query_waves(
        self, positions: Float[Tensor, "*batch tokens axes"], dtype: torch.dtype
    ) -> Float[Tensor, "*batch heads tokens waves"]:
        """a(x_i), in this dtype, from positions with all the digits that there are."""

    @abstractmethod
    def key_waves(
        self, positions: Float[Tensor, "*batch tokens axes"], dtype: torch.dtype
    ) -> Float[Tensor, "*batch heads tokens waves"]:
        """b(x_j) likewise."""


class RingRelative(FactorRelative):
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

    def pair_passes(self, num_axes: int) -> int:
        """A ring for every offset, and a look into a table."""
        return 5 + 6 * num_axes


class RotaryRelative(Relative):
    """A relative kernel that turns features by an angle of their position, and so acts inside the inner product."""

    @abstractmethod
    def weighing(
        self,
        features: Float[Tensor, "batch heads tokens features"],
        positions: Float[Tensor, "*batch tokens axes"] | None,
    ) -> Float[Tensor, "batch heads tokens weighing"]:
        """Vectors whose inner products are the weights of the numerator, and see only the offset.

        Args:
            features: Features of the content kernel.
            positions: Where the tokens are, or None for tokens that are nowhere, whose features are not turned.
        """

    @property
    @abstractmethod
    def sums_weights(self) -> bool:
        """Whether the denominator is the sum of the weights; else it is made of `normalizing`."""

    @abstractmethod
    def normalizing(
        self, features: Float[Tensor, "batch heads tokens features"], *, placed: bool
    ) -> Float[Tensor, "batch heads tokens normalizing"]:
        """Vectors of the denominator, which is the sum over keys of their inner products.

        Args:
            features: Features of the content kernel.
            placed: Whether they are for pairs whose tokens are both somewhere.
        """

    @abstractmethod
    def turn(
        self, vectors: Float[Tensor, "batch heads tokens dim"], positions: Float[Tensor, "*batch tokens axes"]
    ) -> Float[Tensor, "batch heads tokens dim"]:
        """Vectors turned by the angles of their positions: queries and keys, where the kernel has no features."""
