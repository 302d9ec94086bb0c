"""The background of images: its value in their dtype, and how wide it is at each side."""

from collections.abc import Sequence

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from teka.errors import wrong_shape, wrong_value
from teka.grid import Grid


def check_images(images: Tensor) -> None:
    """Refuse what is no batch of images (B, C, *S) with real values.

    Raises:
        ValueError: No spatial axis, no channel, no cell, or complex values; an empty batch is sound.
    """
    if images.ndim < 3 or 0 in images.shape[1:]:
        raise wrong_shape("images", images.shape, "(batch, channels, one or more spatial sizes), none of them empty")
    if torch.is_complex(images):
        raise wrong_value("images.dtype", images.dtype, "a real dtype")


def background_value(images: Shaped[Tensor, "batch channels *sizes"], background: float | Sequence[float]) -> Tensor:
    """The background as a tensor of the images' dtype and device that broadcasts over them.

    Args:
        images: Images (B, C, *S), of which the channels, dtype and device are used.
        background: One value, or one for each channel.

    Raises:
        ValueError: Not one value or one for each channel, not finite, or no value of the images' integer dtype.
    """
    values = torch.as_tensor(background, dtype=torch.float64)
    if values.ndim and tuple(values.shape) != (images.shape[1],):
        raise wrong_value("background", background, f"one value, or one for each of the {images.shape[1]} channels")
    if not values.isfinite().all():
        raise wrong_value("background", background, "finite values")
    cast = values.to(images.dtype)
    if not images.is_floating_point() and not torch.equal(cast.to(values.dtype), values):
        raise wrong_value("background", background, f"values that {images.dtype} holds")
    # One axis for each axis of the images, so that a value for each channel meets its channel.
    return cast.to(images.device).reshape((1, -1) + (1,) * (images.ndim - 2))


def blank_margins(images: Tensor, background: float | Sequence[float] = 0.0) -> Int[Tensor, "batch axes sides"]:
    """Cells of background before the first and after the last cell with content, along every spatial axis.

    Args:
        images: Images (B, C, *S).
        background: Value of the background, compared exactly: one value, or one for each channel.

    Returns:
        Margins (B, n, 2) in cells: before and after. Of an image that is all background, both are the whole size.

    Raises:
        ValueError: What `check_images` refuses, or a background that is not one value or one for each channel, or not
            finite.
    """
    check_images(images)
    occupied = (images != background_value(images, background)).any(dim=1)
    margins = []
    for axis in range(occupied.ndim - 1):
        line = occupied.movedim(axis + 1, 1).unsqueeze(-1).flatten(2).any(dim=2)
        # argmax gives the first of equal values, here the first cell with content.
        sides = torch.stack([side.to(torch.uint8).argmax(dim=1) for side in (line, line.flip(1))], dim=-1)
        margins.append(torch.where(line.any(dim=1, keepdim=True), sides, line.shape[1]))
    return torch.stack(margins, dim=1)


def check_lossless(grid: Grid, margins: Int[Tensor, "batch axes sides"], shift: tuple[int, ...]) -> None:
    """Refuse a shift that pushes anything but background over an edge.

    Args:
        grid: The canvas.
        margins: What `blank_margins` gives, (B, n, 2).
        shift: One step for each axis, in cells.

    Raises:
        ValueError: Content would leave; the message names the axes and how many images lose pixels.
    """
    losses = []
    for axis, step in enumerate(shift):
        margin = margins[:, axis, 1 if step > 0 else 0]
        losing = int((margin < abs(step)).sum())
        if losing:
            losses.append(f"along axis {axis} (size {grid.shape[axis]}) {losing} of {len(margin)} images lose pixels")
    if losses:
        raise wrong_value("shift", shift, f"one that moves only background over the edge; {', '.join(losses)}")
