"""Angles ω·x of waves at positions, exact enough for coordinates of millions."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from teka.functional.placement import widest


def precise(tensor: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The tensor in float64, or as it is on a device that has none."""
    return tensor.to(widest(tensor.device))


def phases(
    frequency: Float[Tensor, "heads waves axes"], positions: Float[Tensor, "*batch tokens axes"], dtype: torch.dtype
) -> Float[Tensor, "*batch heads tokens waves"]:
    """ω·x without its whole turns.

    The difference of two such angles must depend on x_i − x_j alone. In float32 ω·x errs by 0.06 at 10⁶, for the 10⁶th
    token of a sequence as for a first token that lies there. So it is computed in float64, where it errs by 10⁻¹⁰, and
    whole turns are taken out before it is rounded.

    Args:
        frequency: ω in radians per unit of length.
        positions: x in physical units, with all the digits that there are.
        dtype: Dtype of the angles.
    """
    places = precise(positions)
    turns = places[..., None, :, :] @ (frequency.to(places) / (2 * math.pi)).transpose(-2, -1)
    return turns.frac().to(dtype) * (2 * math.pi)
