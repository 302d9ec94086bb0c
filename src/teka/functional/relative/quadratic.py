"""Position biases that are quadratic in the offset, and tables of learned position biases.

A quadratic bias is the logarithm of a Gaussian weight with a learned center and width. A table has
a learned entry for each offset.
"""

from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from teka._compat import replace
from teka.checks import check_tensor_sizes
from teka.errors import wrong_shape, wrong_value
from teka.functional.positions import Positions
from teka.functional.relative.stationary import (
    SeparableRelativeKernel,
    StationaryRelativeKernel,
    broadcast_per_head,
    look_up_entries,
)
from teka.functional.shapes import AxisOffsets, LogRelativePerHead, OffsetVectors
from teka.grid import Grid, wrap_offset

# Tolerance, in cells, for the alignment of two grids.
MAX_MISALIGNMENT = 1e-6
# Default size of a table: a window of 15 cells along each axis.
MAX_OFFSET = 7

Centered = TypeVar("Centered", bound="CenteredRelativeKernel")


@dataclass(frozen=True)
class CenteredRelativeKernel(StationaryRelativeKernel):
    """Base class of attention weights that are largest at a learned offset for each head.

    This offset of the key from the query is called the center.

    Args:
        center: Δ_h, key minus query, in physical units, shape (heads, axes).
    """

    center: Float[Tensor, "heads axes"]

    def adapt_to_positions(self: Centered, positions: Positions) -> Centered:
        return replace(self, periods=positions.periods)


@dataclass(frozen=True)
class QuadraticBias(CenteredRelativeKernel, SeparableRelativeKernel):
    """Position-dependent attention weight that is a Gaussian of the offset.

        log c = −α ‖(x_j − x_i) − Δ_h‖²

    Here x_i and x_j are the positions of query and key. Each head h learns the center Δ_h and the
    precision α. Along periodic axes the shorter distance counts.

    Source: Cordonnier et al. 2020, equation 9, with δ = x_j − x_i.

    >>> import torch, teka
    >>> center, precision = torch.tensor([[2.0]]), torch.tensor([50.0])
    >>> kernel = teka.functional.QuadraticBias(center, precision)
    >>> options = {"kernel": "constant", "relative": kernel, "grid": teka.Grid(5, periodic=True)}
    >>> value = torch.arange(5.0).view(1, 1, 5, 1)
    >>> teka.functional.attention(value, value, value, **options).flatten().round()
    tensor([2., 3., 4., 0., 1.])

    Args:
        center: Δ_h, key minus query, in physical units, shape (heads, axes).
        precision: α ≥ 0 in units of length^−2, shape (heads,).
        periods: Period of each axis in physical units, or None if the axis is not periodic.
            `adapt_to_positions` sets the periods of the grid.

    Raises:
        ValueError: If a precision is negative.
    """

    name = "quadratic"
    nonnegative_tensors = ("precision",)

    precision: Float[Tensor, "heads"]
    periods: tuple[float | None, ...] | None = None

    @classmethod
    def with_initial_parameters(cls, *, num_axes: int, heads: int) -> "QuadraticBias":
        """Create Gaussian position weights with random centers, for the start of training.

        Centers are normally distributed with standard deviation 2, and precisions are 1.

        Source: Cordonnier et al. 2020.
        """
        check_tensor_sizes({"num_axes": num_axes, "heads": heads})
        return cls(2 * torch.randn(heads, num_axes), torch.ones(heads))

    def axis_log_weights(self, axis: int, offsets: AxisOffsets) -> LogRelativePerHead:
        distance = offsets + broadcast_per_head(self.center[:, axis], offsets)
        if self.periods is not None:
            distance = wrap_offset(distance, self.periods[axis])
        return -broadcast_per_head(self.precision, offsets) * distance.square()


@dataclass(frozen=True)
class GeneralizedQuadraticBias(CenteredRelativeKernel):
    """Position-dependent attention weight that is a Gaussian of the offset with any covariance.

        log c = −½ ‖L (x_j − x_i − Δ_h)‖²

    Here x_i and x_j are the positions of query and key. Each head h learns the center Δ_h and the
    inverse covariance matrix LᵀL. Along periodic axes the shorter distance counts.

    Source: Cordonnier et al. 2020, equation 16.

    >>> import torch
    >>> from teka.functional import GeneralizedQuadraticBias
    >>> factor = torch.tensor([[[0.0, 0.0], [0.0, 2.0]]])  # any distance along the first axis
    >>> kernel = GeneralizedQuadraticBias(torch.zeros(1, 2), factor)
    >>> kernel.log_weight_at(torch.tensor([[0.0, 0.0], [9.0, 0.0], [0.0, 1.0]])).exp()
    tensor([[1.0000, 1.0000, 0.1353]])

    Args:
        center: Δ_h, key minus query, in physical units, shape (heads, axes).
        precision_factor: L in units of length^−1, shape (heads, axes, axes). It can be any square
            matrix.
        periods: As for `QuadraticBias`.
    """

    name = "generalized_quadratic"

    precision_factor: Float[Tensor, "heads axes axes"]
    periods: tuple[float | None, ...] | None = None

    @classmethod
    def with_initial_parameters(cls, *, num_axes: int, heads: int) -> "GeneralizedQuadraticBias":
        """Create Gaussian position weights with centers Δ_h ~ N(0, 2²) and identity matrices L."""
        sizes = {"num_axes": num_axes, "heads": heads}
        check_tensor_sizes(sizes)
        check_tensor_sizes(sizes, heads * num_axes**2)
        return cls(2 * torch.randn(heads, num_axes), torch.eye(num_axes).repeat(heads, 1, 1))

    def num_weight_matrix_passes(self, num_axes: int) -> int:
        # A product with a matrix and a sum of squares.
        return 3 + 25 * num_axes

    def log_weight_at(self, offsets: OffsetVectors) -> LogRelativePerHead:
        heads, num_axes = self.center.shape
        center = self.center.to(offsets).reshape(heads, *(1,) * (offsets.ndim - 1), num_axes)
        distance = offsets + center
        if self.periods is not None:
            axes = zip(distance.unbind(dim=-1), self.periods, strict=True)
            distance = torch.stack([wrap_offset(part, period) for part, period in axes], dim=-1)
        scaled = torch.einsum("hmn,h...n->h...m", self.precision_factor.to(offsets), distance)
        return scaled.square().sum(dim=-1) / -2


