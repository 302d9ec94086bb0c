"""Bilinear resizing in whole levels, as the authors of the papers did it."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from teka.data.sizes import height_and_width
from teka.errors import wrong_shape, wrong_value

_FRACTION = 2**22  # Pillow's fixed point for bytes: 32 bits less 8 for the level and 2 for the sum
_PLANES_AT_ONCE = 1024


def resize_bilinear(
    images: Tensor, image_size: int | Sequence[int]
) -> UInt8[Tensor, "images channels new_height new_width"]:
    """Resize images bilinearly, equal to Pillow's `Image.resize(..., Resampling.BILINEAR)` in every pixel.

    Along one axis of S pixels, new pixel i of S' is a weighted mean with the triangle filter, which widens with the
    reduction r = max(S / S', 1), so that shrinking averages:

        w_ij ∝ max(1 − |j + ½ − (i + ½) S / S'| / r, 0),   Σ_j w_ij = 1

    Weights are rounded to multiples of 2⁻²², and levels to whole ones after the width and again after the height.
    Newer versions of Pillow take the height first where it shrinks more than the width, which moves some pixels by
    one level; enlarging is the same in all. torchvision's `Resize` of a PIL image is this function of Pillow.
    `torch.nn.functional.interpolate` on bytes is not: its weights are coarser (off by up to 2 levels), and it is
    wrong or fails where an image becomes one pixel wide.

    Args:
        images: Levels 0 … 255, shape (N, C, H, W).
        image_size: New size in pixels, one side or (height, width).

    Raises:
        ValueError: Images of another rank or not of bytes, or a size that is not one or two whole numbers from 1.

    Source: Horn et al. 2021, section 3 (images resized to 32×32); Pillow, src/libImaging/Resample.c.
    """
    if images.ndim != 4:
        raise wrong_shape("images", images.shape, "(images, channels, height, width)")
    if images.dtype != torch.uint8:
        raise wrong_value("images.dtype", images.dtype, "torch.uint8")
    height, width = height_and_width("image_size", image_size)
    across = _weights(images.shape[3], width, images.device)
    down = _weights(images.shape[2], height, images.device)
    resized = images.new_empty((*images.shape[:2], height, width))
    planes, targets = images.flatten(0, 1), resized.flatten(0, 1)
    # A few at a time: float64 holds every product and sum exactly, but takes eight times the memory of the bytes.
    for plane, target in zip(planes.split(_PLANES_AT_ONCE), targets.split(_PLANES_AT_ONCE), strict=True):
        narrowed = _whole_levels(plane.to(torch.float64) @ across.T)
        target.copy_(_whole_levels(down @ narrowed))
    return resized


def _weights(old_side: int, new_side: int, device: torch.device) -> Float[Tensor, "new_side old_side"]:
    old = torch.arange(old_side, dtype=torch.float64, device=device) + 0.5
    new = torch.arange(new_side, dtype=torch.float64, device=device) + 0.5
    distance = (old - (new * (old_side / new_side))[:, None]).abs()
    triangle = (1 - distance / max(old_side / new_side, 1)).clamp(min=0)
    return (triangle / triangle.sum(dim=1, keepdim=True) * _FRACTION + 0.5).floor()


def _whole_levels(sums: Tensor) -> Tensor:
    # Half up, as the shift of an integer does, not half to even.
    return ((sums + _FRACTION // 2) / _FRACTION).floor().clamp(0, 255)
