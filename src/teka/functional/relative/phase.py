"""Angles ω·x of waves at positions, exact enough for coordinates of millions."""

import math

from jaxtyping import Float
from torch import Tensor


def precise(tensor: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The tensor in float64, or as it is on a device that has none."""
    return tensor if tensor.device.type == "mps" else tensor.double()


def phases(
    frequency: Float[Tensor, "heads waves axes"], positions: Float[Tensor, "*batch tokens axes"]
) -> Float[Tensor, "*batch heads tokens waves"]:
    """ω·x without its whole turns, in the dtype of the positions.

    The difference of two such angles must depend on x_i − x_j alone. In float32 ω·x errs by 0.06 at 10⁶, for the 10⁶th
    token of a sequence as for a first token that lies there. So it is computed in float64, where it errs by 10⁻¹⁰, and
    whole turns are taken out before it is rounded.

    Args:
        frequency: ω in radians per unit of length.
        positions: x in physical units.
    """
    places = precise(positions)
    turns = places[..., None, :, :] @ (frequency.to(places) / (2 * math.pi)).transpose(-2, -1)
    return turns.frac().to(positions.dtype) * (2 * math.pi)
