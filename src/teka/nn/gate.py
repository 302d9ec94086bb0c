"""A gate on what the heads of a layer give."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from teka.nn.heads import project_heads

INITIAL_BIAS = 2.0  # σ(2) = 0.88: nearly open


class NearlyOpen(nn.Linear):
    """A linear map that is constant at first; nothing is drawn, so that what else is drawn does not change."""

    def reset_parameters(self) -> None:
        """Set the initial values."""
        nn.init.zeros_(self.weight)
        nn.init.constant_(self.bias, INITIAL_BIAS)


class Gate(nn.Module):
    """σ(W x + b) for every token x, head and channel, by which the heads' output is multiplied.

    A token's gate depends on that token alone. W = 0 and b = 2 at first: all gates are the same and nearly open.

    Source: Qiu et al. 2025 (gated attention: a sigmoid after the attention, for each head and channel).

    Args:
        dim: Size of a token.
        heads: Number of heads.
        dim_head: Size of a head.
    """

    def __init__(self, dim: int, heads: int, dim_head: int) -> None:
        super().__init__()
        self.dim_head = dim_head
        self.projection = NearlyOpen(dim, heads * dim_head)

    def forward(self, tokens: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch heads tokens dim_head"]:
        """Gates between 0 and 1.

        Args:
            tokens: Tokens that attend.
        """
        return torch.sigmoid(project_heads(self.projection, tokens, self.dim_head))
