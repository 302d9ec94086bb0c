"""One pass of a layer, forward or forward and backward: what is measured."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from teka.grid import Grid

FORWARD_BACKWARD = "forward_backward"
DIRECTIONS = (FORWARD_BACKWARD, "forward")


@dataclass(frozen=True)
class Step:
    """A layer and its input; calling it computes the output and the gradients for the tokens and all parameters.

    The gradient that arrives at the output is the tokens' own numbers, random as any, so that no loss is timed.

    Args:
        module: The layer, called with tokens and their grid.
        tokens: Tokens, shape (B, L, dim), that require a gradient.
        grid: The grid whose cells they are.
        direction: "forward_backward", or "forward" for the output alone, of which nothing is kept for gradients.
    """

    module: nn.Module
    tokens: Float[Tensor, "batch tokens dim"]
    grid: Grid
    direction: str = FORWARD_BACKWARD

    def __call__(self) -> None:
        """One pass."""
        self.run(self.module, self.tokens)

    def run(self, layer: Callable[[Tensor, Grid], Tensor], tokens: Float[Tensor, "batch tokens dim"]) -> None:
        """One pass of this step with a stand-in for the layer and the tokens."""
        if self.direction == FORWARD_BACKWARD:
            layer(tokens, self.grid).backward(tokens.detach())
        else:
            with torch.no_grad():
                layer(tokens.detach(), self.grid)

    def clear(self) -> None:
        """Free the gradients, so that the next pass does not add to them."""
        self.tokens.grad = None
        self.module.zero_grad(set_to_none=True)
