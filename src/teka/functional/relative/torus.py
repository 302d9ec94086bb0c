"""Distances on an axis that comes back to itself."""

import torch
from jaxtyping import Float
from torch import Tensor

from teka.grid import SEAM


def wrap_axis(offset: Float[Tensor, "*batch"], period: float | None) -> Float[Tensor, "*batch"]:
    """Offsets along one axis brought into [−P/2, P/2), as `Grid.wrap_axis` does; as they are if the period is None.

    Args:
        offset: Offsets in physical units.
        period: P in physical units.
    """
    return offset if period is None else offset - period * torch.floor(offset / period + (0.5 + SEAM))
