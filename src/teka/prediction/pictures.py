"""How picture files become the images that a model was trained on: whole, or their ink as MNIST's authors put it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from teka.checks import check_name, check_number, check_sizes
from teka.codec import decode
from teka.data import resize_bilinear
from teka.data.pictures import GROUNDS, read_picture, to_intensities
from teka.errors import wrong_argument, wrong_value

if TYPE_CHECKING:
    from PIL.Image import Image

FITS = ("whole", "ink")
# The width in pixels that about 95 of 100 training images of MNIST exceed.
THINNEST_STROKE = 1.6
# What counts as ink when it is cut out, over the strongest: an edge that resizing has blurred is then where it was.
SHARE_OF_PEAK = 1 / 3
# Levels that a border without ink strays from its median, in multiples of the median stray.
NOISE = 6
# Strokes are measured and thickened at this multiple of the canvas.
FINENESS = 4


@dataclass(frozen=True)
class PictureSettings:
    """Whether a picture is taken whole, or the ink on it; a model file keeps it under `pictures`.

    With "whole" the picture is resized to the model's images, its shape not kept, as `teka.data.load` does it. With
    "ink" what stands out from the ground is cut out, made to fit a box with its shape kept, and put in the middle of a
    canvas, bright on a ground of 0; the canvas is then resized to the model's images.

    >>> from dataclasses import asdict
    >>> from PIL import Image
    >>> from teka.prediction.pictures import PictureSettings, read_images
    >>> wide = Image.new("L", (200, 100), 255)
    >>> wide.paste(0, (10, 10, 20, 90))  # a black bar far left on white
    >>> ink = PictureSettings("ink", canvas=(28, 28), box=(20, 20))
    >>> image = read_images([wide], asdict(ink), image_size=(28, 28), in_channels=1)
    >>> rows, columns = (image[0, 0] > 0.5).nonzero().T
    >>> (rows.min().item(), rows.max().item()), (columns.min().item(), columns.max().item())
    ((4, 23), (13, 15))

    Args:
        fit: "whole" or "ink".
        canvas: Height and width of the canvas in pixels, for "ink".
        box: Those of the box.
        stroke: Least width of the strokes in pixels of the canvas; thinner ones are thickened. 0 leaves them alone.

    Raises:
        ValueError: An unknown fit, sizes that are missing or do not fit, or a stroke below 0.
    """

    fit: str = "whole"
    canvas: tuple[int, int] | None = None
    box: tuple[int, int] | None = None
    stroke: float = 0.0

    def __post_init__(self) -> None:
        check_name("fit", self.fit, FITS)
        for argument in ("canvas", "box"):
            size = getattr(self, argument)
            if self.fit == "whole" and size is not None:
                raise wrong_value(argument, size, "None with fit='whole'")
            if self.fit == "ink" and size is None:
                raise wrong_value(argument, size, "height and width with fit='ink'")
            if size is not None and (
                not isinstance(size, Sequence) or isinstance(size, str) or len(size) != 2
            ):
                raise wrong_value(argument, size, "height and width")
            check_sizes({f"{argument}[{axis}]": side for axis, side in enumerate(size or ())})
        if (
            self.canvas is not None
            and self.box is not None
            and any(map(int.__gt__, self.box, self.canvas))
        ):
            raise wrong_value("box", self.box, f"a box that fits the canvas, {self.canvas}")
        expected = "a width in pixels of at least 0 and below 100"
        check_number("stroke", self.stroke, expected, low=0, high=100, exclude=(100,))


def settings_for(data: str, image_size: tuple[int, int]) -> PictureSettings:
    """How pictures become images of this size like those of a data set, by its authors: whole, or ink of some size.

    MNIST's ink fits 20 × 20 pixels in the middle of 28 × 28, Fashion-MNIST's fills them, and digits are 8 × 8.
    """
    if data == "digits":
        return PictureSettings("ink", image_size, (8, 8))
    if data == "mnist":
        return PictureSettings("ink", (28, 28), (20, 20), THINNEST_STROKE)
    return (
        PictureSettings("ink", (28, 28), (28, 28)) if data == "fashion-mnist" else PictureSettings()
    )


def read_images(
    pictures: "Sequence[str | Path | Image]",
    settings: Mapping[str, object] | None,
    *,
    image_size: tuple[int, ...],
    in_channels: int,
    ground: str = "auto",
) -> Float[Tensor, "pictures channels height width"]:
    """Pictures as the images that a model was trained on, intensities in [0, 1], as its `pictures` settings say."""
    how = decode(PictureSettings, settings or {}, "pictures")
    images = []
    for picture in pictures:
        if how.fit == "whole":
            levels = read_picture(picture, in_channels=in_channels, ground=ground)
        else:
            levels = read_picture(picture, ground=ground)[0]
            try:
                canvas = fit_ink(levels, how, ground=ground)
            except ValueError as error:
                raise ValueError(f"{picture}: {error}") from error
            levels = canvas.expand(in_channels, -1, -1)
        images.append(resize_bilinear(levels[None], image_size))
    return to_intensities(torch.cat(images))


def fit_ink(
    levels: UInt8[Tensor, "height width"], settings: PictureSettings, *, ground: str = "auto"
) -> UInt8[Tensor, "canvas_height canvas_width"]:
    """A canvas with the ink of a grey picture: bright on a ground of 0, in the box, with its strongest level at 255.

    The ground is light if the border's mean lies above the middle between the darkest and the lightest level; then
    the picture is inverted. The border's median is subtracted, and with it the border's noise. What is left is scaled,
    its shape kept, so that what is above a third of the strongest level just fits the box, and moved by whole pixels of
    the canvas so that its centre of mass lies in the middle. A ValueError says that there is no ink.

    Source: LeCun et al., Gradient-based learning applied to document recognition, 1998, III.A.
    """
    from PIL import Image, ImageFilter

    check_name("ground", ground, GROUNDS)
    if settings.canvas is None or settings.box is None:
        raise wrong_value("settings.fit", settings.fit, "'ink'")
    ink = _ink(levels.numpy().astype(np.float64), ground)
    if not ink.any():
        raise wrong_argument(
            "ink",
            "none",
            "something that stands out from the ground; ground='dark' or 'light' may help",
        )
    ink /= ink.max()
    rows, columns = (np.flatnonzero((ink > SHARE_OF_PEAK).any(axis)) for axis in (1, 0))
    first = np.array([rows[0], columns[0]])
    size = np.array([rows[-1], columns[-1]]) + 1 - first
    scale = min(settings.box / size)
    mass = ink.sum()
    centre = np.array(
        [(ink.sum(axis) * (np.arange(ink.shape[1 - axis]) + 0.5)).sum() / mass for axis in (1, 0)]
    )
    # Where the corner of the ink goes: whole pixels, and no farther out than the canvas reaches.
    corner = np.rint(np.array(settings.canvas) / 2 - (centre - first) * scale)
    corner = np.clip(corner, 0, np.floor(settings.canvas - size * scale + 1e-9))
    start = first - corner / scale
    fine = _resample(ink, start, scale * FINENESS, [side * FINENESS for side in settings.canvas])
    width = stroke_width(torch.from_numpy(fine > 127)) / FINENESS
    if width < settings.stroke:
        radius = max(1, round((settings.stroke - width) * FINENESS / 2))
        thick = Image.fromarray(fine).filter(ImageFilter.MaxFilter(2 * radius + 1))
        canvas = np.array(
            thick.resize((settings.canvas[1], settings.canvas[0]), Image.Resampling.LANCZOS)
        )
    else:
        canvas = _resample(ink, start, scale, list(settings.canvas))
    canvas = canvas.astype(np.float64)
    return torch.from_numpy(np.rint(canvas * (255 / canvas.max())).astype(np.uint8))


def stroke_width(ink: Bool[Tensor, "height width"]) -> float:
    """Mean width of the strokes in pixels: twice the area over the outline's length, π/4 of its edges; 0 for no ink."""
    padded = np.pad(ink.numpy(), 1)
    edges = (padded[1:] != padded[:-1]).sum() + (padded[:, 1:] != padded[:, :-1]).sum()
    return 2 * float(padded.sum()) / (edges * math.pi / 4) if edges else 0.0


