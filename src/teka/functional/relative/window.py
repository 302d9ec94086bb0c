"""Windows: a query sees the keys that are near along every axis, and no others."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor
from torch.nn.functional import pad

from teka._compat import replace
from teka.checks import POSITIVE_NUMBER, check_dtype, check_sizes, check_tensor_sizes, is_positive
from teka.errors import wrong_shape, wrong_value
from teka.functional.backends import Cost
from teka.functional.backends.dense import matrix_attention
from teka.functional.backends.linear import Sizes
from teka.functional.backends.local_window import Tiling, window_attention, window_cost
from teka.functional.kernels.base import DenseInputs, Kernel
from teka.functional.positions import Positions, whole_steps, wrong_axes
from teka.functional.relative.stationary import StationaryRelative
from teka.functional.shapes import (
    LogRelativePerHead,
    LogRelativeRows,
    OffsetVectors,
    Outputs,
    Queries,
)

MAX_DISTANCE = 3  # windows of 7 × 7 cells, as in Hassani et al. 2023
MAX_AXES = 62  # a tensor of PyTorch has up to 64 dimensions


@dataclass(frozen=True)
class Window(StationaryRelative):
    """c(Δ) = exp(b[Δ]) for offsets of at most r cells along every axis, and 0 beyond: O(L · (2r + 1)ⁿ) for any kernel.

    A query without a key in its window, as between two grids or beside masked keys, gives 0. Source: Ramachandran et
    al. 2019; Hassani et al. 2023 (neighbourhood attention), whose windows at an edge move inwards, which is not
    equivariant, and here are cut.

    >>> import torch, teka
    >>> value = torch.tensor([0.0, 3.0, 0.0, 0.0, 9.0]).view(1, 1, 5, 1)
    >>> window = teka.functional.Window(torch.zeros(1, 3))  # r = 1, without a bias: a moving average
    >>> options = {"kernel": "constant", "relative": window, "grid": teka.Grid(5)}
    >>> teka.functional.attention(value, value, value, **options).flatten()
    tensor([1.5000, 1.0000, 1.0000, 3.0000, 4.5000])

    Args:
        bias: b, entry r + Δ along every axis for an offset of Δ cells, shape (heads, 2r + 1, …, 2r + 1), r ≥ 1.
        unit: Width of a cell in physical units, above 0; an offset is rounded to a whole number of them.
    """

    name: ClassVar[str] = "window"

    bias: Float[Tensor, "heads *entries"]
    unit: float = 1.0

    def __post_init__(self) -> None:
        check_dtype("bias", self.bias)
        sides = set(map(int, self.bias.shape[1:]))
        if len(sides) != 1 or min(sides) < 3 or min(sides) % 2 == 0:
            raise wrong_shape(
                "bias",
                self.bias.shape,
                "(heads, 2 reach + 1, …), one for each axis, reach at least 1",
            )
        if not is_positive(self.unit):
            raise wrong_value("unit", self.unit, POSITIVE_NUMBER)

    @classmethod
    def initial(cls, *, num_axes: int, heads: int, max_distance: int = MAX_DISTANCE) -> "Window":
        """A bias of 0 for a reach of `max_distance` cells."""
        sizes = {"num_axes": num_axes, "heads": heads, "max_distance": max_distance}
        check_sizes(sizes)
        check_sizes({"num_axes": num_axes}, most=MAX_AXES)
        check_tensor_sizes(sizes, heads * (2 * max_distance + 1) ** num_axes)
        return cls(torch.zeros(heads, *[2 * max_distance + 1] * num_axes))

    @classmethod
    def draw(
        cls, generator: Generator, *, heads: int, dim: int, num_axes: int, kernel: str | Kernel
    ) -> "Window":
        """b ~ N(0, 1) of a reach of 2 cells."""
        return cls(torch.randn(heads, *[5] * num_axes, generator=generator, dtype=torch.float64))

    @property
    def reach(self) -> int:
        """r, the last offset in cells along an axis that is seen."""
        return self.bias.shape[-1] // 2

    def check(self, *, heads: int, dim: int, num_axes: int, kernel: Kernel) -> None:
        if self.bias.ndim != 1 + num_axes:
            raise wrong_axes("bias", self.bias, self.bias.ndim - 1, num_axes)
        if self.bias.shape[0] != heads:
            raise wrong_shape(
                "relative.bias", self.bias.shape, f"({heads}, 2 reach + 1, …) for {heads} heads"
            )

    def within(self, offsets: OffsetVectors) -> Bool[Tensor, "*pairs"]:
        """Whether offsets are within the window."""
        return (whole_steps(offsets, self.unit).abs() <= self.reach).all(dim=-1)

    def bias_at(self, offsets: OffsetVectors) -> LogRelativePerHead:
        """b at offsets, beyond the window that at its edge."""
        entries = (
            whole_steps(offsets, self.unit).clamp(-self.reach, self.reach) + self.reach
        ).long()
        place = entries[..., 0]
        for axis in range(1, offsets.shape[-1]):
            place = place * self.bias.shape[-1] + entries[..., axis]
        table = self.bias.to(offsets).flatten(1)
        return table.index_select(1, place.flatten()).reshape(len(table), *place.shape)

    def log_at(self, offsets: OffsetVectors) -> LogRelativePerHead:
        return self.bias_at(offsets).masked_fill(~self.within(offsets), -torch.inf)

    def pair_passes(self, num_axes: int) -> int:
        """An entry and a look into a table for every axis."""
        return 10 * num_axes

    def dense(self, pairs: DenseInputs, positions: Positions) -> Outputs:
        """From the matrix of weights, of which those beyond the window are dropped as those of masked keys are."""
        first, within = (
            positions.num_prefix_tokens,
            self.within(positions.offsets_like(pairs.query)),
        )
        within = pad(within, (first, 0, first, 0), value=True)
        pairs = replace(
            pairs, window_mask=within[None, None] if within.ndim == 2 else within[:, None]
        )
        return matrix_attention(
            pairs, lambda query, rows: self.log_rows(query, positions, rows, scale=pairs.scale)
        )

    def log_placed_rows(
        self, query: Queries, positions: Positions, rows: slice, *, scale: float
    ) -> LogRelativeRows:
        bias = self.bias_at(positions.offsets_like(query, rows))
        return bias.transpose(0, 1) if bias.ndim == 4 else bias[None]

    def costs(self, sizes: Sizes, positions: Positions) -> dict[str, Cost]:
        """None: a transform rounds by a share of the largest sum, and beyond the window nothing is to be seen."""
        return {}

    def window_cost(self, positions: Positions, dense_size: int, dim_value: int) -> Cost | None:
        """On one grid whose cells are a unit apart, and which no window wraps around."""
        grid = positions.shared_grid
        if grid is None or any(abs(step - self.unit) > 1e-9 * self.unit for step in grid.spacing):
            return None
        wrapped = [
            side for side, is_periodic in zip(grid.shape, grid.periodic, strict=True) if is_periodic
        ]
        if wrapped and min(wrapped) <= 2 * self.reach:
            return None
        return window_cost(Tiling(grid, self.reach), dense_size, dim_value)

    def local_attention(self, pairs: DenseInputs, positions: Positions) -> Outputs:
        assert positions.grid is not None
        tiling = Tiling(positions.grid, self.reach)
        offsets = tiling.offsets(pairs.query)
        relative = self.bias_at(offsets), self.within(offsets)
        return window_attention(pairs, tiling, positions.num_prefix_tokens, *relative)
