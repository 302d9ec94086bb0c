"""Queries, keys and values that fit each other."""

from torch import Tensor

from teka.checks import check_tensor
from teka.errors import wrong_value


def check_inputs(query: Tensor, key: Tensor, value: Tensor, *, num_tokens: int | str = "tokens") -> None:
    """Check that queries, keys and values are floating tensors of shapes and dtypes that fit.

    Args:
        query: Queries.
        key: Keys.
        value: Values.
        num_tokens: How many of each there must be, if not any number.

    Raises:
        ValueError: They do not fit.
    """
    check_tensor("query", query, "batch", "heads", num_tokens, "dim")
    batch, heads, _, dim = query.shape
    check_tensor("key", key, batch, heads, num_tokens, dim)
    check_tensor("value", value, batch, heads, key.shape[2], "dim")
    for argument, tensor in (("key", key), ("value", value)):
        if tensor.dtype != query.dtype:
            raise wrong_value(argument, tensor.dtype, f"{query.dtype}, as query is")
