"""The softmax kernel, and deterministic feature maps: its Taylor series, Hedgehog's learned maps, elu, the constant."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from teka.checks import check_name, check_sizes, check_tensor, check_tensor_sizes
from teka.errors import wrong_shape, wrong_value
from teka.functional.kernels.base import (
    LOWEST_EXPONENT,
    FeatureKernel,
    Kernel,
    apply_log_factor,
    mask_features,
    mask_scores,
    masked_mean,
)
from teka.functional.kernels.rectified import PointwiseKernel
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

KeyShift = Literal["none", "mean"]
KEY_SHIFTS = get_args(KeyShift)  # here, as torch.compile of torch 2.6 follows no `get_args`


@dataclass(frozen=True)
class Softmax(Kernel):
    """κ(q, k) = exp(scale · qᵀk), with no finite feature map: O(L²). Source: Vaswani et al. 2017, equation 1.

    >>> import torch
    >>> from teka.functional import Softmax, attention
    >>> query, key, value = torch.randn(3, 1, 2, 6, 4)
    >>> of_torch = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    >>> torch.allclose(attention(query, key, value, kernel=Softmax()), of_torch, atol=1e-6)
    True
    """

    name: ClassVar[str] = "softmax"
    estimates_softmax: ClassVar[bool] = True
    is_softmax: ClassVar[bool] = True

    @property
    def bound(self) -> float:
        return 1.0

    def dense_vectors(
        self, query: Queries, key: Keys, *, scale: float, key_mask: KeyMask, is_causal: bool
    ) -> FeatureMaps:
        return scale * query, key, None

    def dense_weights(
        self, products: Pairs, *, log_relative: LogFactors, log_scale: LogScale, keep: PairMask
    ) -> Pairs:
        scores = products if log_relative is None else products + log_relative
        return torch.softmax(mask_scores(scores, keep), dim=-1)

    def dense_size(self, dim: int) -> int:
        return dim

    def log_content(self, like: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda product: product


@dataclass(frozen=True)
class Taylor2(FeatureKernel):
    """κ(q, k) = 1 + t + t²/2 with t = scale · qᵀk: finite, exact, deterministic.

    φ(x) = [1, x_i²/√2, x, x_i x_j (i < j)] with x = √scale · q (or k), of length 1 + d + d(d+1)/2. κ = ((1 + t)² + 1)/2
    ≥ ½ is within 0.22 of exp(t) for |t| ≤ 1, and about t²/2 for large t of either sign. Less the mean of the keys,
    which softmax would not notice, t is smaller, κ nearer to it. Source: Keles et al. 2023; Arora et al. 2024 (Based).

    >>> import torch
    >>> from teka.functional import Taylor2
    >>> query, key = torch.tensor([[[[0.5, 0.0]]]]), torch.tensor([[[[1.0, 0.0]]]])  # t = 0.5, where exp(t) = 1.6487
    >>> Taylor2().weights(query, key, scale=1.0).item(), Taylor2().num_features(2)
    (1.625, 6)

    Args:
        key_shift: What is subtracted from the keys: "none", or "mean" for that of the kept keys; causally a ValueError.
        key_mean: That mean, which `fitted` takes.
    """

    name: ClassVar[str] = "taylor2"
    nonnegative: ClassVar[bool] = True
    extra_dense_passes: ClassVar[int] = 14  # measured
    fitted_tensors: ClassVar[tuple[str, ...]] = ("key_mean",)

    key_shift: KeyShift = "none"
    key_mean: Float[Tensor, "batch heads 1 dim"] | None = None

    def __post_init__(self) -> None:
        check_name("key_shift", self.key_shift, KEY_SHIFTS)

    def num_features(self, dim: int) -> int:
        return 1 + dim + dim * (dim + 1) // 2

    def dense_size(self, dim: int) -> int:
        return dim

    def fitted(
        self, query: Queries, key: Keys, *, scale: float, query_mask: QueryMask, key_mask: KeyMask
    ) -> "Taylor2":
        return (
            self
            if self.key_shift == "none"
            else Taylor2(self.key_shift, masked_mean(key, key_mask))
        )

    def query_features(self, query: Queries, *, scale: float) -> QueryFeatures:
        return second_order_features(query * math.sqrt(scale))

    def key_features(self, key: Keys, *, scale: float, key_mask: KeyMask = None) -> KeyFeatures:
        return mask_features(second_order_features(self._shifted(key) * math.sqrt(scale)), key_mask)

    def causal_key_features(
        self, key: Keys, *, scale: float, key_mask: KeyMask = None
    ) -> CausalFeatures:
        self._check_causal()
        return self.key_features(key, scale=scale, key_mask=key_mask), None

    def dense_vectors(
        self, query: Queries, key: Keys, *, scale: float, key_mask: KeyMask, is_causal: bool
    ) -> FeatureMaps:
        if is_causal:
            self._check_causal()
        return scale * query, self._shifted(key), None

    def dense_weights(
        self, products: Pairs, *, log_relative: LogFactors, log_scale: LogScale, keep: PairMask
    ) -> Pairs:
        return apply_log_factor(1 + products + products.square() / 2, log_relative, log_scale, keep)

    def log_content(self, like: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda product: torch.log(1 + product + product * product / 2)

    def _check_causal(self) -> None:
        if self.key_shift != "none":
            raise wrong_value(
                "key_shift",
                self.key_shift,
                "'none' in causal attention; a mean would include later keys",
            )

    def _shifted(self, key: Keys) -> Keys:
        if self.key_shift == "none":
            return key
        if self.key_mean is None:
            raise wrong_value(
                "key_mean", None, "the mean of the keys with key_shift='mean'; call `fitted` first"
            )
        return key - self.key_mean


def second_order_features(
    vectors: Float[Tensor, "*tokens dim"],
) -> Float[Tensor, "*tokens features"]:
    """[1, x_i²/√2, x_i x_j (i ≠ j, x_0 = 1)]; its inner product with that of y is 1 + xᵀy + (xᵀy)²/2.

    Pairs come by how far apart they are on a ring of 1, x_1, …, x_d: one product of slices for each distance.
    """
    ring, size = ring_of(vectors, dim=-1), vectors.shape[-1] + 1
    products = [
        ring[..., :size] * ring[..., step : step + size] for step in range(1, size // 2 + 1)
    ]
    features = torch.cat([ring[..., :1], vectors.square() * math.sqrt(0.5), *products], dim=-1)
    return features[..., : size * (size + 1) // 2]  # where d is odd, opposite pairs are there twice


def ring_of(vectors: Float[Tensor, "*sizes"], dim: int) -> Float[Tensor, "*longer"]:
    """1, x_1, …, x_d along a dimension, and half of them again: where those that follow an entry are a slice."""
    first = torch.ones_like(vectors.narrow(dim, 0, 1))
    return torch.cat(
        [first, vectors, first, vectors.narrow(dim, 0, (vectors.shape[dim] - 1) // 2)], dim=dim
    )


@dataclass(frozen=True)
class Hedgehog(FeatureKernel):
    """κ(q, k) = φ(q)ᵀφ(k), φ(x) = softmax([Wx + b, −(Wx + b)]) over the 2r features: learned, positive, at most 1.

    Features add up to 1: for a query the sum cancels in the normaliser, for a key it does not, so that a key's length
    changes how it shares its weight among queries and not how much it has. x = √(scale · √d) · q (or k), with the scale
    1/√d q itself, as in the paper. Source: Zhang et al. 2024 (The Hedgehog & the Porcupine), §4.

    >>> import torch
    >>> from teka.functional import Hedgehog
    >>> kernel = Hedgehog.identity(2)  # W = I and b = 0, from which it is learned
    >>> kernel.query_features(torch.tensor([[[[1.0, 0.0]]]]), scale=2**-0.5).round(decimals=3)
    tensor([[[[0.5340, 0.1970, 0.0720, 0.1970]]]])

    Args:
        query_weight: W of the queries, shape (H, r, d), or (1, r, d) for all heads.
        key_weight: W of the keys.
        query_bias: b of the queries, shape (H, r), or (1, r).
        key_bias: b of the keys.
    """

    name: ClassVar[str] = "hedgehog"
    nonnegative: ClassVar[bool] = True

    query_weight: Float[Tensor, "#heads maps dim"]
    key_weight: Float[Tensor, "#heads maps dim"]
    query_bias: Float[Tensor, "#heads maps"]
    key_bias: Float[Tensor, "#heads maps"]

    def __post_init__(self) -> None:
        check_tensor("query_weight", self.query_weight, "heads", "maps", "dim")
        heads, maps, dim = self.query_weight.shape
        check_tensor("key_weight", self.key_weight, heads, maps, dim)
        check_tensor("query_bias", self.query_bias, heads, maps)
        check_tensor("key_bias", self.key_bias, heads, maps)

    @classmethod
    def identity(cls, dim: int, heads: int = 1) -> "Hedgehog":
        """W = identity and b = 0, with which the paper begins to learn; one head for the same in all."""
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
                "query_weight", weight.shape, f"({heads} or 1, maps, {dim}) for these vectors"
            )
        # The factor is 1 but for rounding where the scale is 1/√d; it meets W, which is small, and not the vectors.
        factor = math.sqrt(scale * math.sqrt(dim))
        mapped = (
            vectors @ (factor * weight.to(vectors)).transpose(-2, -1) + bias.to(vectors)[:, None]
        )
        exponent = torch.log_softmax(torch.cat([mapped, -mapped], dim=-1), dim=-1)
        return torch.exp(exponent.clamp_min(LOWEST_EXPONENT))


@dataclass(frozen=True)
class Elu(PointwiseKernel):
    """φ(x) = elu(x) + 1 with x = √scale · q (or k), no less than exp(−40) (Katharopoulos et al. 2020, equation 7).

    >>> import torch
    >>> from teka.functional import Elu
    >>> Elu().feature_map(torch.tensor([-1.0, 0.0, 2.0]), scale=1.0).round(decimals=3)
    tensor([0.3680, 1.0000, 3.0000])
    """

    name: ClassVar[str] = "elu"
    nonnegative: ClassVar[bool] = True

    def num_features(self, dim: int) -> int:
        return dim

    def feature_map(self, vectors: Vectors, *, scale: float) -> FeatureVectors:
        scaled = vectors * math.sqrt(scale)
        is_positive = scaled > 0
        return torch.where(
            is_positive,
            1 + scaled,
            torch.exp(scaled.masked_fill(is_positive, 0.0).clamp_min(LOWEST_EXPONENT)),
        )


@dataclass(frozen=True)
class Constant(PointwiseKernel):
    """κ(q, k) = 1, φ(x) = [1]: attention by place alone. Source: Cordonnier et al. 2020, §3 (content left out).

    >>> import torch
    >>> from teka.functional import Constant, attention
    >>> query, key, value = torch.randn(3, 1, 2, 6, 4)
    >>> mean = value.mean(dim=2, keepdim=True).expand_as(value)
    >>> torch.allclose(attention(query, key, value, kernel=Constant()), mean, atol=1e-6)
    True
    """

    name: ClassVar[str] = "constant"
    uses_content: ClassVar[bool] = False
    nonnegative: ClassVar[bool] = True

    def num_features(self, dim: int) -> int:
        return 1

    def feature_map(self, vectors: Vectors, *, scale: float) -> FeatureVectors:
        return torch.ones_like(vectors[..., :1])
