"""Attention about a displaced point, of any shape, and a learned number for every offset along every axis."""

from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from teka._compat import replace
from teka.checks import check_nonnegative, check_tensor, check_tensor_sizes
from teka.errors import wrong_shape, wrong_value
from teka.functional.kernels.base import Kernel
from teka.functional.positions import Positions, check_heads_and_axes
from teka.functional.relative.stationary import SeparableRelative, StationaryRelative
from teka.functional.shapes import AxisOffsets, LogRelativePerHead, OffsetVectors
from teka.grid import Grid, wrap

# Share of a cell by which two grids may miss each other.
MISALIGNMENT = 1e-6
MAX_OFFSET = 7  # a window of 15 cells along every axis

Centred = TypeVar("Centred", bound="CentredRelative")


@dataclass(frozen=True)
class CentredRelative(StationaryRelative):
    """A kernel about a place away from the query, `center` for each head, key minus query, on axes with `periods`."""

    center: Float[Tensor, "heads axes"]

    def __post_init__(self) -> None:
        check_tensor("center", self.center, "heads", "axes")

    def check(self, *, heads: int, dim: int, num_axes: int, kernel: Kernel) -> None:
        check_heads_and_axes("center", self.center, heads, num_axes)

    def for_positions(self: Centred, positions: Positions) -> Centred:
        return replace(self, periods=positions.periods)


