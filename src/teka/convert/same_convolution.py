"""Which convolutions attention can be: of odd sides, with as many zeros around the grid as keep its size."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from teka.errors import wrong_value

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
CONVOLUTIONS: dict[int, Callable[..., Convolution]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def check_same_convolution(convolution: nn.Module) -> Convolution:
    """The convolution, if every output cell sees a window of odd sides about it, with zeros outside the grid.

    Args:
        convolution: Any module.

    Raises:
        ValueError: No torch.nn.Conv1d, Conv2d or Conv3d (nor a class derived from one, which may compute something
            else), an even kernel, a stride, groups, weights that are not real, or another padding.
    """
    # isinstance would let a derived class in, whose weights may mean something else.
    if type(convolution) not in CONVOLUTIONS.values():
        expected = "a torch.nn.Conv1d, Conv2d or Conv3d itself"
        raise wrong_value("convolution", type(convolution).__name__, expected)
    assert isinstance(convolution, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    if any(side % 2 == 0 for side in convolution.kernel_size):
        raise wrong_value("convolution.kernel_size", convolution.kernel_size, "odd sizes")
    if any(step != 1 for step in convolution.stride):
        raise wrong_value("convolution.stride", convolution.stride, "1 along every axis")
    if convolution.groups != 1:
        raise wrong_value("convolution.groups", convolution.groups, "1")
    if not convolution.weight.is_floating_point():
        raise wrong_value("convolution.weight.dtype", convolution.weight.dtype, "a real floating-point dtype")
    if convolution.padding_mode != "zeros":
        raise wrong_value("convolution.padding_mode", convolution.padding_mode, "'zeros'")
    if convolution.padding != "same" and tuple(convolution.padding) != window_reach(convolution):
        expected = f"'same', or {window_reach(convolution)} for this kernel"
        raise wrong_value("convolution.padding", convolution.padding, expected)
    return convolution


def window_reach(convolution: Convolution) -> tuple[int, ...]:
    """Cells from the middle of the window to its edge along every axis, (K − 1)/2 · dilation.

    Args:
        convolution: The convolution.
    """
    sides = zip(convolution.kernel_size, convolution.dilation, strict=True)
    return tuple(side // 2 * step for side, step in sides)


def offset_matrices(convolution: Convolution) -> Float[Tensor, "offsets out_channels in_channels"]:
    """The matrix W_h of every offset of the window, in row-major order, in float64.

    Args:
        convolution: The convolution.
    """
    return convolution.weight.detach().to(torch.float64).flatten(2).permute(2, 0, 1)
