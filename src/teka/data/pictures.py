"""Picture files and whole levels: opening, reading and resizing them as Pillow does."""

import contextlib
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from teka.checks import check_dense, check_image_size, check_name, is_integer
from teka.errors import require, wrong_argument, wrong_shape, wrong_type, wrong_value
from teka.memory import MAX_IMAGE_PIXELS

if TYPE_CHECKING:
    from PIL.Image import Image

GROUNDS = ("auto", "dark", "light")
# The raster formats that are read. Pillow knows more, but some of them, such as PostScript, start other programs.
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "AVIF")
SUFFIXES = (
    ".png",
    ".jpg",
    ".jpeg",
    ".gif",
    ".bmp",
    ".tif",
    ".tiff",
    ".webp",
    ".ppm",
    ".pgm",
    ".pbm",
    ".avif",
)
_CHANNELS = {1: "L", 3: "RGB"}
_DEEP = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")
GRAY = ("1", "L", "LA", "La", *_DEEP)  # modes of Pillow that store no color


def open_picture(path: "str | Path | Image") -> "Image":
    """Return the pixels of a picture file or an open picture, rotated as its EXIF orientation says.

    Of a file with several frames it is the first.
    """
    require("PIL", "pictures need", "teka[train]")
    from PIL import Image, ImageOps

    if isinstance(path, Image.Image):
        return ImageOps.exif_transpose(path)
    with _reading(path), _open(path) as opened:
        width, height = opened.size
        picture = ImageOps.exif_transpose(opened) if width * height <= MAX_IMAGE_PIXELS else None
    if picture is None:
        came = f"{height:,} × {width:,} pixels"
        raise wrong_value(f"the size of {path}", came, f"at most {MAX_IMAGE_PIXELS:,} pixels")
    return picture


def read_header(path: "str | Path") -> tuple[str, int, int]:
    """Return the mode, height and width of a picture file without decoding its pixels."""
    require("PIL", "pictures need", "teka[train]")
    with _reading(path), _open(path) as opened:
        return opened.mode, opened.height, opened.width


@contextlib.contextmanager
def _open(path: "str | Path") -> "Iterator[Image]":
    from PIL import Image

    Image.init()  # a Pillow that was built without a format does not know its name
    formats = [name for name in FORMATS if name in Image.OPEN]
    # Pillow maps an uncompressed TIFF that it opens by its name into memory, and then misreads a rotated one.
    with Path(path).open("rb") as file, Image.open(file, formats=formats) as picture:
        yield picture


@contextlib.contextmanager
def _reading(path: "str | Path") -> Iterator[None]:
    """Raise a ValueError that names the file, whatever a missing or damaged file raises within."""
    from PIL import Image

    if not isinstance(path, (str, os.PathLike)):
        raise wrong_type("picture", path, "a path or a picture of Pillow")
    try:
        is_file = Path(path).is_file()
    except ValueError:  # a null character
        is_file = False
    if not is_file:
        raise wrong_value("picture", str(path), "an existing file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", Image.DecompressionBombWarning
            )  # the limit here is lower
            yield
    except Image.DecompressionBombError as error:
        raise wrong_argument(
            f"the size of {path}", "a bomb", f"at most {MAX_IMAGE_PIXELS:,} pixels ({error})"
        ) from error
    except Image.UnidentifiedImageError as error:
        raise ValueError(
            f"{path} is no picture that can be read, expected {', '.join(FORMATS)}"
        ) from error
    except Exception as error:  # what damaged files raise depends on their format
        raise ValueError(f"{path} is no picture that can be read: {error}") from error


def read_picture(
    path: "str | Path | Image", *, in_channels: int | None = 1, ground: str = "auto"
) -> UInt8[Tensor, "channels h w"]:
    """Return the levels 0 … 255 of a picture of any kind, in gray or RGB.

    All commands read pictures by this function:

    - The EXIF orientation is applied, and of several frames the first is taken.
    - Palettes, CMYK and YCbCr become RGB, and RGB becomes gray by Pillow's luminance.
    - Transparent pixels are blended with the ground.
    - 16-bit gray levels are divided by 257 and rounded; of 16-bit color Pillow keeps the high byte.
    - Floating-point levels are from 0 to 1, or from 0 to 255 if the largest is above 1.

    Args:
        path: The file, or a picture of Pillow.
        in_channels: 1 for gray, 3 for RGB, None for gray if the picture is stored without color, else RGB.
        ground: Color behind transparent pixels: "dark", "light", or with "auto" the one of the two that the visible
            pixels differ from more.
    """
    check_name("ground", ground, GROUNDS)
    if in_channels is not None and (not is_integer(in_channels) or in_channels not in _CHANNELS):
        raise wrong_value(
            "in_channels", in_channels, "1 or 3; a picture is gray or has three colors"
        )
    picture = open_picture(path)
    if in_channels is None:
        in_channels = 1 if picture.mode in GRAY else 3
    if picture.mode in _DEEP:
        levels = _to_bytes(np.asarray(picture), path)[..., None].repeat(in_channels, axis=2)
    else:
        if picture.has_transparency_data:
            picture = _over_ground(picture.convert("RGBA"), ground)
        try:
            levels = np.array(picture.convert(_CHANNELS[in_channels]))
        except ValueError as error:
            raise wrong_value(
                f"the pixel type of {path}", picture.mode, "one that becomes gray or RGB"
            ) from error
    return torch.from_numpy(np.atleast_3d(levels)).permute(2, 0, 1).contiguous()


