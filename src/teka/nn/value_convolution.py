"""A depthwise convolution of values over the grid, beside the attention."""

from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.functional import conv1d, conv2d, conv3d, pad

from teka.checks import is_whole
from teka.errors import wrong_shape, wrong_value
from teka.grid import Grid

CONVOLUTIONS = {1: conv1d, 2: conv2d, 3: conv3d}  # by the number of axes


class ValueConvolution(nn.Module):
    """Σ_t w_t v(x + t) over the cells t of a small cube, for every head and channel on its own.

    It depends on offsets alone, and costs O(L): what is near is added with full rank, where linear attention gives a
    mean. Around periodic axes values go on from the other side, beyond the others they are 0, and so are dropped ones.
    Offsets are counted in cells, whatever the grid's spacing. w = 0 at first, so that the layer begins as attention.

    Source: Han et al. 2023 (FLatten Transformer), with one kernel for each head instead of one for all.

    Args:
        heads: Number of heads.
        dim_head: Size of a head.
        side: Side of the cube in cells, an odd number.
        num_axes: Number of axes of the grids to come.

    Raises:
        ValueError: A side that is even or below 1, or a number of axes other than 1, 2 or 3.
    """

    equivariance: ClassVar[dict[str, str]] = {"shift": "exact"}

    def __init__(self, heads: int, dim_head: int, side: int, num_axes: int) -> None:
        super().__init__()
        if not is_whole(side) or side < 1 or side % 2 == 0:
            raise wrong_value("value_convolution", side, "None or an odd number of at least 1, the side in cells")
        if not is_whole(num_axes) or num_axes not in CONVOLUTIONS:
            raise wrong_value("num_axes", num_axes, "1, 2 or 3 with value_convolution")
        self.side = side
        self.weight = Parameter(torch.zeros(heads * dim_head, 1, *(side,) * num_axes))

    def forward(
        self,
        value: Float[Tensor, "batch heads tokens dim_head"],
        grid: Grid | None,
        num_prefix_tokens: int,
        key_mask: Bool[Tensor, "batch tokens"] | None,
    ) -> Float[Tensor, "batch heads tokens dim_head"]:
        """The convolved values; 0 for prefix tokens, which lie nowhere.

        Args:
            value: Values.
            grid: The grid of the tokens after the prefix.
            num_prefix_tokens: Number of first tokens without a position.
            key_mask: True where a token may be attended to.

        Raises:
            ValueError: No grid, or one that does not fit.
        """
        num_axes = self.weight.ndim - 2
        if grid is None or grid.num_axes != num_axes:
            raise wrong_value("grid", grid, f"a grid of {num_axes} axes for a layer with a value convolution")
        num_tokens = num_prefix_tokens + grid.num_tokens
        if value.shape[2] != num_tokens:
            expected = f"{num_prefix_tokens} prefix tokens and {grid.num_tokens} for a grid of {grid.shape}"
            raise wrong_value("the number of tokens", value.shape[2], expected)
        if key_mask is not None:
            if tuple(key_mask.shape) != (value.shape[0], num_tokens):
                raise wrong_shape("key_mask", key_mask.shape, f"({value.shape[0]}, {num_tokens})")
            value = value.masked_fill(~key_mask[:, None, :, None], 0.0)
        cells = value[:, :, num_prefix_tokens:].transpose(2, 3).flatten(1, 2).unflatten(2, grid.shape)
        around = self._surrounded(cells, grid)
        convolved = CONVOLUTIONS[num_axes](around, self.weight.to(cells.dtype), groups=self.weight.shape[0])
        tokens = convolved.flatten(2).unflatten(1, value.shape[1::2]).transpose(2, 3)
        return pad(tokens, (0, 0, num_prefix_tokens, 0))

    def _surrounded(self, cells: Tensor, grid: Grid) -> Tensor:
        """The cells with half a side more at either end of every axis."""
        margin = self.side // 2
        for axis, size in enumerate(grid.shape):
            if grid.axis_periodic(axis):
                places = torch.arange(-margin, size + margin, device=cells.device) % size
                cells = cells.index_select(2 + axis, places)
            else:
                cells = pad(cells, (0, 0) * (grid.num_axes - 1 - axis) + (margin, margin))
        return cells
