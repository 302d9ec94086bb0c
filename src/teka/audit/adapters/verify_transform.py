"""Comparison of a `Preprocessing` with the image transform of a library, pixel by pixel."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from teka.audit.adapters.loaded_model import safe_loading
from teka.audit.adapters.preprocessing import ROUNDING_RULES, Preprocessing
from teka.data import Normalize
from teka.errors import wrong_value

# Tolerance for the rounding of a normalization in float32, in units of uint8. Another pixel value
# would differ by at least 1.
TOLERANCE = 0.01
# Heights and widths of the test images. The widths 60 to 75 test the rounding of center crops. The
# last image is so large that it is reduced.
SIZES = (*((60, width) for width in range(60, 76)), (500, 380))
Picture = UInt8[np.ndarray, "height width channels"]


def verify_against_library(
    library_transform: Callable[[Picture], Any], transform: Preprocessing, model: str, name: str
) -> Preprocessing:
    """Check on random images that a `Preprocessing` gives the same pixels as a library's transform.

    Libraries round differently when they resize and crop, so the rules of all known libraries are
    tried.

    Args:
        library_transform: The library's transform, from uint8 arrays (H, W, C) to (C, h, w).
        transform: Preprocessing that was created from the settings of the library's transform.
        model: Name of the model for error messages.
        name: Name of the transform for error messages.

    Returns:
        The preprocessing with the `library` whose rounding gives the same pixels.

    Raises:
        ValueError: No rounding gives the same result, so the settings do not describe the
            transform.
    """
    generator = np.random.default_rng(0)
    channels = transform.in_channels or 3
    pictures = [generator.integers(0, 256, (*size, channels), dtype=np.uint8) for size in SIZES]
    with safe_loading(model, f"pictures that {name} takes"):
        expected = [
            torch.as_tensor(np.ascontiguousarray(library_transform(picture)))
            for picture in pictures
        ]
    smallest = torch.inf
    for library in dict.fromkeys((transform.library, *ROUNDING_RULES)):
        candidate = replace(transform, library=library)
        try:
            largest = max(map(partial(_largest_difference, candidate), pictures, expected))
        except (ImportError, NotImplementedError):  # the library is missing, or lacks this resize
            continue
        if largest <= TOLERANCE:
            return candidate
        smallest = min(smallest, largest)
    difference = "other sizes"
    if smallest < torch.inf:
        difference = f"a difference of up to {smallest:.1f} levels of 255"
    hint = f"The pixels from {name} differ from those that its settings describe ({difference})."
    raise wrong_value("model", model, "a model with a known transform", hint)


def measure_normalization(
    library_transform: Callable[[Picture], Any], in_channels: int
) -> tuple[Normalize | None, bool]:
    """Measure the mean and standard deviation with which a library's transform normalizes.

    They are computed from the results of the transform for images of a single color.

    Args:
        library_transform: The transform, from uint8 arrays (H, W, C) to (C, height, width).
        in_channels: Number of channels.

    Returns:
        The normalization (x − mean) / deviation, or None if it changes nothing, and True if the
        transform reverses the order of the channels.
    """

    def center(*color: int) -> np.ndarray:
        picture = np.full((64, 64, in_channels), color, np.uint8)
        result = np.asarray(library_transform(picture)).astype(np.float64)
        return result[:, result.shape[1] // 2, result.shape[2] // 2]

    black = center(0)
    white = center(255)
    span = white - black
    mean = -black / span
    deviation = 1 / span
    is_reversed = in_channels == 3 and bool(center(255, 0, 0)[2] != black[2])
    if np.allclose(mean, 0, atol=1e-6) and np.allclose(deviation, 1):
        return None, is_reversed
    # Results in float32 have about seven digits.
    mean, deviation = (tuple(float(f"{x:.6g}") for x in values) for values in (mean, deviation))
    return Normalize(mean, deviation), is_reversed


def _largest_difference(transform: Preprocessing, picture: Picture, expected: Tensor) -> float:
    """Return the largest difference between a preprocessed picture and the expected pixels.

    The normalization is undone, so that a difference of 1 is one level of uint8. If the sizes
    differ, the result is infinite.

    Args:
        transform: Preprocessing of the picture.
        picture: Picture in uint8.
        expected: Result (C, h, w) of the library's transform.
    """
    levels = torch.from_numpy(picture).permute(2, 0, 1)[None]
    result = transform.normalize(transform.resize_images(levels))[0]
    if expected.shape != result.shape:
        return torch.inf
    deviation = transform.normalization.deviation if transform.normalization else (1.0,)
    scale = 255 * torch.tensor(deviation, dtype=torch.float64)[:, None, None]
    return float(((result.double() - expected.double()).abs() * scale).max())
