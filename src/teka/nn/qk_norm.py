"""Normalization of queries and keys."""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.functional import rms_norm

from teka.errors import wrong_value
from teka.execution_mode import can_read_elements
from teka.functional.attention_plan import may_overflow_in_float32
from teka.functional.kernels.content_kernel import masked_mean
from teka.functional.shapes import KeyMask, Keys, Queries


class IdentityQueryKeyNorm(nn.Module):
    """Placeholder that returns queries and keys unchanged, like `torch.nn.Identity`.

    It is also the base class of the modules that normalize queries and keys.

    Attributes:
        has_effect: True if the module changes queries or keys.
        removes_bias: True if the module cancels a bias of the keys.
        head_parameters: Names of the parameters that have one entry for each head.
    """

    has_effect: ClassVar[bool] = False
    removes_bias: ClassVar[bool] = False
    head_parameters: ClassVar[tuple[str, ...]] = ()

    def forward(self, query: Queries, key: Keys, key_mask: KeyMask) -> tuple[Queries, Keys]:
        """Return the normalized queries and keys.

        Args:
            query: Queries of the heads that depend on content, shape (B, H, L_q, d).
            key: Keys, shape (B, H, L_k, d).
            key_mask: True for keys that may be attended to, shape (B, L_k), or None.
        """
        return query, key


class QueryKeyRMSNorm(IdentityQueryKeyNorm):
    """RMS normalization of queries and keys with a learned gain.

        x' = g ⊙ x / √(mean(x²))

    Here x is a query or key, and the gain g has an entry for each head and channel. With the
    softmax kernel, a larger gain makes the attention weights sharper, like a lower temperature.

    Source: Henry et al. 2020 and Dehghani et al. 2023, with the norm of Zhang & Sennrich 2019.
    """

    has_effect = True
    head_parameters = ("query_gain", "key_gain")

    def __init__(self, heads: int, dim_head: int) -> None:
        super().__init__()
        self.query_gain = Parameter(torch.ones(heads, 1, dim_head))
        self.key_gain = Parameter(torch.ones(heads, 1, dim_head))

    def forward(self, query: Queries, key: Keys, key_mask: KeyMask) -> tuple[Queries, Keys]:
        return _normalize(query, self.query_gain), _normalize(key, self.key_gain)


def _normalize(vectors: Tensor, gain: Tensor) -> Tensor:
    # The squares of large float32 values overflow.
    is_large = can_read_elements(vectors) and vectors.is_cpu and may_overflow_in_float32(vectors)
    wide = vectors.double() if is_large else vectors
    # Under autocast the gain is float32 but the vectors are not, so cast back.
    return (rms_norm(wide, wide.shape[-1:]) * gain).to(vectors.dtype)


class KeyCentering(IdentityQueryKeyNorm):
    """Centering of the keys, by subtraction of their mean over the tokens of each sample.

    Each head has its own mean, which excludes masked keys. Centering does not change softmax
    attention. It changes kernels that apply a ReLU, because centered keys point in all directions.
    Centering is equivariant to shifts, but not causal, because the mean depends on later keys.
    """

    has_effect = True
    removes_bias = True

    def forward(self, query: Queries, key: Keys, key_mask: KeyMask) -> tuple[Queries, Keys]:
        return query, key - masked_mean(key, key_mask)


QUERY_KEYS = ("plain", "normalized", "centred")


def make_query_key_norm(query_key: str, heads: int, dim_head: int) -> IdentityQueryKeyNorm:
    """Create the module that normalizes queries and keys, from its name in `QUERY_KEYS`.

    Raises:
        ValueError: No head depends on content, so that a normalization would have no effect.
    """
    if query_key == "plain":
        return IdentityQueryKeyNorm()
    if heads == 0:
        hint = "The kernel does not depend on queries and keys."
        raise wrong_value("query_key", query_key, "'plain'", hint)
    return KeyCentering() if query_key == "centred" else QueryKeyRMSNorm(heads, dim_head)