def _to_bytes(levels: np.ndarray, path: object) -> np.ndarray:
    """Bytes of deeper levels: whole ones from 0 to 65,535, or floating point from 0 to 1 or to 255."""
    lowest, highest = float(levels.min()), float(levels.max())
    top = 65535.0 if levels.dtype.kind != "f" else 1.0 if highest <= 1 else 255.0
    if not (lowest >= 0 and highest <= top):
        raise wrong_argument(
            f"the levels of {path}", f"from {lowest:g} to {highest:g}", f"levels from 0 to {top:g}"
        )
    return np.rint(levels.astype(np.float64) * (255 / top)).astype(np.uint8)


def _over_ground(picture: "Image", ground: str) -> "Image":
    from PIL import Image

    if ground == "auto":
        opacity = np.asarray(picture)[..., 3].astype(np.float64)
        grey = np.asarray(picture.convert("RGB").convert("L")).astype(np.float64)
        ground = "light" if (grey * opacity).sum() / max(opacity.sum(), 1) < 128 else "dark"
    level = 255 if ground == "light" else 0
    under = Image.new("RGBA", picture.size, (level, level, level, 255))
    return Image.alpha_composite(under, picture).convert("RGB")


def resize_bilinear(
    images: Tensor, image_size: int | Sequence[int]
) -> UInt8[Tensor, "images channels rows columns"]:
    """Resize images bilinearly in whole levels by Pillow's `Image.resize(..., Resampling.BILINEAR)`, the width first.

    Along one axis of S pixels, new pixel i of S' is a weighted mean with the triangle filter, which widens with the
    reduction r = max(S / S', 1), so that shrinking averages:

        w_ij ∝ max(1 − |j + ½ − (i + ½) S / S'| / r, 0),   Σ_j w_ij = 1

    Levels 0 … 255, of images (N, C, H, W), are rounded after the width and again after the height. Pillow itself takes
    the height first where it shrinks more than the width, which moves some pixels by one level. torchvision's `Resize`
    of a PIL image is this function; `torch.nn.functional.interpolate` on bytes is not (off by up to 2 levels).

    Source: Horn et al. 2021, section 3 (images resized to 32×32); Pillow, src/libImaging/Resample.c.
    """
    check_dense("images", images)
    if images.ndim != 4:
        raise wrong_shape("images", images.shape, "(images, channels, height, width)")
    if images.dtype != torch.uint8:
        raise wrong_value("images.dtype", images.dtype, "torch.uint8")
    height, width = check_image_size("image_size", image_size)
    narrowed = _resize_rows(images, width)
    return _resize_rows(narrowed.transpose(2, 3), height).transpose(2, 3).contiguous()


def _resize_rows(images: UInt8[Tensor, "n c h w"], side: int) -> UInt8[Tensor, "n c h side"]:
    """Resize the last axis: all rows of all images are one picture of that width, which one call of Pillow resizes."""
    require("PIL", "resizing needs", "teka[train]")
    from PIL import Image

    rows = images.flatten(0, 2)
    if not len(rows):
        return images.new_empty((*images.shape[:3], side))
    resized = Image.fromarray(rows.cpu().numpy()).resize(
        (side, len(rows)), Image.Resampling.BILINEAR
    )
    return torch.from_numpy(np.array(resized)).to(images.device).unflatten(0, images.shape[:3])


def to_intensities(levels: UInt8[Tensor, "*shape"], highest: int = 255) -> Float[Tensor, "*shape"]:
    """Intensities in [0, 1]: level / highest, in float32."""
    return levels.to(torch.float32).div_(highest)