@dataclass(frozen=True)
class Quadratic(CentredRelative, SeparableRelative):
    """log c = −α ‖(x_j − x_i) − Δ_h‖²: a Gaussian about the place Δ_h away from the query, one for each head.

    With offsets x_i − x_j, as everywhere here, −α ‖(x_i − x_j) + Δ_h‖², a sum over axes, shorter way round a torus.
    Source: Cordonnier et al. 2020, equation 9; its δ is x_j − x_i.

    >>> import torch, teka
    >>> value = torch.arange(5.0).view(1, 1, 5, 1)
    >>> two_on = teka.functional.Quadratic(center=torch.tensor([[2.0]]), precision=torch.tensor([50.0]))
    >>> options = {"kernel": "constant", "relative": two_on, "grid": teka.Grid(5, periodic=True)}
    >>> teka.functional.attention(value, value, value, **options).flatten().round()
    tensor([2., 3., 4., 0., 1.])

    Args:
        center: Δ_h, key minus query, in physical units, shape (heads, axes).
        precision: α ≥ 0 in units of length^−2, shape (heads,); a ValueError if negative.
        periods: Period of every axis in physical units, None where it is not periodic; `for_positions` takes the grid's.
    """

    name: ClassVar[str] = "quadratic"

    precision: Float[Tensor, "heads"]
    periods: tuple[float | None, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_tensor("precision", self.precision, self.center.shape[0])
        check_nonnegative("precision", self.precision)

    @classmethod
    def initial(cls, *, num_axes: int, heads: int) -> "Quadratic":
        """Centers Δ_h ~ N(0, 2²) and precisions of 1 (Cordonnier et al. 2020)."""
        check_tensor_sizes({"num_axes": num_axes, "heads": heads})
        return cls(2 * torch.randn(heads, num_axes), torch.ones(heads))

    @property
    def constraints(self) -> dict[str, str]:
        return {"precision": "positive"}

    @classmethod
    def draw(
        cls, generator: Generator, *, heads: int, dim: int, num_axes: int, kernel: str | Kernel
    ) -> "Quadratic":
        """Centres within ±2 along every axis, precisions from 0.1 to 0.4."""
        center = 4 * torch.rand(heads, num_axes, generator=generator, dtype=torch.float64) - 2
        return cls(center, 0.1 + 0.3 * torch.rand(heads, generator=generator, dtype=torch.float64))

    def axis_log_kernel(self, axis: int, offsets: AxisOffsets) -> LogRelativePerHead:
        per_head = (-1,) + (1,) * offsets.ndim
        away = offsets + self.center[:, axis].to(offsets).reshape(per_head)
        if self.periods is not None:
            away = wrap(away, self.periods[axis])
        return -self.precision.to(offsets).reshape(per_head) * away.square()


@dataclass(frozen=True)
class GeneralizedQuadratic(CentredRelative):
    """log c = −½ (δ − Δ_h)ᵀ Σ⁻¹ (δ − Δ_h) with δ = x_j − x_i and Σ⁻¹ = LᵀL: a Gaussian of any shape for each head.

    With offsets x_i − x_j, −½ ‖L ((x_i − x_j) + Δ_h)‖², the shorter way round. Source: Cordonnier et al. 2020, eq. 16.

    >>> import torch
    >>> from teka.functional import GeneralizedQuadratic
    >>> column = GeneralizedQuadratic(torch.zeros(1, 2), precision_factor=torch.tensor([[[0.0, 0.0], [0.0, 2.0]]]))
    >>> column.log_at(torch.tensor([[0.0, 0.0], [9.0, 0.0], [0.0, 1.0]])).exp()  # no matter how far above or below
    tensor([[1.0000, 1.0000, 0.1353]])

    Args:
        center: Δ_h as for `Quadratic`, and so are the periods.
        precision_factor: L in units of length^−1, any square matrix, shape (heads, axes, axes).
    """

    name: ClassVar[str] = "generalized_quadratic"

    precision_factor: Float[Tensor, "heads axes axes"]
    periods: tuple[float | None, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        heads, num_axes = self.center.shape
        check_tensor("precision_factor", self.precision_factor, heads, num_axes, num_axes)

    @classmethod
    def initial(cls, *, num_axes: int, heads: int) -> "GeneralizedQuadratic":
        """Centers Δ_h ~ N(0, 2²) and L = identity; Σ⁻¹ is positive semi-definite for any L."""
        sizes = {"num_axes": num_axes, "heads": heads}
        check_tensor_sizes(sizes)
        check_tensor_sizes({"num_axes": num_axes}, num_axes**2)
        check_tensor_sizes(sizes, heads * num_axes**2)
        return cls(2 * torch.randn(heads, num_axes), torch.eye(num_axes).repeat(heads, 1, 1))

    @classmethod
    def draw(
        cls, generator: Generator, *, heads: int, dim: int, num_axes: int, kernel: str | Kernel
    ) -> "GeneralizedQuadratic":
        """Centres within ±2 along every axis, factors ~ N(0, 0.4²)."""
        center = 4 * torch.rand(heads, num_axes, generator=generator, dtype=torch.float64) - 2
        factor = torch.randn(heads, num_axes, num_axes, generator=generator, dtype=torch.float64)
        return cls(center, 0.4 * factor)

    def pair_passes(self, num_axes: int) -> int:
        """A matrix times every offset, and an inner product."""
        return 25 * num_axes

    def log_at(self, offsets: OffsetVectors) -> LogRelativePerHead:
        heads, num_axes = self.center.shape
        away = offsets + self.center.to(offsets).reshape(
            heads, *(1,) * (offsets.ndim - 1), num_axes
        )
        if self.periods is not None:
            away = torch.stack(
                [wrap(away[..., axis], self.periods[axis]) for axis in range(num_axes)], dim=-1
            )
        return (
            torch.einsum("hmn,h...n->h...m", self.precision_factor.to(offsets), away)
            .square()
            .sum(dim=-1)
            / -2
        )


@dataclass(frozen=True)
class Table(SeparableRelative):
    """log c = Σ_axis t_axis[Δ_axis]: in two dimensions row[Δ_y] + column[Δ_x], with Δ = x_i − x_j counted in cells.

    Beyond ±k cells the last entry holds. Offsets between cells have no entry: it takes grids and no bare positions.
    Source: Ramachandran et al. 2019; Cordonnier et al. 2020, §4.3; the clipping is Shaw et al. 2018.

    >>> import torch
    >>> from teka.functional import Table
    >>> kernel = Table(torch.tensor([[[-1.0, 0.0, 2.0]]]))  # of Δ = −1, 0 and 1
    >>> kernel.log_at(torch.tensor([[-7.0], [-1.0], [0.0], [1.0], [7.0]]))
    tensor([[-1., -1.,  0.,  2.,  2.]])

    Args:
        tables: t, entry k + Δ for an offset of Δ cells, shape (heads, axes, 2k + 1).
        spacing: Width of a cell along every axis in physical units, 1 if None; `for_positions` takes the grid's.
    """

    name: ClassVar[str] = "table"

    tables: Float[Tensor, "heads axes entries"]
    spacing: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check_tensor("tables", self.tables, "heads", "axes", "2 max_offset + 1")
        if self.tables.shape[-1] % 2 == 0:
            raise wrong_shape("tables", self.tables.shape, "(heads, axes, 2 max_offset + 1)")

    @property
    def max_offset(self) -> int:
        """The last offset k in cells that has an entry of its own."""
        return self.tables.shape[-1] // 2

    @classmethod
    def initial(cls, *, num_axes: int, heads: int, max_offset: int = MAX_OFFSET) -> "Table":
        """Entries of 0, for offsets of up to `max_offset` cells."""
        check_tensor_sizes({"num_axes": num_axes, "heads": heads, "max_offset": max_offset})
        return cls(torch.zeros(heads, num_axes, 2 * max_offset + 1))

    @classmethod
    def draw(
        cls, generator: Generator, *, heads: int, dim: int, num_axes: int, kernel: str | Kernel
    ) -> "Table":
        """Entries ~ N(0, 1) for up to 3 cells."""
        return cls(torch.randn(heads, num_axes, 7, generator=generator, dtype=torch.float64))

    def check(self, *, heads: int, dim: int, num_axes: int, kernel: Kernel) -> None:
        check_heads_and_axes("tables", self.tables, heads, num_axes, "entries")

    def for_positions(self, positions: Positions) -> "Table":
        """The kernel with cells as wide as the grid's, or as the finer one's of two."""
        if positions.grids is None:
            expected = "a grid, not bare positions, with relative='table', which counts cells"
            raise wrong_value("grid" if positions.grid is None else "key_grid", None, expected)
        query, key = positions.grids
        return Table(
            self.tables, tuple(_cell_width(query, key, axis) for axis in range(query.num_axes))
        )

    def axis_log_kernel(self, axis: int, offsets: AxisOffsets) -> LogRelativePerHead:
        spacing = 1.0 if self.spacing is None else self.spacing[axis]
        entry = (
            torch.round(offsets / spacing).clamp(-self.max_offset, self.max_offset).long()
            + self.max_offset
        )
        table = self.tables[:, axis].to(offsets)
        return table.index_select(1, entry.reshape(-1)).reshape(len(table), *offsets.shape)


def _cell_width(query: Grid, key: Grid, axis: int) -> float:
    """Width of which the offset of every query's cell from every key's is a multiple."""
    # The spacing of a single cell separates nothing.
    steps = [grid.spacing[axis] for grid in (query, key) if grid.shape[axis] > 1] or [
        query.spacing[axis]
    ]
    width = min(steps)
    for distance in (*steps, query.origin[axis] - key.origin[axis]):
        if abs(distance / width - round(distance / width)) > MISALIGNMENT:
            expected = f"cells that lie a whole number of cells from those of {query} with relative='table'"
            raise wrong_value("key_grid", key, expected)
    return width
