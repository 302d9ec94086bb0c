"""The ink on a picture, put on a canvas as the authors of MNIST put theirs."""

import math

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from teka.data.pictures import GROUNDS
from teka.errors import unknown_name, wrong_value
from teka.prediction.picture_settings import PictureSettings

# What counts as ink when it is cut out, over the strongest: an edge that resizing has blurred is then where it was.
SHARE_OF_PEAK = 1 / 3
# Levels that a border without ink strays from its median, in multiples of the median stray.
NOISE = 6
# Strokes are measured and thickened at this multiple of the canvas.
FINENESS = 4


def fit_ink(
    levels: UInt8[Tensor, "height width"], settings: PictureSettings, *, ground: str = "auto"
) -> UInt8[Tensor, "canvas_height canvas_width"]:
    """A canvas with the ink of a grey picture: bright on a ground of 0, in the box, with its strongest level at 255.

    The ground is light if the border's mean lies above the middle between the darkest and the lightest level; then
    the picture is inverted. The border's median is subtracted, and with it what is no farther from it than the border's
    noise. What is left is scaled, its shape kept, so that what is above a third of the strongest level just fits the
    box, and moved by whole pixels of the canvas so that its centre of mass lies in the middle. Where a picture is on
    the canvas's scale already, its pixels hardly change.

    Args:
        levels: Levels 0 … 255.
        settings: With fit="ink".
        ground: "auto", "dark" or "light".

    Raises:
        ValueError: An unknown ground, settings of another fit, or a picture without ink.

    Source: Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Gradient-based learning applied to document recognition, 1998,
        III.A.
    """
    if ground not in GROUNDS:
        raise unknown_name("ground", ground, GROUNDS)
    if settings.canvas is None or settings.box is None:
        raise wrong_value("settings.fit", settings.fit, "'ink'")
    ink = _ink(levels.numpy().astype(np.float64), ground)
    if not ink.any():
        raise wrong_value("ink", "none", "something that stands out from the ground; ground='dark' or 'light' may help")
    ink /= ink.max()
    rows, columns = (np.flatnonzero((ink > SHARE_OF_PEAK).any(axis)) for axis in (1, 0))
    top, left = int(rows[0]), int(columns[0])
    size = np.array([rows[-1] + 1 - top, columns[-1] + 1 - left])
    scale = min(settings.box / size)
    mass = ink.sum()
    centre = np.array([(ink.sum(axis) * (np.arange(ink.shape[1 - axis]) + 0.5)).sum() / mass for axis in (1, 0)])
    # Where the corner of the ink goes: whole pixels, and no farther out than the canvas reaches.
    corner = np.rint(np.array(settings.canvas) / 2 - (centre - (top, left)) * scale)
    corner = np.clip(corner, 0, np.floor(settings.canvas - size * scale + 1e-9))
    start = (top, left) - corner / scale
    fine = _resample(ink, start, scale, [side * FINENESS for side in settings.canvas], FINENESS)
    width = stroke_width(torch.from_numpy(fine > 127)) / FINENESS
    if width < settings.stroke:
        canvas = _reduce(_thicken(fine, max(1, round((settings.stroke - width) * FINENESS / 2))), settings.canvas)
    else:
        canvas = _resample(ink, start, scale, list(settings.canvas), 1)
    canvas = canvas.astype(np.float64)
    return torch.from_numpy(np.rint(canvas * (255 / canvas.max())).astype(np.uint8))


def stroke_width(ink: Bool[Tensor, "height width"]) -> float:
    """Mean width of the strokes in pixels: twice the area over the outline's length; 0 without ink.

    The outline is counted in pixels' edges, which for lines of all directions is 4/π of its length.

    Args:
        ink: Where there is ink.
    """
    padded = np.pad(ink.numpy(), 1)
    edges = (padded[1:] != padded[:-1]).sum() + (padded[:, 1:] != padded[:, :-1]).sum()
    return 2 * float(padded.sum()) / (edges * math.pi / 4) if edges else 0.0


def _ink(levels: Float[np.ndarray, "height width"], ground: str) -> Float[np.ndarray, "height width"]:
    band = max(1, round(0.02 * min(levels.shape)))
    inner = np.zeros(levels.shape, dtype=bool)
    inner[band:-band, band:-band] = True
    border = levels[~inner]
    if ground == "light" or (ground == "auto" and border.mean() > (levels.min() + levels.max()) / 2):
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
    fineness: int,
) -> UInt8[np.ndarray, "new_height new_width"]:
    """Bytes of the part of the picture that begins at `start` and becomes `size`; ground lies outside the picture."""
    from PIL import Image

    end = start + np.array(size) / (scale * fineness)
    first, last = np.floor(start).astype(int), np.ceil(end).astype(int)
    window = np.zeros(last - first, dtype=np.uint8)
    from_ = np.clip(first, 0, ink.shape)
    to = np.clip(last, 0, ink.shape)
    part = ink[from_[0] : to[0], from_[1] : to[1]]
    offset = from_ - first
    window[offset[0] : offset[0] + part.shape[0], offset[1] : offset[1] + part.shape[1]] = np.rint(part * 255)
    (upper, left), (lower, right) = (start - first).tolist(), (end - first).tolist()
    box = (left, upper, right, lower)
    return np.array(Image.fromarray(window).resize((size[1], size[0]), Image.Resampling.LANCZOS, box))


def _thicken(fine: UInt8[np.ndarray, "height width"], radius: int) -> UInt8[np.ndarray, "height width"]:
    from PIL import Image, ImageFilter

    return np.array(Image.fromarray(fine).filter(ImageFilter.MaxFilter(2 * radius + 1)))


def _reduce(fine: UInt8[np.ndarray, "height width"], size: tuple[int, int]) -> UInt8[np.ndarray, "h w"]:
    from PIL import Image

    return np.array(Image.fromarray(fine).resize((size[1], size[0]), Image.Resampling.LANCZOS))
