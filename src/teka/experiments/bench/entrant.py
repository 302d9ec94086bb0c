"""A layer made ready to be timed: built, compared with its dense twin, and with what is known of its cost."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from teka.experiments.bench.agreement import disagreement
from teka.experiments.bench.layers import Layer
from teka.experiments.bench.measure import Cost
from teka.experiments.bench.settings import Settings
from teka.experiments.bench.step import Step

CHECKED_TOKENS = 256
"""Number of tokens at which fast paths are compared with their dense twins, which are cheap there."""


@dataclass(frozen=True)
class Entrant:
    """A layer with weights.

    Args:
        layer: Which it is.
        module: The module.
        fault: Why it must not be timed, or None.
        known: Cost of a step at the numbers of tokens at which it has been measured, in ascending order.
    """

    layer: Layer
    module: nn.Module
    fault: str | None
    known: dict[int, Cost] = field(default_factory=dict)

    def step(self, tokens: Float[Tensor, "batch tokens dim"], direction: str) -> Step:
        """A pass of this layer over some tokens."""
        return Step(self.module, tokens, self.layer.grid(tokens.shape[1]), direction)


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
    found = disagreement(Step(module, make_tokens(CHECKED_TOKENS, settings), layer.grid(CHECKED_TOKENS)))
    if found is None or found.is_acceptable:
        return Entrant(layer, module, None)
    fault = f"error: differs from its dense twin by {found.error:.2g} of the dense one's size ({found.what})"
    return Entrant(layer, module, fault)


def make_tokens(num_tokens: int, settings: Settings) -> Float[Tensor, "batch tokens dim"]:
    """Tokens ~ N(0, 1) that require a gradient."""
    shape = (settings.batch, num_tokens, settings.dim)
    return torch.randn(shape, dtype=torch.float32).to(settings.device).requires_grad_()
