"""Depthwise convolution of the values of attention."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.functional import conv1d, conv2d, conv3d, pad

from teka.checks import check_tensor_sizes, is_integer
from teka.errors import wrong_value
from teka.functional.kernels.content_kernel import mask_features
from teka.functional.shapes import KeyMask, Values
from teka.grid import Grid

# Convolutions by the number of axes.
CONVOLUTIONS = {1: conv1d, 2: conv2d, 3: conv3d}
CONVOLUTION_MODULES = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


class ValueConvolution(nn.Module):
    """Depthwise convolution of the values on a grid, added to the output of attention heads.

        y(x) = Σ_t w_t v(x + t)

    Here v(x) is the value at position x, and t runs over a window with an odd number of positions
    along each axis. Each head and channel has its own weights w_t, which are 0 initially. Along
    periodic axes, the window wraps around. Along other axes, values outside the grid are 0. Masked
    values are 0, and so is the output for tokens without a position, such as a class token.

    Source: Han et al. 2023 (FLatten Transformer), with one kernel for each head.
    """

    equivariance: ClassVar[dict[str, str]] = {"shift": "exact"}

    def __init__(self, heads: int, dim_head: int, side: int, num_axes: int) -> None:
        super().__init__()
        if not is_integer(side) or side < 1 or side % 2 == 0:
            hint = "It is the side of the convolution kernel."
            raise wrong_value(
                "value_convolution", side, "None or an odd number of at least 1", hint
            )
        if not is_integer(num_axes) or num_axes not in CONVOLUTIONS:
            raise wrong_value("num_axes", num_axes, "1, 2 or 3 with value_convolution")
        check_tensor_sizes({"value_convolution": side}, heads * dim_head * side**num_axes)
        self.side = side
        self.weight = Parameter(torch.zeros(heads * dim_head, 1, *(side,) * num_axes))

    def forward(
        self, value: Values, grid: Grid | None, num_prefix_tokens: int, key_mask: KeyMask
    ) -> Values:
        """Convolve the values of all heads over the grid.

        Args:
            value: Values, shape (B, H, L, d).
            grid: Grid of the tokens after the prefix.
            num_prefix_tokens: Number of first tokens without a position.
            key_mask: True for tokens that may be attended to, shape (B, L), or None.

        Raises:
            ValueError: The grid is missing or has another number of axes.
        """
        num_axes = self.weight.ndim - 2
        if grid is None or grid.num_axes != num_axes:
            expected = f"a grid of {num_axes} axes for a layer with a value convolution"
            raise wrong_value("grid", grid, expected)
        value = mask_features(value, key_mask)
        channels = value[:, :, num_prefix_tokens:].transpose(2, 3).flatten(1, 2)
        cells = channels.unflatten(2, grid.shape)
        for axis, is_periodic in enumerate(grid.periodic, 2):
            cells = pad_axis(cells, axis, self.side // 2, periodic=is_periodic)
        weight = self.weight.to(cells.dtype)
        convolved = CONVOLUTIONS[num_axes](cells, weight, groups=len(weight))
        tokens = convolved.flatten(2).unflatten(1, value.shape[1::2]).transpose(2, 3)
        return pad(tokens, (0, 0, num_prefix_tokens, 0))


def pad_axis(
    cells: Float[Tensor, "batch channels *sides"], axis: int, margin: int, *, periodic: bool
) -> Float[Tensor, "batch channels *padded_sides"]:
    """Pad both ends of one axis of a grid: circularly if it is periodic, otherwise with zeros."""
    if not periodic:
        return pad(cells, [0, 0] * (cells.ndim - 1 - axis) + [margin, margin])
    # Circular padding cannot wrap around a small side more than once, so index instead.
    side = cells.shape[axis]
    indices = torch.arange(-margin, side + margin, device=cells.device) % side
    return cells.index_select(axis, indices)
