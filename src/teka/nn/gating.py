"""Sigmoid gate of the output of attention heads."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

# Initial bias. The gates start at σ(2) = 0.88, nearly open.
INITIAL_BIAS = 2.0


class OutputGate(nn.Module):
    """Learned sigmoid gate that multiplies the output of the attention heads.

    The gate of a token x is σ(W x + b), with the sigmoid function σ. Initially W = 0 and b = 2, so
    that every gate is nearly open: σ(2) = 0.88.

    Source: Qiu et al. 2025.
    """

    def __init__(self, dim: int, heads: int, dim_head: int) -> None:
        super().__init__()
        self.dim_head = dim_head
        self.projection = nn.Linear(dim, heads * dim_head)
        nn.init.zeros_(self.projection.weight)
        nn.init.constant_(self.projection.bias, INITIAL_BIAS)

    def forward(
        self, tokens: Float[Tensor, "batch tokens dim"]
    ) -> Float[Tensor, "batch heads tokens dim_head"]:
        """Return one gate for each token, head and channel, with values between 0 and 1."""
        logits = self.projection(tokens).unflatten(-1, (-1, self.dim_head))
        return torch.sigmoid(logits.transpose(1, 2))
