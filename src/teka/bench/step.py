"""One forward and backward pass of a layer: what is measured."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from teka.grid import Grid


@dataclass(frozen=True)
class Step:
    """A layer and its input; calling it computes the output and the gradients for the tokens and all parameters.

    The gradient that arrives at the output is the tokens' own numbers, random as any, so that no loss is timed.

    Args:
        module: The layer, called with tokens and their grid.
        tokens: Tokens, shape (B, L, dim), that require a gradient.
        grid: The grid whose cells they are.
    """

    module: nn.Module
    tokens: Float[Tensor, "batch tokens dim"]
    grid: Grid

    def __call__(self) -> None:
        """One forward and one backward pass."""
        self.module(self.tokens, self.grid).backward(self.tokens.detach())

    def clear(self) -> None:
        """Free the gradients, so that the next pass does not add to them."""
        self.tokens.grad = None
        self.module.zero_grad(set_to_none=True)