def _ink(
    levels: Float[np.ndarray, "height width"], ground: str
) -> Float[np.ndarray, "height width"]:
    band = max(1, round(0.02 * min(levels.shape)))
    at_border = np.ones(levels.shape, dtype=bool)
    at_border[band:-band, band:-band] = False
    border = levels[at_border]
    if ground == "light" or (
        ground == "auto" and border.mean() > (levels.min() + levels.max()) / 2
    ):
        levels, border = 255 - levels, 255 - border
    level = np.median(border)
    noise = NOISE * np.median(np.abs(border - level))
    ink = levels - level
    return np.where(ink > noise, ink, 0.0)


def _resample(
    ink: Float[np.ndarray, "height width"],
    start: Float[np.ndarray, " 2"],
    scale: float,
    size: list[int],
) -> UInt8[np.ndarray, "new_height new_width"]:
    """Bytes of the part of the picture that begins at `start` and becomes `size`; ground lies outside the picture."""
    from PIL import Image

    end = start + np.array(size) / scale
    first, last = np.floor(start).astype(int), np.ceil(end).astype(int)
    window = Image.fromarray(np.rint(ink * 255).astype(np.uint8)).crop(
        (first[1], first[0], last[1], last[0])
    )
    (upper, left), (lower, right) = (start - first).tolist(), (end - first).tolist()
    return np.array(
        window.resize((size[1], size[0]), Image.Resampling.LANCZOS, (left, upper, right, lower))
    )