@dataclass(frozen=True)
class BiasTable(SeparableRelativeKernel):
    """Learned position biases, with one table for each axis that is indexed by the offset.

    The bias of the attention score is the sum of one table entry for each axis. On images it is
    row[Δ_y] + column[Δ_x], where the offset Δ is the position of the query minus that of the key.
    Offsets are counted in grid cells, and clipped to the range from −k to k. Tokens must be on a
    grid, because a fractional offset has no entry.

    Source: Ramachandran et al. 2019; Cordonnier et al. 2020, §4.3; Shaw et al. 2018 for the
    clipping.

    >>> import torch
    >>> from teka.functional import BiasTable
    >>> kernel = BiasTable(torch.tensor([[[-1.0, 0.0, 2.0]]]))  # for Δ = −1, 0 and 1
    >>> kernel.log_weight_at(torch.tensor([[-7.0], [-1.0], [0.0], [1.0], [7.0]]))
    tensor([[-1., -1.,  0.,  2.,  2.]])

    Args:
        tables: t with entry k + Δ for an offset of Δ cells, shape (heads, axes, 2k + 1).
        spacing: Width of a cell along each axis in physical units, or None for 1.
            `adapt_to_positions` sets the width of the cells of the grid.

    Raises:
        ValueError: `tables` has the wrong shape, or tokens have positions without a grid.
    """

    name = "table"
    example_sizes: ClassVar[dict[str, int]] = {"entries": 7}

    tables: Float[Tensor, "heads axes entries"]
    spacing: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tables.shape[-1] % 2 == 0:
            raise wrong_shape("tables", self.tables.shape, "(heads, axes, 2 max_offset + 1)")

    @property
    def max_offset(self) -> int:
        """Return k, the largest offset in cells that is not clipped."""
        return self.tables.shape[-1] // 2

    @classmethod
    def with_initial_parameters(
        cls, *, num_axes: int, heads: int, max_offset: int = MAX_OFFSET
    ) -> "BiasTable":
        """Create position biases of 0 for offsets of up to `max_offset` tokens along each axis."""
        check_tensor_sizes({"num_axes": num_axes, "heads": heads, "max_offset": max_offset})
        return cls(torch.zeros(heads, num_axes, 2 * max_offset + 1))

    def adapt_to_positions(self, positions: Positions) -> "BiasTable":
        """Return a copy of the table that counts offsets in steps between neighboring grid cells.

        If queries and keys have different grids, offsets are counted in steps of the finer grid.

        Raises:
            ValueError: If there are positions instead of a grid, or the cells of two grids are not
                aligned.
        """
        if positions.grids is None:
            argument = "grid" if positions.grid is None else "key_grid"
            raise wrong_value(argument, None, "a grid, not bare positions, with relative='table'")
        query, key = positions.grids
        spacing = tuple(_common_grid_spacing(query, key, axis) for axis in range(query.num_axes))
        return BiasTable(self.tables, spacing)

    def axis_log_weights(self, axis: int, offsets: AxisOffsets) -> LogRelativePerHead:
        spacing = 1.0 if self.spacing is None else self.spacing[axis]
        steps = torch.round(offsets / spacing).clamp(-self.max_offset, self.max_offset)
        return look_up_entries(self.tables[:, axis].to(offsets), steps.long() + self.max_offset)


def _common_grid_spacing(query_grid: Grid, key_grid: Grid, axis: int) -> float:
    """Return the spacing of the finer of two grids along one axis.

    Raises:
        ValueError: An offset between tokens of the grids is not a multiple of this spacing, so that
            it has no entry in a table of biases.
    """
    # The spacing of a single cell does not matter.
    spacings = [grid.spacing[axis] for grid in (query_grid, key_grid) if grid.shape[axis] > 1]
    width = min(spacings) if spacings else query_grid.spacing[axis]
    for distance in (*spacings, query_grid.origin[axis] - key_grid.origin[axis]):
        if abs(distance / width - round(distance / width)) > MAX_MISALIGNMENT:
            hint = "With relative='table', all offsets must be multiples of the grid spacing."
            raise wrong_value("key_grid", key_grid, f"aligned with {query_grid}", hint)
    return width
