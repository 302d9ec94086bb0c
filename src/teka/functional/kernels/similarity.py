"""Other similarities of a query and a key: their dot product, a Gaussian of their distance, a rectified sum."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from teka.functional.kernels.base import FeatureKernel, Kernel, apply_log_factor, mask_features
from teka.functional.kernels.features import Softmax
from teka.functional.shapes import (
    FeatureMaps,
    KeyFeatures,
    KeyMask,
    Keys,
    LogFactors,
    LogScale,
    PairMask,
    Pairs,
    Queries,
    QueryFeatures,
    VectorPair,
)


@dataclass(frozen=True)
class DotProduct(FeatureKernel):
    """κ(q, k) = scale · qᵀk over the number of keys, out_i = Σ_j κ c v_j / Σ_j c: d features, weights of both signs.

    A key that is twice as long weighs twice as much, and nothing bounds the output by the values. Source: Wang et al.
    2018 (Non-local neural networks), equation 4; that Σ c is the number of keys where there is a c is this library's.

    >>> import torch
    >>> from teka.functional import DotProduct, attention
    >>> query, key = torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([[[[1.0, 0.0], [-2.0, 0.0]]]])
    >>> value = torch.tensor([[[[10.0], [100.0]]]])
    >>> attention(query, key, value, kernel=DotProduct(), scale=1.0).item()  # (1 · 10 − 2 · 100) / 2
    -95.0
    """

    name: ClassVar[str] = "dot_product"
    normalizes_by_count: ClassVar[bool] = True
    nonnegative: ClassVar[bool] = False

    def num_features(self, dim: int) -> int:
        return dim

    def query_features(self, query: Queries, *, scale: float) -> QueryFeatures:
        return scale * query

    def key_features(self, key: Keys, *, scale: float, key_mask: KeyMask = None) -> KeyFeatures:
        return mask_features(key, key_mask)


@dataclass(frozen=True)
class Concatenation(Kernel):
    """κ(q, k) = scale · relu(Σ_e q_e + Σ_e k_e) over the number of keys, as `DotProduct`: the query and the key apart.

    The paper's relu(wᵀ[q; k]) with w of ones: any other w is a linear map of q and k, which is what makes them. Source:
    Wang et al. 2018, equation 5.

    >>> import torch
    >>> from teka.functional import Concatenation
    >>> query, key = torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[3.0, 1.0], [3.0, -9.0]]]])
    >>> Concatenation().weights(query, key, scale=1.0).flatten()
    tensor([7., 0.])
    """

    name: ClassVar[str] = "concatenation"
    normalizes_by_count: ClassVar[bool] = True

    def dense_vectors(
        self, query: Queries, key: Keys, *, scale: float, key_mask: KeyMask, is_causal: bool
    ) -> FeatureMaps:
        of_query, of_key = (scale * one.sum(dim=-1, keepdim=True) for one in (query, key))
        one = torch.ones_like(of_query), torch.ones_like(of_key)
        return torch.cat([of_query, one[0]], dim=-1), torch.cat([one[1], of_key], dim=-1), None

    def dense_weights(
        self, products: Pairs, *, log_relative: LogFactors, log_scale: LogScale, keep: PairMask
    ) -> Pairs:
        return apply_log_factor(torch.relu(products), log_relative, log_scale, keep)

    def dense_size(self, dim: int) -> int:
        return 2


@dataclass(frozen=True)
class Gaussian(Softmax):
    """κ(q, k) = exp(−scale · ‖q − k‖²/2): softmax with −scale · ‖k‖²/2 added for each key, fused where there is no c.

    No key wins for being long. Source: Wang et al. 2018, §3.2, after Buades et al. 2005 (non-local means).

    >>> import torch
    >>> from teka.functional import Gaussian, Softmax
    >>> query, key = torch.tensor([[[[2.0, 0.0]]]]), torch.tensor([[[[2.0, 0.0], [9.0, 0.0]]]])
    >>> [kernel.weights(query, key, scale=1.0).flatten().round(decimals=3) for kernel in (Gaussian(), Softmax())]
    [tensor([1., 0.]), tensor([0., 1.])]
    """

    name: ClassVar[str] = "gaussian"
    estimates_softmax: ClassVar[bool] = False
    is_softmax: ClassVar[bool] = False

    def softmax_vectors(self, query: Queries, key: Keys) -> VectorPair:
        half = key.square().sum(dim=-1, keepdim=True) / -2
        return torch.cat([query, torch.ones_like(query[..., :1])], dim=-1), torch.cat(
            [key, half], dim=-1
        )

    def dense_vectors(
        self, query: Queries, key: Keys, *, scale: float, key_mask: KeyMask, is_causal: bool
    ) -> FeatureMaps:
        longer = self.softmax_vectors(query, key)
        return scale * longer[0], longer[1], None

    def dense_size(self, dim: int) -> int:
        return dim + 1
