"""What was read of a transform's settings, held against the transform itself."""

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

TOLERANCE = (
    0.01  # levels of 255, of normalising in single precision; the nearest other level is 1 away
)
# Heights and widths: of the same shorter side, crops of the middle leave every remainder over; the last is shrunk.
SIZES = (*((60, width) for width in range(60, 76)), (500, 380))
Picture = UInt8[np.ndarray, "height width channels"]


def verify_against_library(
    own: Callable[[Picture], Any], transform: Preprocessing, model: str, name: str
) -> Preprocessing:
    """The transform with the `library` as which it is, to the level, what a model's own transform is.

    Both are asked for pictures of noise of many sizes.

    Args:
        own: From levels (H, W, C) to what the model takes, (C, height, width).
        transform: As it was read of the settings.
        model: What an error is to name.
        name: What the model's own transform is called.

    Raises:
        ValueError: It does something else than its settings say.
    """
    with read_as(model, f"pictures that {name} takes"):
        pictures = list(_pictures(transform.in_channels or 3))
        asked = [
            (one, torch.from_numpy(np.ascontiguousarray(own(one), np.float32))) for one in pictures
        ]
    closest, apart = torch.inf, "other sizes"
    for library in dict.fromkeys((transform.library, *LIBRARIES)):
        candidate = replace(transform, library=library)
        try:
            found = [_difference(candidate, picture, answer) for picture, answer in asked]
        except (
            ImportError,
            NotImplementedError,
        ):  # a library that is not there, or does not resize so
            continue
        differences = [one for one in found if one is not None]
        most = max((float(one.max()) for one in differences), default=torch.inf)
        if len(differences) == len(found) and most <= TOLERANCE:
            return candidate
        if len(differences) == len(found) and not most >= closest:
            closest, mean = most, float(torch.cat(differences).mean())
            apart = f"a difference of {mean:.1f} levels of 255 in the mean, {most:.1f} at most"
    expected = (
        f"a transform that is known: {name} does something else than its settings say ({apart})"
    )
    raise wrong_value("model", model, expected)


def _pictures(channels: int) -> Iterator[Picture]:
    generator = np.random.default_rng(0)
    for size in SIZES:
        yield generator.integers(0, 256, (*size, channels), dtype=np.uint8)


def _difference(
    transform: Preprocessing, picture: Picture, answer: Tensor
) -> Float[Tensor, " values"] | None:
    """How far each value is from the answer, in levels of 255; None if they have other sizes."""
    came = transform.normalize(transform.place(torch.from_numpy(picture).permute(2, 0, 1)[None]))[0]
    if answer.shape != came.shape:
        return None
    deviation = (
        torch.ones(len(came))
        if transform.normalization is None
        else transform.normalization.deviation
    )
    scale = 255 * torch.as_tensor(deviation, dtype=torch.float64)[:, None, None]
    return ((came.double() - answer.double()).abs() * scale).flatten()
