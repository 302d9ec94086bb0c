"""A picture file, decoded."""

from pathlib import Path
from typing import TYPE_CHECKING

from teka.errors import wrong_value

if TYPE_CHECKING:
    from PIL.Image import Image


def open_picture(path: str | Path) -> "Image":
    """The pixels of a picture, upright as its camera noted it; of several frames the first.

    Args:
        path: The file, of any format that Pillow reads.

    Raises:
        ImportError: Pillow is not installed.
        ValueError: No such file, or one that is no picture or is damaged.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ImportError("pictures need Pillow, which is missing: pip install teka[train]") from error
    if not Path(path).is_file():
        raise wrong_value("picture", str(path), "an existing file")
    try:
        with Image.open(path) as opened:
            return ImageOps.exif_transpose(opened)
    # What damaged files raise depends on their format.
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, TypeError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} is no picture that can be read: {error}") from error
