"""Base classes of content kernels, which are similarities of queries and keys in attention."""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka._compat import replace
from teka.checks import check_tensor
from teka.functional.shapes import (
    CausalFeatures,
    FeatureMaps,
    KeyFeatures,
    KeyMask,
    Keys,
    LogFactors,
    LogRelative,
    LogScale,
    PairMask,
    Pairs,
    Queries,
    QueryFeatures,
    QueryMask,
    Values,
    VectorPair,
)

# Features are at least e^−40 times the largest feature. The product of two such features is a
# normal float32 number, so that no denominator is 0. Because the floor is relative, it never
# dominates small features.
LOWEST_EXPONENT = -40.0


class TensorShapeChecks:
    """Mixin for dataclasses that checks the shapes of tensor fields against their annotations.

    The annotations are jaxtyping types such as `Float[Tensor, "heads axes"]`. A dimension with the
    same name must have the same size in all fields. Optional fields and fields with a variable
    number of dimensions are not checked.

    Class attributes:

    - `tensor_shapes`: Names of the dimensions of each checked field.
    """

    tensor_shapes: ClassVar[dict[str, tuple[str, ...]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        shapes = {}
        for name, annotation in inspect.get_annotations(cls).items():
            dimensions = getattr(annotation, "dim_str", "*")
            if "*" not in dimensions:
                shapes[name] = tuple(dimensions.replace("#", "").split())
        cls.tensor_shapes = {**cls.tensor_shapes, **shapes}

    def __post_init__(self) -> None:
        sizes: dict[str, int] = {}
        for name, dimensions in self.tensor_shapes.items():
            tensor = getattr(self, name)
            check_tensor(
                name, tensor, *(sizes.get(dimension, dimension) for dimension in dimensions)
            )
            for dimension, size in zip(dimensions, tensor.shape, strict=True):
                sizes[dimension] = size


class ContentKernel(TensorShapeChecks, ABC):
    """Base class of content kernels κ(q, k), which are similarities of a query q and a key k.

    An example is exp(scale · qᵀk) in softmax attention. The similarity is the attention weight
    before normalization, and it does not depend on the positions of the tokens.

    Class attributes:

    - `name`: Name of the kernel in `teka.functional.KERNELS`.
    - `uses_content`: True if κ depends on q and k.
    - `is_softmax`: True if κ(q, k) = exp(scale · qᵀk).
    - `estimates_softmax`: True if κ(q, k) is exp(scale · qᵀk) or an estimate of it.
    - `normalizes_by_count`: True if the output is divided by the number of keys instead of the sum
      of the weights. With a relative kernel c_ij, it is divided by Σ_j c_ij.
    - `extra_dense_passes`: Number of additional passes over all pairs that
      `weights_from_products` takes compared with other kernels.
    - `statistics_fields`: Names of the fields that `FeatureKernel.with_statistics` sets. Their
      tensors have one entry for each sample.

    >>> import torch
    >>> from teka.functional import DotProduct, Softmax
    >>> query = torch.tensor([[[[1.0, 0.0]]]])
    >>> key = torch.tensor([[[[0.0, 1.0], [1.0, 0.0], [3.0, 0.0]]]])
    >>> Softmax().weights(query, key, scale=1.0).flatten().round(decimals=2)
    tensor([0.0400, 0.1100, 0.8400])
    >>> DotProduct().weights(query, key, scale=1.0).flatten()
    tensor([0., 1., 3.])
    """

    name: ClassVar[str]
    uses_content: ClassVar[bool] = True
    is_softmax: ClassVar[bool] = False
    estimates_softmax: ClassVar[bool] = False
    normalizes_by_count: ClassVar[bool] = False
    extra_dense_passes: ClassVar[int] = 0
    statistics_fields: ClassVar[tuple[str, ...]] = ()

    def repeat_samples(self, repeats: int) -> "ContentKernel":
        """Return the kernel for a batch in which each sample is repeated `repeats` times.

        A kernel may store statistics of each sample, such as the mean of its keys. They are
        repeated in the same way.
        """
        repeated = {}
        for name in self.statistics_fields:
            tensor = getattr(self, name)
            if tensor is not None:
                repeated[name] = tensor.repeat_interleave(repeats, dim=0)
        return replace(self, **repeated) if repeated else self

    @property
    def output_bound(self) -> float | None:
        """Upper bound of |output| / max |value| for attention with this kernel, or None.

        The bound is 1 if each output is a weighted mean of the values, with non-negative weights.
        It is None if outputs can be arbitrarily large.
        """
        return None

    @property
    def features(self) -> "FeatureKernel | None":
        """Return this kernel if it has a feature map, else None."""
        return None

    def convert_to_softmax_vectors(self, query: Queries, key: Keys) -> VectorPair | None:
        """Return queries and keys for which softmax attention equals attention with this kernel.

        The attention weights are the softmax of scale · xᵀy, where x is a returned query and y a
        returned key. Return None if this kernel cannot be written as softmax attention.
        """
        return (query, key) if self.is_softmax else None

    @abstractmethod
    def inner_product_vectors(
        self, query: Queries, key: Keys, *, scale: float, key_mask: KeyMask, is_causal: bool
    ) -> FeatureMaps:
        """Map queries and keys to vectors whose inner products determine the attention weights.

        The method `weights_from_products` computes the weight of a query and a key from the inner
        product of their vectors. In causal attention, the vector of a key must not depend on other
        keys.

        Returns:
            The vectors of queries, the vectors of keys, and the log scale s_j of each key, or None
            if all log scales are 0. The weights of key j are multiplied by exp(s_j).
        """

    @abstractmethod
    def weights_from_products(
        self, products: Pairs, *, log_relative: LogFactors, log_scale: LogScale, keep: PairMask
    ) -> Pairs:
        """Compute the attention weights of all query–key pairs from inner products of vectors.

        The weight of a pair is the similarity of query and key times a position-dependent weight.
        All weights of one query may be multiplied by the same number, because it cancels in the
        normalization.

        Args:
            products: Inner products of the `inner_product_vectors`.
            log_relative: log c_ij, or None for c = 1.
            log_scale: Log scale s_j of the `inner_product_vectors`.
            keep: True for the pairs to attend to. All other pairs have a weight of 0.
        """

    def weights(
        self,
        query: Queries,
        key: Keys,
        *,
        scale: float,
        log_relative: LogFactors = None,
        key_mask: KeyMask = None,
        is_causal: bool = False,
    ) -> Pairs:
        """Return the matrix of attention weights of all queries and keys, before normalization.

        The weight of a pair is the similarity of query and key times a position-dependent weight.
        All weights of one query may be multiplied by the same number. They are 0 for a query
        without a key. The tests compare faster algorithms with this reference implementation.
        """
        inputs = DenseAttentionInputs(query, key, key, self, scale, key_mask, is_causal)
        left, right, log_scale = inputs.vectors()
        keep, is_empty = inputs.attention_masks()
        weights = self.weights_from_products(
            left @ right.mT, log_relative=log_relative, log_scale=log_scale, keep=keep
        )
        return weights if is_empty is None else weights.masked_fill(is_empty, 0.0)

    @abstractmethod
    def inner_product_size(self, dim: int) -> int:
        """Return the size of the vectors from `inner_product_vectors` for queries of size `dim`."""

    def log_similarity(self, like: Tensor) -> Callable[[Tensor], Tensor] | None:
        """Return a function that maps inner products to logarithms of similarities, or None.

        The inner product is that of the two vectors which `inner_product_vectors` returns for a
        query and a key. FlexAttention needs logarithms, so that it can add position biases. Return
        None if similarities may be negative, because they have no logarithm. `like` is a tensor
        with the dtype and the device of the inner products.
        """
        return None


@dataclass(frozen=True)
class DenseAttentionInputs:
    """Queries, keys, values and masks for attention that computes every query–key pair.

    Args:
        query: Queries.
        key: Keys.
        value: Values.
        kernel: Content kernel.
        scale: Factor of qᵀk.
        key_mask: True for the keys to attend to, or None for all.
        is_causal: If True, query i sees keys j ≤ i only.
        window_mask: True for the pairs within the window of the relative kernel, or None for all.
    """

    query: Queries
    key: Keys
    value: Values
    kernel: ContentKernel
    scale: float
    key_mask: KeyMask
    is_causal: bool
    window_mask: PairMask = None

    def vectors(self) -> FeatureMaps:
        """Return the `inner_product_vectors` of all queries and keys."""
        options = {"scale": self.scale, "key_mask": self.key_mask, "is_causal": self.is_causal}
        return self.kernel.inner_product_vectors(self.query, self.key, **options)

    def attention_masks(self) -> tuple[PairMask, Bool[Tensor, "batch 1 queries 1"] | None]:
        """Return a mask of the query–key pairs to attend to, and a mask of queries without any key.

        A softmax over no keys would be NaN, so queries without any key attend to all keys in the
        first mask. The second mask marks these queries, so that the caller can set their outputs to
        0. The first mask is None if all pairs are allowed. The second mask is None if neither a key
        mask nor a window excludes keys.

        If causal attention has fewer queries than keys, the queries are the last tokens.
        """
        keep = self.window_mask
        if self.key_mask is not None:
            key_mask = self.key_mask[:, None, None, :]
            keep = key_mask if keep is None else keep & key_mask
        past = None
        if self.is_causal:
            num_queries, num_keys = self.query.shape[2], self.key.shape[2]
            ones = self.query.new_ones(num_queries, num_keys, dtype=torch.bool)
            past = ones.tril(num_keys - num_queries)[None, None]
        if keep is None:
            return past, None
        if past is not None:
            keep = keep & past
        # Not `any`, because Inductor of PyTorch 2.6 writes C++ that does not compile.
        is_empty = keep.sum(dim=-1, keepdim=True) == 0
        return keep | is_empty, is_empty

    def with_softmax_vectors(self, query: Queries, key: Keys) -> "DenseAttentionInputs":
        """Return a copy with queries and keys from `RelativeKernel.convert_to_softmax_vectors`.

        The scale of the copy is 1, because these vectors already include the scale.
        """
        return replace(self, query=query, key=key, scale=1.0)


class FeatureKernel(ContentKernel):
    """Base class of similarities κ(q, k) = φ(q)ᵀφ(k) of query q and key k, with a feature map φ.

    Attention with such a kernel takes linear time, because sums over all keys are computed only
    once. They are then multiplied by φ(q) for each query.

    >>> import torch
    >>> from teka.functional import FeatureKernel, attention
    >>> from teka.functional.kernels.content_kernel import mask_features
    >>> class Absolute(FeatureKernel):
    ...     name, nonnegative = "absolute", True
    ...     def num_features(self, dim):
    ...         return dim
    ...     def query_features(self, query, *, scale):
    ...         return query.abs()
    ...     def key_features(self, key, *, scale, key_mask=None):
    ...         return mask_features(key.abs(), key_mask)
    >>> attention(*torch.randn(3, 1, 2, 6, 4), kernel=Absolute(), backend="linear").shape
    torch.Size([1, 2, 6, 4])
    """

    nonnegative: ClassVar[bool] = False

    @property
    def output_bound(self) -> float | None:
        return 1.0 if self.nonnegative and not self.normalizes_by_count else None

    @property
    def features(self) -> "FeatureKernel":
        return self

    @abstractmethod
    def num_features(self, dim: int) -> int:
        """Return the number of features of a vector of size `dim`."""

    def inner_product_size(self, dim: int) -> int:
        return self.num_features(dim)

    def with_statistics(
        self, query: Queries, key: Keys, *, scale: float, query_mask: QueryMask, key_mask: KeyMask
    ) -> "FeatureKernel":
        """Return a copy of the kernel that stores statistics of queries and keys, such as means.

        The statistics are computed for each head of each sample. By default, a kernel has no
        statistics, and the kernel itself is returned. A kernel with statistics stores them in
        dataclass fields, whose names are in `statistics_fields`. Causal attention does not call
        this method, because the statistics would include later tokens.
        """
        return self

    @abstractmethod
    def query_features(self, query: Queries, *, scale: float) -> QueryFeatures:
        """Map queries to features φ(q), whose inner products with φ(k) are the attention weights.

        To avoid overflow, a kernel may multiply the features of each query by a positive number,
        because it cancels in the normalization. If `normalizes_by_count` is True, this number must
        be 1.
        """

    @abstractmethod
    def key_features(self, key: Keys, *, scale: float, key_mask: KeyMask = None) -> KeyFeatures:
        """Map keys to features φ(k), whose inner products with φ(q) are the attention weights.

        The features of masked keys are 0. To avoid overflow, a kernel may multiply the features of
        all keys of a head by the same positive number, because it cancels in the normalization. If
        `normalizes_by_count` is True, this number must be 1.
        """

    def causal_key_features(
        self, key: Keys, *, scale: float, key_mask: KeyMask = None
    ) -> CausalFeatures:
        """Map keys to features for causal attention, scaled so that they do not overflow.

        Return the features φ(k_j) · exp(−s_j) and the log scale s_j of each key j. Both depend on
        key j alone, because later keys must not change earlier outputs. Features of masked keys are
        0. The log scales are finite, or None if they are 0 for all keys.
        """
        return self.key_features(key, scale=scale, key_mask=key_mask), None

    def map_to_features(
        self, query: Queries, key: Keys, *, scale: float, key_mask: KeyMask, is_causal: bool
    ) -> FeatureMaps:
        """Map queries and keys to features, whose inner products are the attention weights.

        In causal attention, the features of each key may be divided by a positive number to avoid
        overflow. The third result contains the logarithms of these numbers, or is None if no
        features were divided.
        """
        features = self.query_features(query, scale=scale)
        if is_causal:
            return features, *self.causal_key_features(key, scale=scale, key_mask=key_mask)
        return features, self.key_features(key, scale=scale, key_mask=key_mask), None

    inner_product_vectors = map_to_features

    def weights_from_products(
        self, products: Pairs, *, log_relative: LogFactors, log_scale: LogScale, keep: PairMask
    ) -> Pairs:
        return multiply_by_log_factors(products, log_relative, log_scale, keep)

    def log_similarity(self, like: Tensor) -> Callable[[Tensor], Tensor] | None:
        if not self.nonnegative:
            return None
        tiny = smallest_normal_number(like)
        return lambda product: torch.log(torch.maximum(product, tiny))


def smallest_normal_number(like: Tensor) -> Float[Tensor, ""]:
    """Return the smallest normal number of the dtype of `like`, as a scalar tensor.

    Arguments of logarithms are limited to this number, so that gradients stay finite. The result is
    a tensor because FlexAttention traces a Python number as an unknown value.
    """
    return torch.full((), torch.finfo(like.dtype).tiny, dtype=like.dtype, device=like.device)


def multiply_by_log_factors(
    weights: Pairs, log_relative: LogFactors, log_scale: LogScale, keep: PairMask
) -> Pairs:
    """Multiply attention weights by two factors that are given as logarithms, without overflow.

    The first factor is the position-dependent weight of a query and a key. The second factor is the
    number by which the features of the key were divided. To avoid overflow, the factors of a query
    are divided by the largest one, which cancels in the normalization. Masked pairs get a weight of
    0.

    Args:
        weights: Attention weights of all query–key pairs.
        log_relative: Logarithms of the position-dependent weights, or None if all are 1.
        log_scale: Logarithms of the scales of the keys, or None if all are 1.
        keep: True for the pairs that are not masked, or None.
    """
    if log_scale is not None:
        log_scale = log_scale[:, :, None]
        log_relative = log_scale if log_relative is None else log_relative + log_scale
    if log_relative is None:
        return weights if keep is None else weights.masked_fill(~keep, 0.0)
    log_relative = mask_scores(log_relative, keep)
    return weights * torch.exp(log_relative - log_relative.amax(dim=-1, keepdim=True).detach())


def mask_scores(scores: LogRelative, keep: PairMask) -> Float[Tensor, "..."]:
    """Set the attention scores of masked pairs to −∞."""
    return scores if keep is None else scores.masked_fill(~keep, -math.inf)


def mask_features(features: KeyFeatures, key_mask: KeyMask) -> KeyFeatures:
    """Set the vectors of masked tokens to 0, so that these tokens do not contribute to sums."""
    return features if key_mask is None else features.masked_fill(~key_mask[:, None, :, None], 0.0)


def masked_mean(vectors: Keys, mask: KeyMask) -> Float[Tensor, "batch heads 1 dim"]:
    """Return the mean of the query or key vectors of each head over all tokens that are not masked.

    The mean is 0 if all tokens are masked. Masked tokens may contain NaN.
    """
    if mask is None:
        return vectors.mean(dim=-2, keepdim=True)
    count = mask.sum(dim=-1).clamp_min(1)[:, None, None, None]
    return mask_features(vectors, mask).sum(dim=-2, keepdim=True) / count
