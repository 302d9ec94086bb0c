"""One picture file of any kind, as bytes of grey or of colour."""

from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from teka.data.open_picture import open_picture
from teka.errors import unknown_name, wrong_value

GROUNDS = ("auto", "dark", "light")
_CHANNELS = {1: "L", 3: "RGB"}
_DEEP = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")


def read_picture(path: str | Path, *, in_channels: int = 1, ground: str = "auto") -> UInt8[Tensor, "channels h w"]:
    """Levels 0 … 255 of a picture, upright as its camera noted it; of several frames the first.

    Colour becomes grey by Pillow's luminance, and grey becomes colour by equal channels. Deeper levels than 8 bits are
    rounded. What is transparent shows the ground: black if it is dark and white if it is light; with "auto" the one
    that the visible part is farther from.

    Args:
        path: The file, of any format that Pillow reads.
        in_channels: 1 for grey, 3 for RGB.
        ground: What lies under transparency: "auto", "dark" or "light".

    Raises:
        ImportError: Pillow is not installed.
        ValueError: No such file, one that is no picture or is damaged, floating point levels that are neither from 0 to
            1 nor from 0 to 255, pixels that Pillow turns into no grey or RGB, another number of channels, or an unknown
            ground.
    """
    if ground not in GROUNDS:
        raise unknown_name("ground", ground, GROUNDS)
    if in_channels not in _CHANNELS:
        raise wrong_value("in_channels", in_channels, "1 or 3: a picture is grey or has three colours")
    picture = open_picture(path)
    if picture.mode in _DEEP:
        levels = _to_bytes(np.asarray(picture), path)
        levels = levels if in_channels == 1 else np.repeat(levels[..., None], 3, axis=2)
    else:
        if picture.has_transparency_data:
            picture = _over_ground(picture.convert("RGBA"), ground)
        try:
            levels = np.array(picture.convert(_CHANNELS[in_channels]))
        except ValueError as error:
            raise wrong_value(f"the pixel type of {path}", picture.mode, "one that becomes grey or RGB") from error
    return torch.from_numpy(levels if levels.ndim == 3 else levels[..., None]).permute(2, 0, 1).contiguous()


def _to_bytes(levels: np.ndarray, path: str | Path) -> np.ndarray:
    """Bytes of deeper levels: whole ones from 0 to 65,535, or floating point from 0 to 1 or to 255."""
    lowest, highest = float(levels.min()), float(levels.max())
    if levels.dtype.kind != "f":
        top = 65535.0
    elif highest <= 1:
        top = 1.0
    else:
        top = 255.0
    if not (lowest >= 0 and highest <= top):
        raise wrong_value(f"the levels of {path}", f"from {lowest:g} to {highest:g}", f"levels from 0 to {top:g}")
    return np.rint(levels.astype(np.float64) * (255 / top)).astype(np.uint8)


def _over_ground(picture, ground: str):
    from PIL import Image

    opacity = np.asarray(picture)[..., 3].astype(np.float64)
    if ground == "auto":
        grey = np.asarray(picture.convert("RGB").convert("L")).astype(np.float64)
        seen = (grey * opacity).sum() / max(opacity.sum(), 1)
        ground = "light" if seen < 128 else "dark"
    level = 255 if ground == "light" else 0
    under = Image.new("RGBA", picture.size, (level, level, level, 255))
    return Image.alpha_composite(under, picture).convert("RGB")
