"""Tokens without a position, before those that have one."""

import torch
from jaxtyping import Float
from torch import Tensor

from teka.functional.backend.linear.linear import linear
from teka.functional.backend.linear.rotary_sums import rotary_sums
from teka.functional.backend.sums import Sums
from teka.functional.relative import Relative, RotaryRelative


def add_prefix(
    sums: Sums,
    query_features: Float[Tensor, "batch heads queries features"],
    key_features: Float[Tensor, "batch heads keys features"],
    value: Float[Tensor, "batch heads keys dim_value"],
    num_prefix_tokens: int,
    relative: Relative | None = None,
) -> Sums:
    """Sums of all tokens from those of placed queries and keys: c = 1 for the other pairs, which is linear attention.

    Args:
        sums: The sums of the placed tokens.
        query_features: φ(q) of all tokens.
        key_features: φ(k) of all tokens.
        value: Values of all tokens.
        num_prefix_tokens: Number of tokens without a position.
        relative: The kernel of the placed tokens; a rotary one says what all denominators are made of.
    """
    first = num_prefix_tokens
    if not first:
        return sums

    def plain(queries: slice, keys: slice) -> Sums:
        left, right, values = query_features[:, :, queries], key_features[:, :, keys], value[:, :, keys]
        if not isinstance(relative, RotaryRelative):
            return linear(left, right, values)
        unturned = relative.weighing(left, None), relative.weighing(right, None)
        return rotary_sums(relative, left, right, *unturned, values, placed=False)

    sums = sums + plain(slice(first, None), slice(None, first))
    prefix = plain(slice(None, first), slice(None))
    return Sums(
        torch.cat([prefix.numerator, sums.numerator], dim=2), torch.cat([prefix.denominator, sums.denominator], dim=2)
    )
