"""Tokens without a position, before those that have one."""

import torch
from jaxtyping import Float
from torch import Tensor

from teka.functional.backend.linear.linear import linear
from teka.functional.backend.sums import Sums


def add_prefix(
    sums: Sums,
    query_features: Float[Tensor, "batch heads queries features"],
    key_features: Float[Tensor, "batch heads keys features"],
    value: Float[Tensor, "batch heads keys dim_value"],
    num_prefix_tokens: int,
) -> Sums:
    """Sums of all tokens from those of placed queries and keys: c = 1 for the other pairs, which is linear attention.

    Args:
        sums: The sums of the placed tokens.
        query_features: φ(q) of all tokens.
        key_features: φ(k) of all tokens.
        value: Values of all tokens.
        num_prefix_tokens: Number of tokens without a position.
    """
    first = num_prefix_tokens
    if not first:
        return sums
    sums = sums + linear(query_features[:, :, first:], key_features[:, :, :first], value[:, :, :first])
    prefix = linear(query_features[:, :, :first], key_features, value)
    return Sums(
        torch.cat([prefix.numerator, sums.numerator], dim=2), torch.cat([prefix.denominator, sums.denominator], dim=2)
    )
