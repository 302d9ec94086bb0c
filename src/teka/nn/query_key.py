"""What is done to queries and keys before the content kernel."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.functional import rms_norm

from teka.checks import BOOLEAN, check_name, check_tensor
from teka.errors import wrong_value
from teka.functional.kernel.kept_mean import kept_mean


class PlainQueryKey(nn.Module):
    """Queries and keys as they are projected."""

    def forward(
        self,
        query: Float[Tensor, "batch heads queries dim_head"],
        key: Float[Tensor, "batch heads keys dim_head"],
        key_mask: Bool[Tensor, "batch keys"] | None,
    ) -> tuple[Float[Tensor, "batch heads queries dim_head"], Float[Tensor, "batch heads keys dim_head"]]:
        """The queries and keys themselves.

        Args:
            query: Queries of the heads that attend by content.
            key: Their keys.
            key_mask: True where a key is kept.
        """
        return query, key


class NormalizedQueryKey(nn.Module):
    """Queries and keys over their root mean square, times a learned gain: g ⊙ x / √(mean(x²)).

    The gain is one number for each head and channel, of queries and of keys, 1 at first. Its size is a temperature,
    for kernels in which the size of a vector does not cancel; its differences between channels act in every kernel.

    Source: Henry et al. 2020 and Dehghani et al. 2023, with the norm of Zhang & Sennrich 2019.

    Args:
        heads: Number of heads that attend by content.
        dim_head: Size of a head.
    """

    def __init__(self, heads: int, dim_head: int) -> None:
        super().__init__()
        self.query_gain = Parameter(torch.ones(heads, 1, dim_head))
        self.key_gain = Parameter(torch.ones(heads, 1, dim_head))

    def forward(
        self,
        query: Float[Tensor, "batch heads queries dim_head"],
        key: Float[Tensor, "batch heads keys dim_head"],
        key_mask: Bool[Tensor, "batch keys"] | None,
    ) -> tuple[Float[Tensor, "batch heads queries dim_head"], Float[Tensor, "batch heads keys dim_head"]]:
        """The normalised queries and keys; each depends on itself alone.

        Args:
            query: Queries of the heads that attend by content.
            key: Their keys.
            key_mask: True where a key is kept.
        """
        size = query.shape[-1:]
        normalized = rms_norm(query, size) * self.query_gain, rms_norm(key, size) * self.key_gain
        # In mixed precision the gain has more of it than the values have.
        return normalized[0].to(query.dtype), normalized[1].to(key.dtype)


class CentredQueryKey(nn.Module):
    """Keys less their mean over the kept keys of the same sample and head.

    The softmax kernel does not change by that; a kernel that rectifies its features sees keys that point everywhere.
    A mean over all keys is the same wherever they are, so that equivariance stays exact, but it is not causal.

    Source: this library.
    """

    def forward(
        self,
        query: Float[Tensor, "batch heads queries dim_head"],
        key: Float[Tensor, "batch heads keys dim_head"],
        key_mask: Bool[Tensor, "batch keys"] | None,
    ) -> tuple[Float[Tensor, "batch heads queries dim_head"], Float[Tensor, "batch heads keys dim_head"]]:
        """The queries, and the centred keys.

        Args:
            query: Queries of the heads that attend by content.
            key: Their keys.
            key_mask: True where a key is kept.

        Raises:
            ValueError: A mask of another shape.
        """
        if key_mask is not None:
            check_tensor("key_mask", key_mask, key.shape[0], key.shape[2], dtypes=BOOLEAN)
        return query, key - kept_mean(key, key_mask)


QueryKey = PlainQueryKey | NormalizedQueryKey | CentredQueryKey
QUERY_KEYS = ("plain", "normalized", "centred")


def make_query_key(query_key: str, heads: int, dim_head: int, *, causal: bool) -> QueryKey:
    """What is done to queries and keys, by name.

    Args:
        query_key: "plain", "normalized" or "centred".
        heads: Number of heads that have keys.
        dim_head: Size of a head.
        causal: Whether nothing of a key may depend on another key.

    Raises:
        ValueError: An unknown name, no keys to act on, or keys that would depend on later ones.
    """
    check_name("query_key", query_key, QUERY_KEYS)
    if query_key != "plain" and heads == 0:
        raise wrong_value("query_key", query_key, "'plain' with a kernel that does not look at content")
    if query_key == "centred" and causal:
        raise wrong_value("query_key", query_key, "'plain' or 'normalized' with causal=True: a mean sees later keys")
    match query_key:
        case "plain":
            return PlainQueryKey()
        case "normalized":
            return NormalizedQueryKey(heads, dim_head)
        case _:
            return CentredQueryKey()
