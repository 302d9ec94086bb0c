"""Heads over training, as moving pictures."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from teka.audit.page.require import require
from teka.training.heads.centers import draw_head_centers
from teka.training.heads.record import HeadRecord

if TYPE_CHECKING:
    from PIL.Image import Image

FRAMES = 30
DPI = 110
COLOURS, NEARLY_WHITE = 64, 240
FRAME_MILLISECONDS, LAST_MILLISECONDS = 150, 2500


def choose_moments(record: HeadRecord, count: int = FRAMES) -> list[int]:
    """Moments at equal distances, the first and the last among them, or all where they are few.

    Args:
        record: The heads.
        count: The most there may be, at least 2.
    """
    last = len(record.epoch) - 1
    return sorted({round(place) for place in np.linspace(0, last, min(count, last + 1))})


def draw_frames(record: HeadRecord, moments: Sequence[int]) -> "list[Image]":
    """The picture of the heads at each moment, in few colours.

    Args:
        record: The heads.
        moments: Which of the record's moments.

    Raises:
        ImportError: matplotlib or Pillow is not installed.
    """
    require("matplotlib")
    require("PIL")
    from PIL import Image

    frames = []
    for moment in moments:
        buffer = io.BytesIO()
        draw_head_centers(record, [moment]).savefig(buffer, format="png", dpi=DPI)
        frames.append(Image.open(buffer).convert("RGB"))
    # The same palette in all, so that what stands still does not flicker; what is nearly white is paper.
    palette = frames[-1].quantize(COLOURS)
    triples = np.array(palette.getpalette(), dtype=np.uint8).reshape(-1, 3)
    triples[(triples >= NEARLY_WHITE).all(axis=1)] = 255
    palette.putpalette(triples.tobytes())
    return [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]


def encode_gif(frames: "Sequence[Image]") -> bytes:
    """The frames as a GIF that repeats, and stays on the last for a while.

    Args:
        frames: One frame or more.
    """
    buffer = io.BytesIO()
    durations = [*[FRAME_MILLISECONDS] * (len(frames) - 1), LAST_MILLISECONDS]
    frames[0].save(
        buffer, format="GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True
    )
    return buffer.getvalue()


def encode_frame(frame: "Image") -> bytes:
    """One frame as a PNG.

    Args:
        frame: The frame.
    """
    buffer = io.BytesIO()
    frame.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()
