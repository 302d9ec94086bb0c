import torch
from torch import Tensor, nn

CLASSES = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
# Different sides, some of them shorter than the largest kernels.
SHAPES = {1: (11,), 2: (7, 5), 3: (4, 5, 3)}


def draw_convolution(
    num_axes: int, kernel_size: int | tuple[int, ...], channels: tuple[int, int] = (3, 4), **options
):
    """Make a random convolution that keeps the size, by default in float64."""
    torch.manual_seed(1)
    options = {"padding": "same", "dtype": torch.float64, **options}
    return CLASSES[num_axes](*channels, kernel_size, **options).eval()


def draw_images(num_axes: int, channels: int = 3, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(2, channels, *SHAPES[num_axes], generator=generator, dtype=torch.float64).to(
        dtype
    )


def largest_difference(first: Tensor, second: Tensor) -> float:
    return float((first - second).detach().abs().max())
