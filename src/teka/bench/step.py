"""One forward and backward pass of a layer: what is measured."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from teka.grid import Grid


@dataclass(frozen=True)
class Step:
    """A layer and its input; calling it computes the gradients of mean(output²) for the tokens and all parameters.

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
        self.module(self.tokens, self.grid).square().mean().backward()

    def clear(self) -> None:
        """Free the gradients, so that the next pass does not add to them."""
        self.tokens.grad = None
        self.module.zero_grad(set_to_none=True)
