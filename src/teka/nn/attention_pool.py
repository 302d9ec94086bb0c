"""Pooling by attention with learned queries."""

from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import Parameter

from teka import functional
from teka.checks import check_flags, check_sizes
from teka.errors import wrong_value
from teka.functional.placement import check_mask
from teka.nn.tokens import check_tokens


class AttentionPool(nn.Module):
    """Tokens to a fixed number of vectors: softmax attention whose queries are parameters.

    out = W_o · concat_h softmax(q_h Kᵀ / √d) V. The queries do not depend on the tokens, so that permuting the tokens
    changes nothing, and the cost is O(L).

    Source: attention with a learned query; Lee et al. 2019 (Set Transformer), §3.2.

    Args:
        dim: Size of a token.
        heads: Number of heads, a divisor of dim.
        num_queries: Number of vectors to pool to.
        qkv_bias: Whether values have a bias; a bias of keys would cancel in the softmax.

    Raises:
        ValueError: Sizes that do not fit.
    """

    equivariance: ClassVar[dict[str, str]] = {"permutation": "exact"}

    def __init__(self, dim: int, heads: int, *, num_queries: int = 1, qkv_bias: bool = True) -> None:
        super().__init__()
        check_sizes({"dim": dim, "heads": heads, "num_queries": num_queries})
        check_flags({"qkv_bias": qkv_bias})
        if dim % heads:
            raise wrong_value("heads", heads, f"a divisor of dim = {dim}")
        self.dim, self.heads = dim, heads
        self.query = Parameter(torch.randn(num_queries, dim))
        self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim, bias=qkv_bias)
        self.output = nn.Linear(dim, dim)

    def forward(
        self,
        tokens: Float[Tensor, "batch tokens dim"],
        key_mask: Bool[Tensor, "batch tokens"] | None = None,
    ) -> Float[Tensor, "batch queries dim"]:
        """Pool.

        Args:
            tokens: Tokens, shape (B, L, dim).
            key_mask: True where a token counts, shape (B, L).

        Raises:
            ValueError: Shapes that do not fit, or a mask that keeps nothing.
        """
        check_tokens("tokens", tokens, "batch", "tokens", self.dim, first=self.output)
        if key_mask is not None:
            check_mask("key_mask", key_mask, batch=tokens.shape[0], num_tokens=tokens.shape[1])
            tokens = tokens.masked_fill(~key_mask[..., None], 0.0)
        query = self.query.expand(tokens.shape[0], -1, -1)
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (query, self.key(tokens), self.value(tokens))
        )
        mixed = functional.attention(query.to(key.dtype), key, value, kernel="softmax", key_mask=key_mask)
        return self.output(mixed.transpose(1, 2).flatten(2))
