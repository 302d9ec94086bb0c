"""How images change otherwise than by shifts: turned, flipped, rotated, made larger or smaller, brighter or darker."""

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
    """Images turned by quarters, counter-clockwise: exact, no value changes."""
    return images.rot90(int(quarters), (2, 3))


def flip(images: Images, kind: Amount) -> Images:
    """Images as they are (0), left and right exchanged (1), upside down (2), or both (3): exact, no value changes."""
    axes = {0: (), 1: (3,), 2: (2,), 3: (2, 3)}[int(kind)]
    return images.flip(axes) if axes else images.clone()


def rotate(images: RealImages, degrees: Amount, background: Background) -> RealImages:
    """Images rotated about their middle, counter-clockwise, by linear interpolation; background comes in."""
    angle = math.radians(degrees)
    return _resample(
        images,
        [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]],
        background,
    )


def scale(images: RealImages, percent: Amount, background: Background) -> RealImages:
    """Images enlarged about their middle by a percentage, by linear interpolation; background may come in."""
    factor = 1 / (1 + percent / 100)
    return _resample(images, [[factor, 0.0], [0.0, factor]], background)


def brighten(images: RealImages, percent: Amount) -> RealImages:
    """Values times 1 + percent / 100, which are not cut off."""
    return images * (1 + percent / 100)


def _resample(images: RealImages, matrix: list[list[float]], background: Background) -> RealImages:
    """x'(p) = x(A p), places from the middle in pixels (right, down), for the matrix A."""
    height, width = images.shape[2:]
    # `affine_grid` counts places in halves of each side.
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
    """A kind of change: what is done, how its amounts are written, and which are tried."""

    words: str  # what is done, a sentence
    spoken: str  # the same in a few words, for a headline
    amounts: tuple[int | float, ...]
    unit: str  # behind an amount
    apply: Callable[[Tensor, Amount, Background], Tensor]
    interpolates: bool = False  # so that the values of the image change too
    undo: Callable[[Amount], Amount] = neg  # from an amount to the one that undoes it
    moves_maps: bool = True  # whether maps of the image change along
    names: tuple[str, ...] = ()  # of the amounts, where they are no quantities

    def write(self, amount: Amount) -> str:
        """An amount with its unit: "+5°", "left–right"."""
        if self.names:
            return self.names[int(amount)]
        return f"{amount:+g}{self.unit}".replace("-", "−") if amount else f"0{self.unit}"


_SMALL = (-15, -10, -5, -2, 0, 2, 5, 10, 15)
_PERCENT = (-10, -5, -2, 0, 2, 5, 10)
CHANGES = {
    "turn": Change(
        "Turned by quarters, counter-clockwise, which is exact on a square.",
        "turned by quarters",
        (0, 1, 2, 3),
        "°",
        lambda images, amount, _: turn(images, amount),
        names=("0°", "+90°", "+180°", "+270°"),
    ),
    "flip": Change(
        "Left and right exchanged, upside down, and both, which is exact.",
        "flipped",
        (0, 1, 2, 3),
        "",
        lambda images, amount, _: flip(images, amount),
        names=("as it is", "left–right", "upside down", "both"),
    ),
    "rotation": Change(
        "Rotated about the middle, counter-clockwise, by linear interpolation; background comes in at the corners.",
        "rotated by up to 15°",
        _SMALL,
        "°",
        rotate,
        interpolates=True,
    ),
    "scale": Change(
        "Enlarged about the middle, by linear interpolation; what is smaller lies on background.",
        "scaled by up to 10 %",
        _PERCENT,
        " %",
        scale,
        interpolates=True,
        undo=lambda percent: 100 / (1 + percent / 100) - 100,
    ),
    "brightness": Change(
        "Every value times a factor, as a control: nothing moves.",
        "made brighter or darker by up to 30 %",
        (-30, -20, -10, -5, 0, 5, 10, 20, 30),
        " %",
        lambda images, amount, _: brighten(images, amount),
        moves_maps=False,
    ),
}
"""The changes, by their names; of each, amount 0 changes nothing."""


def compared_after(
    response: Float[Tensor, "batch channels height width"],
    reference: Float[Tensor, "batch channels height width"],
    change: Change,
    amount: Amount,
) -> tuple[Tensor, Tensor]:
    """f(T x) and T f(x) of maps (B, C, cells), both at the cells whose content came from inside the map."""
    if not change.moves_maps:
        return response, reference
    moved, inside = (
        change.apply(each, amount, 0.0) for each in (reference, torch.ones_like(reference[:1, :1]))
    )
    seen = inside[0, 0] > 1 - 1e-4
    return response[..., seen], moved[..., seen]
