"""Verification of the preprocessing read from a transform's settings against the transform."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from teka.audit.adapters.loaded_model import read_as
from teka.audit.adapters.preprocessing import LIBRARIES, Preprocessing
from teka.errors import wrong_value

# Tolerance in levels of 0 to 255, for normalization in single precision. The nearest other level
# is 1 away.
TOLERANCE = 0.01
# Heights and widths of test images. With one shorter side, center crops have every remainder. The
# last size is large enough to be reduced.
SIZES = (*((60, width) for width in range(60, 76)), (500, 380))
Picture = UInt8[np.ndarray, "height width channels"]


def verify_against_library(
    own: Callable[[Picture], Any], transform: Preprocessing, model: str, name: str
) -> Preprocessing:
    """Return the preprocessing with the `library` whose rounding matches a model's own transform.

    Both are compared on noise images of many sizes.

    Args:
        own: The model's transform, from uint8 arrays (H, W, C) to (C, height, width).
        transform: Preprocessing that was read from the settings.
        model: Name of the model for error messages.
        name: Name of the model's transform for error messages.

    Raises:
        ValueError: The transform differs from its settings.
        ValueError: It does something else than its settings say.
    """
    with read_as(model, f"pictures that {name} takes"):
        pictures = list(_pictures(transform.in_channels or 3))
        asked = [
            (picture, torch.from_numpy(np.ascontiguousarray(own(picture), np.float32)))
            for picture in pictures
        ]
    closest = torch.inf
    difference = "other sizes"
    for library in dict.fromkeys((transform.library, *LIBRARIES)):
        candidate = replace(transform, library=library)
        try:
            results = [_difference(candidate, picture, answer) for picture, answer in asked]
        # The library may be missing or not support this resize.
        except (ImportError, NotImplementedError):
            continue
        errors = [result for result in results if result is not None]
        most = max((float(error.max()) for error in errors), default=torch.inf)
        if len(errors) == len(results) and most <= TOLERANCE:
            return candidate
        if len(errors) == len(results) and not most >= closest:
            closest = most
            mean = float(torch.cat(errors).mean())
            difference = f"a difference of {mean:.1f} levels of 255 in the mean, {most:.1f} at most"
    expected = (
        "a transform that is known: "
        f"{name} does something else than its settings say ({difference})"
    )
    raise wrong_value("model", model, expected)


def _pictures(channels: int) -> Iterator[Picture]:
    generator = np.random.default_rng(0)
    for size in SIZES:
        yield generator.integers(0, 256, (*size, channels), dtype=np.uint8)


def _difference(
    transform: Preprocessing, picture: Picture, answer: Tensor
) -> Float[Tensor, " values"] | None:
    """Return the difference of each value in levels of 255, or None if the sizes differ."""
    levels = torch.from_numpy(picture).permute(2, 0, 1)[None]
    placed = transform.normalize(transform.place(levels))[0]
    if answer.shape != placed.shape:
        return None
    deviation = (
        torch.ones(len(placed))
        if transform.normalization is None
        else transform.normalization.deviation
    )
    scale = 255 * torch.as_tensor(deviation, dtype=torch.float64)[:, None, None]
    return ((placed.double() - answer.double()).abs() * scale).flatten()
