"""Similarities of query and key from non-local networks: dot product, concatenation, Gaussian."""

from dataclasses import dataclass

import torch

from teka.functional.kernels.content_kernel import (
    ContentKernel,
    FeatureKernel,
    mask_features,
    multiply_by_log_factors,
)
from teka.functional.kernels.feature_kernels import Softmax
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
    """The similarity scale · qᵀk of a query q and a key k, without softmax.

    The weighted sum of the values is divided by the number of keys. If a relative kernel gives each
    pair an additional weight c_ij, it is divided by Σ_j c_ij instead. Weights may be negative, and
    a key that is twice as long has twice the weight, so the output is not bounded.

    Source: Wang et al. 2018 (Non-local neural networks), equation 4. The denominator with a
    relative kernel is from this library.

    >>> import torch
    >>> from teka.functional import DotProduct, attention
    >>> query = torch.tensor([[[[1.0, 0.0]]]])
    >>> key = torch.tensor([[[[1.0, 0.0], [-2.0, 0.0]]]])
    >>> value = torch.tensor([[[[10.0], [100.0]]]])
    >>> output = attention(query, key, value, kernel=DotProduct(), scale=1.0)
    >>> output.item()  # (1 · 10 − 2 · 100) / 2
    -95.0
    """

    name = "dot_product"
    normalizes_by_count = True

    def num_features(self, dim: int) -> int:
        return dim

    def query_features(self, query: Queries, *, scale: float) -> QueryFeatures:
        return scale * query

    def key_features(self, key: Keys, *, scale: float, key_mask: KeyMask = None) -> KeyFeatures:
        return mask_features(key, key_mask)


@dataclass(frozen=True)
class ConcatenationKernel(ContentKernel):
    """The similarity of non-local networks with concatenation: a ReLU of the sum of all entries.

        κ(q, k) = relu(scale · Σ_i (q_i + k_i))

    Here q is a query and k a key. Non-local networks use relu(wᵀ[q; k]) with a learned vector w. A
    vector of ones is enough, because the projections of queries and keys can learn any other w. The
    weighted sum of the values is divided by the number of keys.

    Source: Wang et al. 2018 (Non-local neural networks), equation 5.

    >>> import torch
    >>> from teka.functional import ConcatenationKernel
    >>> query = torch.tensor([[[[1.0, 2.0]]]])
    >>> key = torch.tensor([[[[3.0, 1.0], [3.0, -9.0]]]])
    >>> ConcatenationKernel().weights(query, key, scale=1.0).flatten()
    tensor([7., 0.])
    """

    name = "concatenation"
    normalizes_by_count = True

    def inner_product_vectors(
        self, query: Queries, key: Keys, *, scale: float, key_mask: KeyMask, is_causal: bool
    ) -> FeatureMaps:
        query_sum = scale * query.sum(dim=-1, keepdim=True)
        key_sum = scale * key.sum(dim=-1, keepdim=True)
        query_vectors = torch.cat([query_sum, torch.ones_like(query_sum)], dim=-1)
        key_vectors = torch.cat([torch.ones_like(key_sum), key_sum], dim=-1)
        return query_vectors, key_vectors, None

    def weights_from_products(
        self, products: Pairs, *, log_relative: LogFactors, log_scale: LogScale, keep: PairMask
    ) -> Pairs:
        return multiply_by_log_factors(torch.relu(products), log_relative, log_scale, keep)

    def inner_product_size(self, dim: int) -> int:
        return 2


@dataclass(frozen=True)
class Gaussian(Softmax):
    """The similarity exp(−scale · ‖q − k‖²/2), which decays with the distance of query and key.

    Unlike the softmax kernel, it does not give more weight to longer keys. It is computed by
    softmax attention with one more entry in queries and keys, so that the scores are scale · (qᵀk −
    ‖k‖²/2).

    Source: Wang et al. 2018, §3.2, after Buades et al. 2005 (non-local means).

    >>> import torch
    >>> from teka.functional import Gaussian, Softmax
    >>> query = torch.tensor([[[[2.0, 0.0]]]])
    >>> key = torch.tensor([[[[2.0, 0.0], [9.0, 0.0]]]])
    >>> Gaussian().weights(query, key, scale=1.0).flatten().round(decimals=3)
    tensor([1., 0.])
    >>> Softmax().weights(query, key, scale=1.0).flatten().round(decimals=3)
    tensor([0., 1.])
    """

    name = "gaussian"
    is_softmax = False
    estimates_softmax = False

    def convert_to_softmax_vectors(self, query: Queries, key: Keys) -> VectorPair:
        half = key.square().sum(dim=-1, keepdim=True) / -2
        query_vectors = torch.cat([query, torch.ones_like(query[..., :1])], dim=-1)
        return query_vectors, torch.cat([key, half], dim=-1)

    def inner_product_vectors(
        self, query: Queries, key: Keys, *, scale: float, key_mask: KeyMask, is_causal: bool
    ) -> FeatureMaps:
        query_vectors, key_vectors = self.convert_to_softmax_vectors(query, key)
        return scale * query_vectors, key_vectors, None

    def inner_product_size(self, dim: int) -> int:
        return dim + 1
