"""Checks of whole numbers and image sizes."""

from collections.abc import Sequence

from teka.errors import wrong_value
from teka.memory import LARGEST_IMAGE


def whole_number(argument: str, value: object, *, smallest: int, largest: int | None = None) -> int:
    """The value, if it is a whole number in a range that includes both ends.

    Args:
        argument: The argument that was given the value.
        value: What was given.
        smallest: The smallest allowed.
        largest: The largest allowed; without it there is no limit.

    Raises:
        ValueError: Not an int, or out of range.
    """
    # A bool is an int to Python, but True is not a number of images.
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or value < smallest
        or (largest is not None and value > largest)
    ):
        span = f"of at least {smallest}" if largest is None else f"from {smallest} to {largest}"
        raise wrong_value(argument, value, f"a whole number {span}")
    return value


def height_and_width(argument: str, size: int | Sequence[int], *, smallest: int = 1) -> tuple[int, int]:
    """An image size as (height, width) in pixels; one int is a square.

    Args:
        argument: The argument that was given the size.
        size: What was given.
        smallest: The smallest allowed side.

    Raises:
        ValueError: Not one or two whole numbers, one that is too small, or more pixels than a picture may have.
    """
    sides = tuple(size) if isinstance(size, Sequence) else (size, size)
    whole = all(isinstance(side, int) and not isinstance(side, bool) for side in sides)
    if len(sides) != 2 or not whole or min(sides) < smallest:
        expected = f"one whole number or (height, width), each at least {smallest} pixels"
        raise wrong_value(argument, size, expected)
    if sides[0] * sides[1] > LARGEST_IMAGE:
        raise wrong_value(argument, size, f"at most {LARGEST_IMAGE:,} pixels")
    return sides[0], sides[1]
