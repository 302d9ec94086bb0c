"""A larger canvas around images, on which their content can move without leaving."""

from collections.abc import Sequence

from jaxtyping import Shaped
from torch import Tensor

from teka.audit.background import background_value, check_images
from teka.errors import wrong_value


def paste_on_canvas(
    images: Tensor, canvas_size: int | Sequence[int], background: float | Sequence[float] = 0.0
) -> Shaped[Tensor, "batch channels *sizes"]:
    """Images in the middle of a larger canvas of their background.

    Where a margin of M cells in all is odd, M // 2 of them lie before the image and the rest after it.

    Args:
        images: Images (B, C, *S).
        canvas_size: Size of the canvas, one number for each spatial axis or one for all.
        background: Value of the background: one, or one for each channel.

    Returns:
        The canvases (B, C, *canvas_size).

    Raises:
        ValueError: No spatial axis, a canvas smaller than the images, or not one size for each axis.
    """
    check_images(images)
    sizes = tuple(images.shape[2:])
    canvas = canvas_window(sizes, canvas_size)
    canvases = background_value(images, background).expand(*images.shape[:2], *canvas).clone()
    inside = tuple(
        slice((large - small) // 2, (large - small) // 2 + small) for large, small in zip(canvas, sizes, strict=True)
    )
    canvases[(slice(None), slice(None), *inside)] = images
    return canvases


def canvas_window(sizes: Sequence[int], canvas_size: int | Sequence[int]) -> tuple[int, ...]:
    """The size of the canvas, one number for each axis.

    Args:
        sizes: Spatial sizes of the images.
        canvas_size: Size of the canvas, one number for each axis or one for all.

    Raises:
        ValueError: Not one size for each axis, or one smaller than the images.
    """
    canvas = tuple(canvas_size) if isinstance(canvas_size, Sequence) else (canvas_size,) * len(sizes)
    if len(canvas) != len(sizes) or any(large < small for large, small in zip(canvas, sizes, strict=False)):
        raise wrong_value(
            "canvas_size", canvas_size, f"a size for each axis, none smaller than the images' {tuple(sizes)}"
        )
    return canvas
