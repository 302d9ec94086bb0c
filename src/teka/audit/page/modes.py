"""What the ways of moving images are called on the page, and what happens at the edge in each."""

from teka.audit.movement import Movement

MODE_WORDS = {
    "circular": "What leaves at one side enters at the other.",
    "lossless": "Only background leaves the image, so that nothing of it is lost.",
    "zero": "What leaves is lost, and background enters.",
    "canvas": "The image lies on a larger canvas of its background and is moved over it, so that nothing is lost.",
    "reflect": "What leaves is lost, and a mirror image enters.",
    "crop": "The model sees a window of a larger image. The window is moved, so what enters was there before.",
    "fourier": "Moved by any fraction of a pixel by the Fourier transform; what leaves at one side enters at the "
    "other.",
    "bilinear": "Moved by any fraction of a pixel by linear interpolation, which blurs; what leaves at one side enters "
    "at the other.",
}


def mode_words(movement: Movement) -> str:
    """What happens at the edge, with the sizes and the background that matter.

    Args:
        movement: How the images were moved.
    """
    words = MODE_WORDS[movement.mode]
    if movement.mode in ("zero", "canvas", "lossless"):
        words += f" Background: {_written(movement.background)}."
    if movement.canvas_size is not None:
        words += f" Canvas: {_size(movement.canvas_size)} pixels."
    if movement.crop_size is not None:
        words += f" Window: {_size(movement.crop_size)} pixels."
    return words


def _written(background: float | int | tuple[float | int, ...]) -> str:
    values = background if isinstance(background, tuple) else (background,)
    return ", ".join(f"{value:g}" for value in values)


def _size(size: int | tuple[int, ...]) -> str:
    sides = size if isinstance(size, tuple) else (size, size)
    return " × ".join(map(str, sides))
