"""A picture file, decoded."""

import struct
from pathlib import Path
from typing import TYPE_CHECKING

from teka.errors import wrong_value
from teka.memory import LARGEST_IMAGE

if TYPE_CHECKING:
    from PIL.Image import Image


def open_picture(path: str | Path) -> "Image":
    """The pixels of a picture, upright as its camera noted it; of several frames the first.

    Args:
        path: The file, of any format that Pillow reads.

    Raises:
        ImportError: Pillow is not installed.
        ValueError: No such file, one that is no picture or is damaged, or one of more than 50 million pixels.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ImportError("pictures need Pillow, which is missing: pip install teka[train]") from error
    if not Path(path).is_file():
        raise wrong_value("picture", str(path), "an existing file")
    try:
        with Image.open(path) as opened:
            if opened.width * opened.height > LARGEST_IMAGE:
                came = f"{opened.height:,} × {opened.width:,} pixels"
                raise wrong_value(f"the size of {path}", came, f"at most {LARGEST_IMAGE:,} pixels")
            return ImageOps.exif_transpose(opened)
    except Image.DecompressionBombError as error:
        raise wrong_value(f"the size of {path}", "a bomb", f"at most {LARGEST_IMAGE:,} pixels ({error})") from error
    # What damaged files raise depends on their format.
    except (OSError, ValueError, SyntaxError, EOFError, LookupError, TypeError, struct.error, OverflowError) as error:
        raise ValueError(f"{path} is no picture that can be read: {error}") from error
