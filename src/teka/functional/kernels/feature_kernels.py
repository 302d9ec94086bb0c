"""The softmax kernel, and kernels for linear attention with fixed or learned feature maps.

In linear attention, attention weights are inner products of the features of queries and keys.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from teka.checks import check_name, check_sizes, check_tensor_sizes
from teka.errors import wrong_shape, wrong_value
from teka.functional.kernels.content_kernel import (
    LOWEST_EXPONENT,
    ContentKernel,
    FeatureKernel,
    mask_features,
    mask_scores,
    masked_mean,
    multiply_by_log_factors,
)
from teka.functional.kernels.rectified import SharedFeatureMapKernel
from teka.functional.shapes import (
    CausalFeatures,
    FeatureMaps,
    Features,
    FeatureVectors,
    KeyFeatures,
    KeyMask,
    Keys,
    LogFactors,
    LogScale,
    PairMask,
    Pairs,
    Queries,
    QueryFeatures,
    QueryMask,
    Tokens,
    Vectors,
)

KEY_SHIFTS = ("none", "mean")


@dataclass(frozen=True)
class Softmax(ContentKernel):
    """The kernel of standard attention, κ(q, k) = exp(scale · qᵀk) for a query q and a key k.

    Attention with L tokens takes O(L²) operations, because this kernel is not an inner product of
    features of finite size.

    Source: Vaswani et al. 2017, equation 1.

    >>> import torch
    >>> from teka.functional import Softmax, attention
    >>> query, key, value = torch.randn(3, 1, 2, 6, 4)
    >>> expected = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    >>> torch.allclose(attention(query, key, value, kernel=Softmax()), expected, atol=1e-6)
    True
    """

    name = "softmax"
    is_softmax = True
    estimates_softmax = True

    @property
    def output_bound(self) -> float:
        return 1.0

    def inner_product_vectors(
        self, query: Queries, key: Keys, *, scale: float, key_mask: KeyMask, is_causal: bool
    ) -> FeatureMaps:
        return scale * query, key, None

    def weights_from_products(
        self, products: Pairs, *, log_relative: LogFactors, log_scale: LogScale, keep: PairMask
    ) -> Pairs:
        scores = products if log_relative is None else products + log_relative
        return torch.softmax(mask_scores(scores, keep), dim=-1)

    def inner_product_size(self, dim: int) -> int:
        return dim

    def log_similarity(self, like: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda product: product


@dataclass(frozen=True)
class Taylor2(FeatureKernel):
    """The second-order Taylor polynomial of the softmax kernel, for linear attention.

        κ(q, k) = 1 + t + t²/2,   t = scale · qᵀk

    Here q is a query and k a key. The polynomial approximates exp(t). It is at least 1/2, and it
    differs from exp(t) by at most 0.22 for |t| ≤ 1. It is exactly the inner product of 1 + d + d(d
    + 1)/2 features of each vector, where d is the size of the vector.

    Optionally, the mean of the keys is subtracted. This does not change softmax attention, but it
    makes t smaller, so that the polynomial is closer to exp(t).

    Source: Keles et al. 2023; Arora et al. 2024 (Based).

    >>> import torch
    >>> from teka.functional import Taylor2
    >>> query = torch.tensor([[[[0.5, 0.0]]]])
    >>> key = torch.tensor([[[[1.0, 0.0]]]])
    >>> Taylor2().weights(query, key, scale=1.0).item()  # t = 0.5 and exp(t) = 1.6487
    1.625
    >>> Taylor2().num_features(2)
    6

    Args:
        key_shift: "mean" to subtract the mean of the keys that are not masked, or "none". Causal
            attention needs "none", because the mean includes later keys.
        key_mean: The mean of the keys, which `with_statistics` sets.

    Raises:
        ValueError: If `key_shift` is unknown, or "mean" in causal attention.
    """

    name = "taylor2"
    nonnegative = True
    # Measured.
    extra_dense_passes = 14
    statistics_fields = ("key_mean",)

    key_shift: str = KEY_SHIFTS[0]
    key_mean: Float[Tensor, "batch heads 1 dim"] | None = None

    def __post_init__(self) -> None:
        check_name("key_shift", self.key_shift, KEY_SHIFTS)

    def num_features(self, dim: int) -> int:
        return 1 + dim + dim * (dim + 1) // 2

    def inner_product_size(self, dim: int) -> int:
        return dim

    def with_statistics(
        self, query: Queries, key: Keys, *, scale: float, query_mask: QueryMask, key_mask: KeyMask
    ) -> "Taylor2":
        if self.key_shift == "none":
            return self
        return Taylor2(self.key_shift, masked_mean(key, key_mask))

    def query_features(self, query: Queries, *, scale: float) -> QueryFeatures:
        return taylor_features(query * math.sqrt(scale))

    def key_features(self, key: Keys, *, scale: float, key_mask: KeyMask = None) -> KeyFeatures:
        key = self._shift_keys(key, is_causal=False)
        return mask_features(taylor_features(key * math.sqrt(scale)), key_mask)

    def causal_key_features(
        self, key: Keys, *, scale: float, key_mask: KeyMask = None
    ) -> CausalFeatures:
        key = self._shift_keys(key, is_causal=True)
        return mask_features(taylor_features(key * math.sqrt(scale)), key_mask), None

    def inner_product_vectors(
        self, query: Queries, key: Keys, *, scale: float, key_mask: KeyMask, is_causal: bool
    ) -> FeatureMaps:
        return scale * query, self._shift_keys(key, is_causal=is_causal), None

    def weights_from_products(
        self, products: Pairs, *, log_relative: LogFactors, log_scale: LogScale, keep: PairMask
    ) -> Pairs:
        return multiply_by_log_factors(
            1 + products + products.square() / 2, log_relative, log_scale, keep
        )

    def log_similarity(self, like: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda product: torch.log(1 + product + product * product / 2)

    def _shift_keys(self, key: Keys, *, is_causal: bool) -> Keys:
        if self.key_shift == "none":
            return key
        if is_causal:
            hint = "The mean of the keys would include later keys."
            raise wrong_value("key_shift", self.key_shift, "'none' in causal attention", hint)
        if self.key_mean is None:
            raise wrong_value("key_mean", None, "set by `with_statistics` with key_shift='mean'")
        return key - self.key_mean


def taylor_features(vectors: Float[Tensor, "*tokens dim"]) -> Float[Tensor, "*tokens features"]:
    """Map vectors to features whose inner products are the Taylor polynomial 1 + xᵀy + (xᵀy)²/2.

    The polynomial approximates exp(xᵀy), the weight of softmax attention. The features of x are 1,
    the squares x_i²/√2, and the products of two different entries of [1, x_1, …, x_d].
    """
    size = vectors.shape[-1] + 1
    one = torch.ones_like(vectors[..., :1])
    ring = torch.cat([one, vectors, one, vectors[..., : (size - 2) // 2]], dim=-1)
    products = [
        ring[..., :size] * ring[..., step : step + size] for step in range(1, size // 2 + 1)
    ]
    features = torch.cat([one, vectors.square() * math.sqrt(0.5), *products], dim=-1)
    # With an even ring, the largest distance gives each product twice.
    return features[..., : size * (size + 1) // 2]


@dataclass(frozen=True)
class Hedgehog(FeatureKernel):
    """Learned feature map for linear attention, a softmax over a projection and its negative.

        φ(x) = softmax([Wx + b, −(Wx + b)])

    Here x is a query or key, and W and b are learned. The attention weight of a query q and a key k
    is φ(q)ᵀφ(k). Before the projection, x is multiplied by √(scale · √d), which is 1 for the usual
    scale 1/√d of vectors of size d.

    The features of a vector are positive and their sum is 1. Therefore the length of a key changes
    which queries attend to it, but not its total weight.

    Source: Zhang et al. 2024 (The Hedgehog & the Porcupine), §4.

    >>> import torch
    >>> from teka.functional import Hedgehog
    >>> kernel = Hedgehog.with_identity_weights(2)
    >>> kernel.query_features(torch.tensor([[[[1.0, 0.0]]]]), scale=2**-0.5).round(decimals=3)
    tensor([[[[0.5340, 0.1970, 0.0720, 0.1970]]]])

    Args:
        query_weight: W of the queries, shape (H, r, d), or (1, r, d) for all heads.
        key_weight: W of the keys, same shape.
        query_bias: b of the queries, shape (H, r) or (1, r).
        key_bias: b of the keys, same shape.

    Raises:
        ValueError: Queries or keys have another number of heads or size than the weights.
    """

    name = "hedgehog"
    nonnegative = True

    query_weight: Float[Tensor, "#heads rows dim"]
    key_weight: Float[Tensor, "#heads rows dim"]
    query_bias: Float[Tensor, "#heads rows"]
    key_bias: Float[Tensor, "#heads rows"]

    @classmethod
    def with_identity_weights(cls, dim: int, heads: int = 1) -> "Hedgehog":
        """Create a feature map whose projections are identity matrices with biases of 0.

        Zhang et al. 2024 start training from these values.
        """
        check_sizes({"dim": dim, "heads": heads})
        check_tensor_sizes({"dim": dim, "heads": heads}, heads * dim**2)
        weight, bias = torch.eye(dim).repeat(heads, 1, 1), torch.zeros(heads, dim)
        return cls(weight, weight.clone(), bias, bias.clone())

    def num_features(self, dim: int) -> int:
        return 2 * self.query_weight.shape[1]

    def query_features(self, query: Queries, *, scale: float) -> QueryFeatures:
        return self._features(query, self.query_weight, self.query_bias, scale)

    def key_features(self, key: Keys, *, scale: float, key_mask: KeyMask = None) -> KeyFeatures:
        return mask_features(self._features(key, self.key_weight, self.key_bias, scale), key_mask)

    def _features(self, vectors: Tokens, weight: Tensor, bias: Tensor, scale: float) -> Features:
        heads, dim = vectors.shape[1], vectors.shape[-1]
        if weight.shape[0] not in (1, heads) or weight.shape[-1] != dim:
            raise wrong_shape(
                "query_weight", weight.shape, f"({heads} or 1, rows, {dim}) for these vectors"
            )
        # Scale the weight and not the vectors, because it has fewer elements.
        weight = math.sqrt(scale * math.sqrt(dim)) * weight.to(vectors)
        projected = vectors @ weight.mT + bias.to(vectors)[:, None]
        exponent = torch.log_softmax(torch.cat([projected, -projected], dim=-1), dim=-1)
        return torch.exp(exponent.clamp_min(LOWEST_EXPONENT))


@dataclass(frozen=True)
class Elu(SharedFeatureMapKernel):
    """The kernel of the first linear transformers, with the features φ(x) = elu(√scale · x) + 1.

    Here x is a query or key. Attention weights are inner products of the features of queries and
    keys. Features are at least exp(−40), so that the denominator of attention is never 0.

    Source: Katharopoulos et al. 2020, equation 7.

    >>> import torch
    >>> from teka.functional import Elu
    >>> Elu().feature_map(torch.tensor([-1.0, 0.0, 2.0]), scale=1.0).round(decimals=3)
    tensor([0.3680, 1.0000, 3.0000])
    """

    name = "elu"
    nonnegative = True

    def num_features(self, dim: int) -> int:
        return dim

    def feature_map(self, vectors: Vectors, *, scale: float) -> FeatureVectors:
        scaled = vectors * math.sqrt(scale)
        is_positive = scaled > 0
        negative_part = scaled.masked_fill(is_positive, 0.0).clamp_min(LOWEST_EXPONENT)
        return torch.where(is_positive, 1 + scaled, torch.exp(negative_part))


@dataclass(frozen=True)
class Constant(SharedFeatureMapKernel):
    """The constant similarity κ(q, k) = 1, which ignores the content of the query q and the key k.

    Attention weights then depend on the positions of the tokens alone.

    Source: Cordonnier et al. 2020, §3.

    >>> import torch
    >>> from teka.functional import Constant, attention
    >>> query, key, value = torch.randn(3, 1, 2, 6, 4)
    >>> mean = value.mean(dim=2, keepdim=True).expand_as(value)
    >>> torch.allclose(attention(query, key, value, kernel=Constant()), mean, atol=1e-6)
    True
    """

    name = "constant"
    uses_content = False
    nonnegative = True

    def num_features(self, dim: int) -> int:
        return 1

    def feature_map(self, vectors: Vectors, *, scale: float) -> FeatureVectors:
        return torch.ones_like(vectors[..., :1])
