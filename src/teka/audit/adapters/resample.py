"""Resizing intensities as pictures are resized, by the kernels of Pillow, in floating point and with gradients."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from teka.checks import height_and_width
from teka.errors import unknown_name, wrong_shape, wrong_value

# Half the width of each kernel, in new pixels where the image shrinks.
SUPPORTS = {"box": 0.5, "bilinear": 1.0, "hamming": 1.0, "bicubic": 2.0, "lanczos": 3.0}
RESAMPLINGS = ("nearest", *SUPPORTS)


def resample(
    images: Tensor, image_size: int | Sequence[int], resampling: str = "bilinear"
) -> Float[Tensor, "images channels new_height new_width"]:
    """Resize images of intensities in [0, 1].

    Along an axis of S pixels, new pixel i of S' is a weighted mean by the kernel K, which widens with the reduction
    r = max(S / S', 1):

        w_ij ∝ K((j + ½ − (i + ½) S / S') / r),   Σ_j w_ij = 1

    K is the box, the triangle (bilinear), Hamming's window times sinc, the cubic with a = −½, or Lanczos' with three
    lobes; "nearest" takes the pixel that (i + ½) S / S' lies in. After each axis, what an overshooting kernel drives
    out of [0, 1] is cut off, as bytes cut it off. Nothing is rounded: from Pillow on bytes it differs by about a level.

    Args:
        images: Floating point intensities, shape (N, C, H, W).
        image_size: New size in pixels, one side or (height, width).
        resampling: A name of `RESAMPLINGS`.

    Raises:
        ValueError: Images of another rank or not of floating point, an impossible size, or an unknown name.

    Source: Pillow, src/libImaging/Resample.c.
    """
    if images.ndim != 4:
        raise wrong_shape("images", images.shape, "(images, channels, height, width)")
    if not images.is_floating_point():
        raise wrong_value("images.dtype", images.dtype, "a floating point type")
    if resampling not in RESAMPLINGS:
        raise unknown_name("resampling", resampling, RESAMPLINGS)
    height, width = height_and_width("image_size", image_size)
    if resampling == "nearest":
        rows, columns = (_nearest(images.shape[axis], side) for axis, side in ((2, height), (3, width)))
        return images[:, :, rows.to(images.device)][..., columns.to(images.device)]
    # An axis that keeps its size keeps its pixels, whatever the kernel.
    if width != images.shape[3]:
        images = (images @ _weights(images.shape[3], width, resampling).to(images).T).clamp(0, 1)
    if height != images.shape[2]:
        images = (_weights(images.shape[2], height, resampling).to(images) @ images).clamp(0, 1)
    return images


def _nearest(old_side: int, new_side: int) -> Tensor:
    return ((torch.arange(new_side, dtype=torch.float64) + 0.5) * (old_side / new_side)).floor().to(torch.int64)


def _weights(old_side: int, new_side: int, resampling: str) -> Float[Tensor, "new_side old_side"]:
    old = torch.arange(old_side, dtype=torch.float64) + 0.5
    new = torch.arange(new_side, dtype=torch.float64) + 0.5
    places = (old - (new * (old_side / new_side))[:, None]) / max(old_side / new_side, 1)
    weights = _kernel(places, resampling)
    return weights / weights.sum(dim=1, keepdim=True)


def _kernel(places: Tensor, resampling: str) -> Tensor:
    distance = places.abs()
    if resampling == "box":
        values = ((places > -0.5) & (places <= 0.5)).to(places.dtype)
    elif resampling == "bilinear":
        values = 1 - distance
    elif resampling == "hamming":
        values = torch.sinc(places) * (0.54 + 0.46 * torch.cos(math.pi * places))
    elif resampling == "bicubic":
        inner = (1.5 * distance - 2.5) * distance**2 + 1
        outer = ((distance - 5) * distance + 8) * distance * -0.5 + 2
        values = torch.where(distance < 1, inner, outer)
    else:
        values = torch.sinc(places) * torch.sinc(places / 3)
    return torch.where(distance <= SUPPORTS[resampling], values, 0.0)
