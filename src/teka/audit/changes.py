"""Changes of images other than shifts: quarter turns, flips, rotations, scaling and brightness."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import neg

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from teka.audit.images import Background, Images, RealImages, background_value

Amount = float | int


def turn(images: Images, quarters: Amount) -> Shaped[Tensor, "batch channels *turned"]:
    """Rotate images counterclockwise by multiples of 90 degrees, which is exact."""
    return images.rot90(int(quarters), (2, 3))


def flip(images: Images, kind: Amount) -> Images:
    """Flip images: 0 not at all, 1 left to right, 2 upside down, 3 both. This is exact."""
    axes = {0: (), 1: (3,), 2: (2,), 3: (2, 3)}[int(kind)]
    return images.flip(axes) if axes else images.clone()


def rotate(images: RealImages, degrees: Amount, background: Background) -> RealImages:
    """Rotate images counterclockwise about their center with linear interpolation.

    Background enters at the corners.
    """
    angle = math.radians(degrees)
    return _resample(
        images,
        [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]],
        background,
    )


def scale(images: RealImages, percent: Amount, background: Background) -> RealImages:
    """Enlarge images about their center by a percentage with linear interpolation.

    Background enters if the percentage is negative.
    """
    factor = 1 / (1 + percent / 100)
    return _resample(images, [[factor, 0.0], [0.0, factor]], background)


def brighten(images: RealImages, percent: Amount) -> RealImages:
    """Multiply the values of images by 1 + percent / 100 without clipping."""
    return images * (1 + percent / 100)


def _resample(images: RealImages, matrix: list[list[float]], background: Background) -> RealImages:
    """Return x'(p) = x(A p), with positions p = (right, down) in pixels from the center."""
    height, width = images.shape[2:]
    # `affine_grid` measures positions in halves of each side.
    (a, b), (c, d) = matrix
    theta = torch.tensor(
        [[a, b * height / width, 0.0], [c * width / height, d, 0.0]], dtype=torch.float64
    )
    places = affine_grid(theta.expand(len(images), 2, 3), list(images.shape), align_corners=False)
    value = background_value(images, background)
    wide = torch.promote_types(images.dtype, torch.float32)
    moved = grid_sample(
        (images - value).to(wide), places.to(images.device, wide), align_corners=False
    )
    return moved.to(images.dtype) + value


@dataclass(frozen=True)
class Change:
    """Kind of change of images, with the amounts that an audit tries.

    Args:
        words: What the change does, in a sentence.
        spoken: The same in a few words, for a headline.
        amounts: Amounts that an audit tries.
        unit: Unit after an amount.
        apply: Function of images, amount and background that returns the changed images.
        interpolates: Whether the change interpolates, so that pixel values change too.
        undo: Function that returns the amount of the inverse change.
        moves_maps: Whether output maps of a model should change like the image.
        names: Names of the amounts, if they are not quantities.
    """

    words: str
    spoken: str
    amounts: tuple[int | float, ...]
    unit: str
    apply: Callable[[Tensor, Amount, Background], Tensor]
    interpolates: bool = False
    undo: Callable[[Amount], Amount] = neg
    moves_maps: bool = True
    names: tuple[str, ...] = ()

    def write(self, amount: Amount) -> str:
        """Return an amount as text with its unit, such as "+5°" or "left–right"."""
        if self.names:
            return self.names[int(amount)]
        return f"{amount:+g}{self.unit}".replace("-", "−") if amount else f"0{self.unit}"


_SMALL = (-15, -10, -5, -2, 0, 2, 5, 10, 15)
_PERCENT = (-10, -5, -2, 0, 2, 5, 10)
CHANGES = {
    "turn": Change(
        "Rotated counterclockwise by quarter turns, which is exact for square images.",
        "turned by quarters",
        (0, 1, 2, 3),
        "°",
        lambda images, amount, _: turn(images, amount),
        names=("0°", "+90°", "+180°", "+270°"),
    ),
    "flip": Change(
        "Flipped left to right, upside down, and both, which is exact.",
        "flipped",
        (0, 1, 2, 3),
        "",
        lambda images, amount, _: flip(images, amount),
        names=("as it is", "left–right", "upside down", "both"),
    ),
    "rotation": Change(
        "Rotated counterclockwise by linear interpolation; background enters at the corners.",
        "rotated by up to 15°",
        _SMALL,
        "°",
        rotate,
        interpolates=True,
    ),
    "scale": Change(
        "Enlarged about the center by linear interpolation; smaller images get a background.",
        "scaled by up to 10 %",
        _PERCENT,
        " %",
        scale,
        interpolates=True,
        undo=lambda percent: 100 / (1 + percent / 100) - 100,
    ),
    "brightness": Change(
        "Every value is multiplied by a factor. This is a control, because nothing moves.",
        "made brighter or darker by up to 30 %",
        (-30, -20, -10, -5, 0, 5, 10, 20, 30),
        " %",
        lambda images, amount, _: brighten(images, amount),
        moves_maps=False,
    ),
}
"""Changes by name. The amount 0 changes nothing."""


def compared_after(
    response: Float[Tensor, "batch channels height width"],
    reference: Float[Tensor, "batch channels height width"],
    change: Change,
    amount: Amount,
) -> tuple[Tensor, Tensor]:
    """Return f(T x) and T f(x) for output maps, at the cells whose content was inside the map.

    Args:
        response: Maps f(T x) of the changed images.
        reference: Maps f(x) of the original images.
        change: The change T.
        amount: Amount of the change.
    """
    if not change.moves_maps:
        return response, reference
    moved, inside = (
        change.apply(each, amount, 0.0) for each in (reference, torch.ones_like(reference[:1, :1]))
    )
    seen = inside[0, 0] > 1 - 1e-4
    return response[..., seen], moved[..., seen]
