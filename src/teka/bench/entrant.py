"""A layer made ready to be timed: built, and compared with its dense twin."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from teka.bench.agreement import disagreement
from teka.bench.layers import Layer
from teka.bench.settings import Settings
from teka.bench.step import Step
from teka.grid import Grid

CHECKED_SIDE = 16
"""Side of the grid on which fast paths are compared with their dense twins, which are cheap there."""


@dataclass(frozen=True)
class Entrant:
    """A layer with weights.

    Args:
        layer: Which it is.
        module: The module.
        fault: Why it must not be timed, or None.
    """

    layer: Layer
    module: nn.Module
    fault: str | None


def make_entrant(layer: Layer, settings: Settings) -> Entrant:
    """Make a layer and compare it with its dense twin.

    Args:
        layer: Which.
        settings: Sizes and device.

    Raises:
        ImportError: The layer is of a package that is not installed.
    """
    module = layer.make(settings.dim, settings.heads).to(settings.device, torch.float32)
    with torch.no_grad():
        for parameter in module.parameters():
            # Parameters that begin at 0, such as distance embeddings, would hide errors from the comparison.
            if not parameter.any():
                parameter.normal_()
    step = Step(module, make_tokens(CHECKED_SIDE, settings), Grid((CHECKED_SIDE, CHECKED_SIDE)))
    found = disagreement(step)
    if found is None or found.is_acceptable:
        return Entrant(layer, module, None)
    fault = f"error: differs from its dense twin by {found.error:.2g} of the dense one's size ({found.what})"
    return Entrant(layer, module, fault)


def make_tokens(side: int, settings: Settings) -> Float[Tensor, "batch tokens dim"]:
    """Tokens ~ N(0, 1) of a square grid that require a gradient."""
    shape = (settings.batch, side**2, settings.dim)
    return torch.randn(shape, dtype=torch.float32).to(settings.device).requires_grad_()
