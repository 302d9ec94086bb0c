"""The table kernel: a learned number for every offset along every axis."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from teka.checks import check_tensor
from teka.errors import wrong_shape, wrong_value
from teka.functional.kernel import Kernel
from teka.functional.placement import Placement
from teka.functional.relative.base import SeparableRelative
from teka.functional.relative.drawable import DrawableRelative
from teka.grid import Grid

# Share of a cell by which two grids may miss each other.
MISALIGNMENT = 1e-6


@dataclass(frozen=True)
class Table(SeparableRelative, DrawableRelative):
    """log c = Σ_axis t_axis[Δ_axis]: in two dimensions row[Δ_y] + column[Δ_x], with Δ = x_i − x_j counted in cells.

    Beyond ±k cells the last entry holds. Offsets between cells have no entry, so it takes grids and no bare positions.

    Source: Ramachandran et al. 2019; Cordonnier et al. 2020, §4.3; the clipping is Shaw et al. 2018.

    Args:
        tables: t, entry k + Δ for an offset of Δ cells, shape (heads, axes, 2k + 1).
        spacing: Width of a cell along every axis in physical units, 1 if None; `on` takes the grid's.

    Raises:
        ValueError: Tables of another shape.
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
    def draw(cls, generator: Generator, *, heads: int, dim: int, num_axes: int, kernel: str | Kernel) -> "Table":
        """Entries ~ N(0, 1) for up to 3 cells."""
        return cls(torch.randn(heads, num_axes, 7, generator=generator, dtype=torch.float64))

    def check(self, *, heads: int, dim: int, num_axes: int, kernel: Kernel) -> None:
        """Check that there is a table for each of the heads and axes."""
        if tuple(self.tables.shape[:2]) != (heads, num_axes):
            expected = f"({heads}, {num_axes}, entries) for {heads} heads and positions of {num_axes} axes"
            raise wrong_shape("relative.tables", self.tables.shape, expected)

    def on(self, placement: Placement) -> "Table":
        """The kernel with cells as wide as the grid's, or as the finer one's of two.

        Raises:
            ValueError: Bare positions, or two grids whose cells are no whole number of cells apart.
        """
        if placement.grids is None:
            expected = "a grid, not bare positions, with relative='table', which counts cells"
            raise wrong_value("grid" if placement.query.grid is None else "key_grid", None, expected)
        query, key = placement.grids
        return Table(self.tables, tuple(_cell_width(query, key, axis) for axis in range(query.num_axes)))

    def axis_log_kernel(self, axis: int, offsets: Float[Tensor, "*pairs"]) -> Float[Tensor, "heads *pairs"]:
        """The entries for offsets along one axis."""
        spacing = 1.0 if self.spacing is None else self.spacing[axis]
        entry = torch.round(offsets / spacing).clamp(-self.max_offset, self.max_offset).long() + self.max_offset
        table = self.tables[:, axis].to(offsets)
        return table.index_select(1, entry.reshape(-1)).reshape(-1, *offsets.shape)


def _cell_width(query: Grid, key: Grid, axis: int) -> float:
    """Width of which the offset of every query's cell from every key's is a multiple."""
    # The spacing of a single cell separates nothing.
    steps = [grid.spacing[axis] for grid in (query, key) if grid.shape[axis] > 1] or [query.spacing[axis]]
    width = min(steps)
    for distance in (*steps, query.origin[axis] - key.origin[axis]):
        if abs(distance / width - round(distance / width)) > MISALIGNMENT:
            expected = f"cells that lie a whole number of cells from those of {query} with relative='table'"
            raise wrong_value("key_grid", key, expected)
    return width
