"""From tokens to heads and back."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


def project_heads(
    linear: nn.Module, tokens: Float[Tensor, "batch tokens dim"], dim_head: int
) -> Float[Tensor, "batch heads tokens dim_head"]:
    """Heads of a linear map of tokens.

    Args:
        linear: The map.
        tokens: Tokens.
        dim_head: Size of a head.
    """
    return linear(tokens).unflatten(-1, (-1, dim_head)).transpose(1, 2)


def project_heads_first(
    linear: nn.Module, tokens: Float[Tensor, "batch tokens dim"], dim_head: int
) -> Float[Tensor, "batch heads tokens dim_head"]:
    """The same numbers as `project_heads` gives, in memory in the order (heads, dim_head, batch, tokens).

    One product, W · tokensᵀ, as large as the other; what works on one head at a time then finds it in one piece.
    A module that is not a plain `nn.Linear` is called as it is.

    Args:
        linear: The map.
        tokens: Tokens.
        dim_head: Size of a head.
    """
    if type(linear) is not nn.Linear or linear._forward_hooks or linear._forward_pre_hooks:
        return project_heads(linear, tokens, dim_head)
    batch, num_tokens, dim = tokens.shape
    columns = tokens.reshape(-1, dim).t()
    if linear.bias is None:
        mapped = torch.mm(linear.weight, columns)
    else:
        mapped = torch.addmm(linear.bias[:, None], linear.weight, columns)
    return mapped.view(mapped.shape[0] // dim_head, dim_head, batch, num_tokens).permute(2, 0, 3, 1)


def join_heads(
    linear: nn.Module, heads: Float[Tensor, "batch heads tokens dim_head"]
) -> Float[Tensor, "batch tokens dim"]:
    """A linear map of tokens whose numbers are those of all heads; in whatever order they lie in memory.

    Args:
        linear: The map.
        heads: Heads.
    """
    batch, _, num_tokens, _ = heads.shape
    rows = heads.permute(1, 3, 0, 2)
    if rows.is_contiguous() and num_tokens > 1:
        # The transpose of a matrix, which a product takes as it is.
        return linear(rows.flatten(0, 1).flatten(1).t()).unflatten(0, (batch, num_tokens))
    return linear(heads.transpose(1, 2).flatten(2))
