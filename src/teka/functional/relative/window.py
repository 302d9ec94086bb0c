"""Local-window attention with learned position biases."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor
from torch.nn.functional import pad

from teka._compat import replace
from teka.checks import POSITIVE_NUMBER, check_dtype, check_sizes, check_tensor_sizes, is_positive
from teka.errors import wrong_shape, wrong_value
from teka.functional.backends.costs import AttentionSizes, Cost, window_cost
from teka.functional.backends.dense import dense_attention
from teka.functional.backends.local_window import Tiling, window_attention
from teka.functional.kernels.content_kernel import DenseAttentionInputs
from teka.functional.positions import Positions, round_to_steps
from teka.functional.relative.relative_kernel import check_num_axes, has_spacing
from teka.functional.relative.stationary import StationaryRelativeKernel, look_up_entries
from teka.functional.shapes import (
    LogRelativePerHead,
    LogRelativeRows,
    OffsetVectors,
    Outputs,
    Queries,
)

# Windows of 7 × 7 cells, as in Hassani et al. 2023.
MAX_DISTANCE = 3
# A tensor has at most 64 dimensions.
MAX_AXES = 62


@dataclass(frozen=True)
class WindowBias(StationaryRelativeKernel):
    """Local-window attention (neighborhood attention) with learned position biases.

    Each query attends only to keys in a window of r tokens in every direction along each axis. The
    attention weight of a key at the offset Δ is multiplied by exp(b[Δ]) with the learned bias b.
    Attention with L tokens on n axes takes O(L · (2r + 1)ⁿ) operations. If a query has no key in
    its window, because the grids are different or keys are masked, its output is 0.

    Source: Ramachandran et al. 2019; Hassani et al. 2023 (neighborhood attention). There, windows
    at the edge of a grid move inward, which is not equivariant. Here they are cut off.

    >>> import torch, teka
    >>> value = torch.tensor([0.0, 3.0, 0.0, 0.0, 9.0]).view(1, 1, 5, 1)
    >>> window = teka.functional.WindowBias(torch.zeros(1, 3))  # a moving average with r = 1
    >>> options = {"kernel": "constant", "relative": window, "grid": teka.Grid(5)}
    >>> teka.functional.attention(value, value, value, **options).flatten()
    tensor([1.5000, 1.0000, 1.0000, 3.0000, 4.5000])

    Args:
        bias: b with entry r + Δ along each axis for an offset of Δ cells, shape (heads, 2r + 1, …,
            2r + 1), with r ≥ 1.
        unit: Width of a cell > 0 in physical units. Offsets are rounded to whole cells.

    Raises:
        ValueError: If an argument is out of range.
    """

    name = "window"

    bias: Float[Tensor, "heads *entries"]
    unit: float = 1.0

    def __post_init__(self) -> None:
        check_dtype("bias", self.bias)
        sides = set(map(int, self.bias.shape[1:]))
        if len(sides) != 1 or min(sides) < 3 or min(sides) % 2 == 0:
            hint = "The window must have the same width along all axes and reach at least 1 token."
            raise wrong_shape("bias", self.bias.shape, "(heads, 2 reach + 1, …)", hint)
        if not is_positive(self.unit):
            raise wrong_value("unit", self.unit, POSITIVE_NUMBER)

    @classmethod
    def with_initial_parameters(
        cls, *, num_axes: int, heads: int, max_distance: int = MAX_DISTANCE
    ) -> "WindowBias":
        """Create position biases of 0 for a window of `max_distance` cells in each direction."""
        sizes = {"num_axes": num_axes, "heads": heads, "max_distance": max_distance}
        check_sizes(sizes)
        check_sizes({"num_axes": num_axes}, most=MAX_AXES)
        check_tensor_sizes(sizes, heads * (2 * max_distance + 1) ** num_axes)
        return cls(torch.zeros(heads, *[2 * max_distance + 1] * num_axes))

    @classmethod
    def make_random_example(
        cls, generator: Generator, *, heads: int, num_axes: int, **sizes: Any
    ) -> "WindowBias":
        """Create random position biases for a window of 2 cells in each direction."""
        return cls(torch.randn(heads, *[5] * num_axes, generator=generator, dtype=torch.float64))

    @property
    def reach(self) -> int:
        """Largest offset from a query to a key within its window, in cells along each axis."""
        return self.bias.shape[-1] // 2

    def check_kernel_and_positions(self, *, heads: int, num_axes: int, **others: Any) -> None:
        check_num_axes("bias", self.bias, self.bias.ndim - 1, num_axes)
        if self.bias.shape[0] != heads:
            raise wrong_shape(
                "relative.bias", self.bias.shape, f"({heads}, 2 reach + 1, …) for {heads} heads"
            )

    def is_in_window(self, offsets: OffsetVectors) -> Bool[Tensor, "*pairs"]:
        """Return a mask that is True for the offsets of keys within the window of the query."""
        return (round_to_steps(offsets, self.unit).abs() <= self.reach).all(dim=-1)

    def biases_at_offsets(self, offsets: OffsetVectors) -> LogRelativePerHead:
        """Return the learned position bias for each offset between a query and a key.

        Offsets outside the window are clipped to its edge.
        """
        steps = round_to_steps(offsets, self.unit).clamp(-self.reach, self.reach)
        entries = (steps + self.reach).long()
        index = entries[..., 0]
        for axis in range(1, offsets.shape[-1]):
            index = index * self.bias.shape[-1] + entries[..., axis]
        return look_up_entries(self.bias.to(offsets).flatten(1), index)

    def log_weight_at(self, offsets: OffsetVectors) -> LogRelativePerHead:
        return self.biases_at_offsets(offsets).masked_fill(~self.is_in_window(offsets), -torch.inf)

    def num_weight_matrix_passes(self, num_axes: int) -> int:
        # The entry of an offset and a table lookup for each axis.
        return 3 + 10 * num_axes

    def dense_attention(self, inputs: DenseAttentionInputs, positions: Positions) -> Outputs:
        first = positions.num_prefix_tokens
        is_in_window = self.is_in_window(positions.pairwise_offsets(inputs.query))
        is_in_window = pad(is_in_window, (first, 0, first, 0), value=True)
        mask = is_in_window[None, None] if is_in_window.ndim == 2 else is_in_window[:, None]
        return dense_attention(
            replace(inputs, window_mask=mask),
            lambda query, rows: self.log_weight_rows(query, positions, rows, scale=inputs.scale),
        )

    def log_weight_rows_without_prefix(
        self, query: Queries, positions: Positions, rows: slice, *, scale: float
    ) -> LogRelativeRows:
        bias = self.biases_at_offsets(positions.pairwise_offsets(query, rows))
        return bias.transpose(0, 1) if bias.ndim == 4 else bias[None]

    def estimate_costs(self, sizes: AttentionSizes, positions: Positions) -> dict[str, Cost]:
        # The rounding error of a Fourier transform is relative to the largest sum, so that keys
        # beyond the window would have a small weight.
        return {}

    def window_cost(
        self, positions: Positions, inner_product_size: int, dim_value: int
    ) -> Cost | None:
        grid = positions.shared_grid
        if grid is None or not has_spacing(grid, self.unit):
            return None
        axes = zip(grid.shape, grid.periodic, strict=True)
        if any(is_periodic and side <= 2 * self.reach for side, is_periodic in axes):
            return None
        return window_cost(Tiling(grid, self.reach), inner_product_size, dim_value)

    def local_attention(self, inputs: DenseAttentionInputs, positions: Positions) -> Outputs:
        assert positions.grid is not None
        tiling = Tiling(positions.grid, self.reach)
        offsets = tiling.query_key_offsets(inputs.query)
        relative = self.biases_at_offsets(offsets), self.is_in_window(offsets)
        return window_attention(inputs, tiling, positions.num_prefix_tokens, *relative)
