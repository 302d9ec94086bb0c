"""Reading and resizing of picture files with Pillow."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from teka.checks import check_dense_tensor, check_image_size, check_name, check_path, is_integer
from teka.errors import first_line_of_error, require, wrong_argument, wrong_value
from teka.memory import MAX_IMAGE_PIXELS

if TYPE_CHECKING:
    from PIL.Image import Image

# Pillow knows more formats, but some of them, such as PostScript, start other programs.
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
_MODES = {1: "L", 3: "RGB"}  # Pillow's mode for a number of channels
_DEEP_MODES = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")
GRAY_MODES = ("1", "L", "LA", "La", *_DEEP_MODES)


@contextlib.contextmanager
def open_picture(picture: "str | Path | Image") -> "Iterator[Image]":
    """Open a picture file with Pillow, as a context manager that yields the Pillow image.

    Errors in the context become a ValueError that names the file. If `picture` is already a Pillow
    image, the context manager yields it unchanged. The first of several frames is read.

    Args:
        picture: Path of a file, or a Pillow image.

    Raises:
        ValueError: The file is missing, damaged, too large or not in one of the `FORMATS`.
    """
    require("PIL", "pictures need", "teka[train]")
    from PIL import Image, UnidentifiedImageError

    if isinstance(picture, Image.Image):
        yield picture
        return
    path = check_path("picture", picture)
    if not path.is_file():
        hint = f"To read a folder, pass its files, such as {path}/*." if path.is_dir() else ""
        raise wrong_value("picture", str(path), "an existing file", hint)
    Image.init()  # a Pillow that was built without a format does not know its name
    formats = [name for name in FORMATS if name in Image.OPEN]
    try:
        # Pillow maps an uncompressed TIFF that it opens by its name into memory, and then misreads
        # a rotated one.
        with path.open("rb") as file, Image.open(file, formats=formats) as opened:
            if opened.height * opened.width > MAX_IMAGE_PIXELS:
                raise Image.DecompressionBombError(f"more than {MAX_IMAGE_PIXELS:,} pixels")
            yield opened
    except Exception as error:  # the kind of error of a damaged file depends on its format
        reason = first_line_of_error(error)
        if isinstance(error, UnidentifiedImageError):
            reason = "a damaged file or another format"  # Pillow names its internal file object
        raise wrong_argument(
            str(path),
            reason,
            f"a readable picture of at most {MAX_IMAGE_PIXELS:,} pixels",
            f"The formats are {', '.join(FORMATS)}.",
        ) from error


def read_picture_header(path: "str | Path") -> tuple[str, int, int]:
    """Return the Pillow mode, the height and the width of a picture file.

    This is fast, because only the header is read and no pixels are decoded.
    """
    with open_picture(path) as opened:
        return opened.mode, opened.height, opened.width


def read_picture(
    picture: "str | Path | Image", *, in_channels: int = 1, ground: str = "auto"
) -> UInt8[Tensor, "channels height width"]:
    """Read a picture file as a uint8 tensor of gray or RGB levels.

    All commands read image files with this function:

    - The EXIF orientation is applied. If a file has several frames, the first frame is read.
    - Palettes, CMYK and YCbCr become RGB. Pillow's luminance converts RGB to gray.
    - Transparent pixels are blended with a dark or light background.
    - 16-bit gray levels are divided by 257 and rounded. Pillow keeps the high byte of 16-bit color.
    - Floating-point levels are from 0 to 1, or from 0 to 255 if the largest level is above 1.

    Args:
        picture: Path of a file, or a Pillow image.
        in_channels: 1 for gray or 3 for RGB.
        ground: Background behind transparent pixels: "dark", "light", or "auto", which selects the
            background that differs more from the visible pixels.

    Raises:
        ValueError: The file cannot be read, or its pixels cannot be converted.
    """
    check_name("ground", ground, ("auto", "dark", "light"))
    if not is_integer(in_channels) or in_channels not in _MODES:
        raise wrong_value("in_channels", in_channels, "1 for gray or 3 for RGB")
    operations = require("PIL.ImageOps", "pictures need", "teka[train]")
    with open_picture(picture) as opened:
        upright = operations.exif_transpose(opened)
    mode = upright.mode
    if mode in _DEEP_MODES:
        levels = _rescale_to_uint8(np.asarray(upright), picture)[..., None].repeat(
            in_channels, axis=2
        )
    else:
        if upright.has_transparency_data:
            upright = _blend_with_ground(upright.convert("RGBA"), ground)
        try:
            levels = np.array(upright.convert(_MODES[in_channels]))
        except ValueError as error:
            raise wrong_value(
                f"the mode of {picture}", mode, "a mode that Pillow converts to gray or RGB"
            ) from error
    return torch.from_numpy(np.atleast_3d(levels)).permute(2, 0, 1).contiguous()


def _rescale_to_uint8(levels: np.ndarray, picture: object) -> np.ndarray:
    """Convert the gray levels of a 16-bit or floating-point picture to levels from 0 to 255.

    Integers are on a scale from 0 to 65,535. Floating-point levels are on a scale from 0 to 255 if
    one of them is above 1, and from 0 to 1 otherwise.

    Args:
        levels: Gray levels of the pixels.
        picture: The file, for the error message.
    """
    lowest = float(levels.min())
    highest = float(levels.max())
    top = 65535.0
    if levels.dtype.kind == "f":
        top = 1.0 if highest <= 1 else 255.0
    if not (lowest >= 0 and highest <= top):
        raise wrong_argument(
            f"the levels of {picture}", f"from {lowest:g} to {highest:g}", f"from 0 to {top:g}"
        )
    return np.rint(levels.astype(np.float64) * (255 / top)).astype(np.uint8)


def _blend_with_ground(picture: "Image", ground: str) -> "Image":
    from PIL import Image

    if ground == "auto":
        opacity = np.asarray(picture)[..., 3].astype(np.float64)
        gray = np.asarray(picture.convert("RGB").convert("L")).astype(np.float64)
        visible_mean = (gray * opacity).sum() / max(opacity.sum(), 1)
        ground = "light" if visible_mean < 128 else "dark"
    background = Image.new("RGBA", picture.size, "white" if ground == "light" else "black")
    return Image.alpha_composite(background, picture).convert("RGB")


@dataclass(frozen=True, eq=False)
class PictureFiles:
    """Picture files that can be indexed like an image tensor of shape (N, C, H, W).

    Indexing reads only the selected files, and returns a tensor of intensities from 0 to 1. Use
    this class for data sets that do not fit into memory.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from teka.data import PictureFiles
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "white.png")
    ...     Image.new("L", (9, 5), 255).save(path)
    ...     files = PictureFiles([path, path], in_channels=1, image_size=(3, 4))
    ...     images = files[:]
    >>> files.shape, images.mean()
    (torch.Size([2, 1, 3, 4]), tensor(1.))

    Args:
        paths: The files.
        in_channels: 1 for gray, 3 for RGB.
        image_size: Height and width of the images.
        resize: Resize pictures of another size. If False, such a picture is an error.

    Raises:
        ValueError: A picture cannot be read, or its size differs from that of the others.
    """

    paths: Sequence[Path]
    in_channels: int
    image_size: tuple[int, int]
    resize: bool = True

    dtype = torch.float32

    @property
    def shape(self) -> torch.Size:
        """Shape of the tensor of all images, (N, C, H, W)."""
        return torch.Size((len(self), self.in_channels, *self.image_size))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, indices: Any) -> Float[Tensor, "*batch channels height width"]:
        chosen = torch.arange(len(self))[indices]
        images = torch.empty(chosen.numel(), *self.shape[1:])
        for image, index in zip(images, chosen.flatten().tolist(), strict=True):
            image.copy_(to_intensities(self._read(self.paths[index])))
        return images.reshape(*chosen.shape, *self.shape[1:])

    def take(self, indices: Tensor) -> "PictureFiles":
        """Return the files at `indices`, in this order, as new `PictureFiles`. No file is read."""
        return replace(self, paths=[self.paths[index] for index in indices.tolist()])

    def _read(self, path: Path) -> UInt8[Tensor, "channels height width"]:
        levels = read_picture(path, in_channels=self.in_channels)
        size = tuple(levels.shape[1:])
        if size == self.image_size:
            return levels
        if not self.resize:
            raise wrong_value(
                f"the size of {path}",
                size,
                f"{self.image_size}, the size of the first picture",
                "Pass image_size to resize all pictures.",
            )
        return resize_bilinear(levels[None], self.image_size)[0]


def check_images(images: object) -> None:
    """Raise an error unless `images` is a dense tensor of shape (N, C, H, W), of any dtype."""
    check_dense_tensor("images", images, "batch", "channels", "height", "width", dtypes=None)


def resize_bilinear(
    images: Tensor, image_size: int | Sequence[int]
) -> UInt8[Tensor, "images channels new_height new_width"]:
    """Resize images with Pillow's bilinear filter, first along the width and then along the height.

    The filter avoids aliasing, because it becomes wider if the image shrinks. From S to S' pixels
    along an axis, the new pixel i is a weighted mean of the old pixels j, with the weights

        w_ij ∝ max(1 − |j + ½ − (i + ½) S / S'| / r, 0),   Σ_j w_ij = 1,   r = max(S / S', 1)

    Levels are rounded after each axis. Pillow itself starts with the height if it shrinks more than
    the width, which changes some pixels by one level. In contrast,
    `torch.nn.functional.interpolate` of bytes differs by up to 2 levels.

    >>> import torch, teka
    >>> levels = torch.tensor([[[[0, 100], [100, 200]]]], dtype=torch.uint8)
    >>> teka.data.resize_bilinear(levels, 1)
    tensor([[[[100]]]], dtype=torch.uint8)

    Args:
        images: Levels from 0 to 255, shape (N, C, H, W).
        image_size: Side of a square, or (height, width).

    Source: Horn et al. 2021, section 3 (images of 32×32); Pillow, src/libImaging/Resample.c.

    Raises:
        ValueError: Images of another shape or dtype, or a size below 1.
    """
    check_images(images)
    if images.dtype != torch.uint8:
        raise wrong_value("images.dtype", images.dtype, "torch.uint8")
    height, width = check_image_size("image_size", image_size)
    pillow = require("PIL.Image", "resizing needs", "teka[train]")
    planes = images.flatten(0, 1).cpu().numpy()
    resized = torch.empty(len(planes), height, width, dtype=torch.uint8)
    for plane, target in zip(planes, resized, strict=True):
        picture = pillow.fromarray(plane).resize((width, len(plane)), pillow.Resampling.BILINEAR)
        picture = picture.resize((width, height), pillow.Resampling.BILINEAR)
        target.copy_(torch.from_numpy(np.array(picture)))
    return resized.unflatten(0, images.shape[:2]).to(images.device)


def to_intensities(levels: UInt8[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Convert integer levels from 0 to 255 to float32 intensities from 0 to 1."""
    return levels.to(torch.float32).div_(255)
