"""The window of a larger image that a model sees, moved over the image so that its content moves."""

from collections.abc import Sequence

from jaxtyping import Shaped
from torch import Tensor

from teka.errors import wrong_value


def crop_window(sizes: Sequence[int], crop_size: int | Sequence[int]) -> tuple[int, ...]:
    """The size of the window, one number for each axis.

    Args:
        sizes: Spatial sizes of the images.
        crop_size: Size of the window, one number for each axis or one for all.

    Raises:
        ValueError: Not one size for each axis, one below 1, or one larger than the images.
    """
    window = tuple(crop_size) if isinstance(crop_size, Sequence) else (crop_size,) * len(sizes)
    if len(window) != len(sizes) or any(not 1 <= part <= side for part, side in zip(window, sizes, strict=False)):
        raise wrong_value(
            "crop_size", crop_size, f"a size of at least 1 for each axis, none larger than the images' {tuple(sizes)}"
        )
    return window


def check_room(sizes: Sequence[int], window: Sequence[int], shift: Sequence[int]) -> None:
    """Refuse a shift that would take the window over an edge of the images.

    With m = S − c cells of the image outside the window along an axis, m // 2 of them before it at shift zero, the
    shifts from −(m − m // 2) to m // 2 fit.

    Args:
        sizes: Spatial sizes S of the images.
        window: Size c of the window, one number for each axis.
        shift: One step for each axis, in cells.

    Raises:
        ValueError: The shift does not fit; the message names the axis and the shifts that do.
    """
    for axis, (side, part, step) in enumerate(zip(sizes, window, shift, strict=True)):
        start = (side - part) // 2
        if not start - (side - part) <= step <= start:
            raise wrong_value(
                "shift",
                tuple(shift),
                f"from {start - (side - part)} to {start} along axis {axis}, for crops of {part} from images of {side}",
            )


def crop(
    images: Shaped[Tensor, "batch channels *sizes"], window: Sequence[int], shift: Sequence[int]
) -> Shaped[Tensor, "batch channels *window"]:
    """The window that starts at cell (S − c) // 2 − s of every axis: in its frame, content moves by +s.

    Args:
        images: Images (B, C, *S).
        window: Size c of the window, one number for each axis.
        shift: One step s for each axis, in cells; `check_room` has passed it. Zero is the centre crop.

    Returns:
        New images (B, C, *window).
    """
    inside = images
    for axis, (part, step) in enumerate(zip(window, shift, strict=True)):
        inside = inside.narrow(axis + 2, (images.shape[axis + 2] - part) // 2 - step, part)
    return inside.clone()
