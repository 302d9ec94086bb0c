"""Base classes of content kernels κ(q, k)."""

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


class TensorFields:
    """Mixin of dataclasses that checks tensor fields against their jaxtyping annotations.

    Dimensions of the same name must have the same size in all fields. Optional fields and fields
    with a variable number of dimensions are not checked.

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


class Kernel(TensorFields, ABC):
    """Base class of content kernels κ(q, k), which weigh a key by its content.

    Class attributes:

    - `name`: Name of the kernel in `teka.functional.KERNELS`.
    - `uses_content`: True if κ depends on q and k.
    - `is_softmax`: True if κ(q, k) = exp(scale · qᵀk).
    - `estimates_softmax`: True if κ(q, k) is exp(scale · qᵀk) or an estimate of it.
    - `normalizes_by_count`: True if the output is divided by Σ_j c_ij, which is the number of keys
      without a relative kernel, instead of the sum of the weights.
    - `extra_dense_passes`: Number of passes over all pairs that `dense_weights` takes in addition
      to those of the other kernels.
    - `fitted_tensors`: Names of the fields that `FeatureKernel.fitted` sets, with one entry for
      each sample.

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
    fitted_tensors: ClassVar[tuple[str, ...]] = ()

    def repeat_samples(self, repeats: int) -> "Kernel":
        """Return the kernel for a batch that is repeated by `torch.repeat_interleave`."""
        repeated = {}
        for name in self.fitted_tensors:
            tensor = getattr(self, name)
            if tensor is not None:
                repeated[name] = tensor.repeat_interleave(repeats, dim=0)
        return replace(self, **repeated) if repeated else self

    @property
    def bound(self) -> float | None:
        """Return C such that |output| ≤ C · max |value| for all inputs, or None without a bound."""
        return None

    @property
    def features(self) -> "FeatureKernel | None":
        """Return this kernel if it has a feature map, else None."""
        return None

    def softmax_vectors(self, query: Queries, key: Keys) -> VectorPair | None:
        """Return vectors x, y such that attention is softmax(scale · xᵀy), or None."""
        return (query, key) if self.is_softmax else None

    @abstractmethod
    def dense_vectors(
        self, query: Queries, key: Keys, *, scale: float, key_mask: KeyMask, is_causal: bool
    ) -> FeatureMaps:
        """Return the vectors for `dense_weights`, and the log scale s_j of each key.

        `dense_weights` takes the inner products of the vectors. The log scale is None if it is 0.
        If causal, the vector and the log scale of a key depend on this key alone.
        """

    @abstractmethod
    def dense_weights(
        self, products: Pairs, *, log_relative: LogFactors, log_scale: LogScale, keep: PairMask
    ) -> Pairs:
        """Return the weights κ(q_i, k_j) · c_ij, up to one factor for each query.

        Args:
            products: Inner products of the `dense_vectors`.
            log_relative: log c_ij, or None for c = 1.
            log_scale: Log scale s_j of the `dense_vectors`.
            keep: True for the pairs that count. The others have a weight of 0.
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
        """Return the weights κ(q_i, k_j) · c_ij of all pairs, up to one factor for each query.

        This is the reference implementation. The weights of a query without a key are 0.
        """
        inputs = DenseInputs(query, key, key, self, scale, key_mask, is_causal)
        left, right, log_scale = inputs.vectors()
        keep, is_empty = inputs.masks()
        weights = self.dense_weights(
            left @ right.mT, log_relative=log_relative, log_scale=log_scale, keep=keep
        )
        return weights if is_empty is None else weights.masked_fill(is_empty, 0.0)

    @abstractmethod
    def dense_size(self, dim: int) -> int:
        """Return the length of the `dense_vectors` for queries of size `dim`."""

    def log_content(self, like: Tensor) -> Callable[[Tensor], Tensor] | None:
        """Return a function that computes log κ from an inner product of `dense_vectors`, or None.

        There is no such function if κ may be negative. `like` is a tensor with the dtype and device
        of the products.
        """
        return None


@dataclass(frozen=True)
class DenseInputs:
    """Inputs of attention that evaluates every pair of a query and a key.

    Args:
        query: Queries.
        key: Keys.
        value: Values.
        kernel: Content kernel.
        scale: Factor of qᵀk.
        key_mask: True for the keys that count, or None for all.
        is_causal: If True, query i sees keys j ≤ i only.
        window_mask: True for the pairs that the relative kernel lets count, or None for all.
    """

    query: Queries
    key: Keys
    value: Values
    kernel: Kernel
    scale: float
    key_mask: KeyMask
    is_causal: bool
    window_mask: PairMask = None

    def vectors(self) -> FeatureMaps:
        """Return the `dense_vectors` of the kernel for all queries and keys."""
        options = {"scale": self.scale, "key_mask": self.key_mask, "is_causal": self.is_causal}
        return self.kernel.dense_vectors(self.query, self.key, **options)

    def masks(self) -> tuple[PairMask, Bool[Tensor, "batch 1 queries 1"] | None]:
        """Return a mask of the pairs that count and a mask of the queries without a key.

        A mask is None if all pairs count, or no query is without a key.

        A query without a key is given all keys, because the softmax of an empty row is NaN. The
        caller sets its output to 0. If causal, the last query sees all keys, also if there are more
        keys than queries.
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

    def with_vectors(self, query: Queries, key: Keys) -> "DenseInputs":
        """Return the inputs with other queries and keys, whose products are not scaled."""
        return replace(self, query=query, key=key, scale=1.0)


class FeatureKernel(Kernel):
    """Base class of content kernels with a feature map, κ(q, k) = φ(q)ᵀφ(k).

    Sums over keys take O(L).

    Class attributes, in addition to those of `Kernel`:

    - `nonnegative`: True if κ(q, k) ≥ 0 for all vectors and all random draws. False is safe for
      every kernel. A wrong True gives wrong outputs without an error.

    >>> import torch
    >>> from teka.functional import FeatureKernel, attention
    >>> from teka.functional.kernels.base import mask_features
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
    def bound(self) -> float | None:
        return 1.0 if self.nonnegative and not self.normalizes_by_count else None

    @property
    def features(self) -> "FeatureKernel":
        return self

    @abstractmethod
    def num_features(self, dim: int) -> int:
        """Return the number of features of a vector of size `dim`."""

    def dense_size(self, dim: int) -> int:
        return self.num_features(dim)

    def fitted(
        self, query: Queries, key: Keys, *, scale: float, query_mask: QueryMask, key_mask: KeyMask
    ) -> "FeatureKernel":
        """Return the kernel with statistics of the queries and keys of each head, such as means.

        By default a kernel has no statistics and this method returns the kernel itself. It is not
        called in causal attention. A kernel with statistics is a dataclass that lists their fields
        in `fitted_tensors`.
        """
        return self

    @abstractmethod
    def query_features(self, query: Queries, *, scale: float) -> QueryFeatures:
        """Return φ(q).

        The features of a query may have any positive factor, because it cancels in the
        normalization, unless the kernel `normalizes_by_count`.
        """

    @abstractmethod
    def key_features(self, key: Keys, *, scale: float, key_mask: KeyMask = None) -> KeyFeatures:
        """Return φ(k), which is 0 for masked keys.

        All keys of a head may have one common positive factor, because it cancels in the
        normalization, unless the kernel `normalizes_by_count`.
        """

    def causal_key_features(
        self, key: Keys, *, scale: float, key_mask: KeyMask = None
    ) -> CausalFeatures:
        """Return φ(k_j) · exp(−s_j) and the log scale s_j that keeps it in range.

        Both depend on key j alone. The features are 0 for masked keys. The log scale is finite, or
        None if it is 0 for all keys.
        """
        return self.key_features(key, scale=scale, key_mask=key_mask), None

    def feature_maps(
        self, query: Queries, key: Keys, *, scale: float, key_mask: KeyMask, is_causal: bool
    ) -> FeatureMaps:
        """Return φ(q), φ(k) and, if causal, the log scale of `causal_key_features`."""
        features = self.query_features(query, scale=scale)
        if is_causal:
            return features, *self.causal_key_features(key, scale=scale, key_mask=key_mask)
        return features, self.key_features(key, scale=scale, key_mask=key_mask), None

    dense_vectors = feature_maps

    def dense_weights(
        self, products: Pairs, *, log_relative: LogFactors, log_scale: LogScale, keep: PairMask
    ) -> Pairs:
        return apply_log_factor(products, log_relative, log_scale, keep)

    def log_content(self, like: Tensor) -> Callable[[Tensor], Tensor] | None:
        if not self.nonnegative:
            return None
        tiny = smallest_normal(like)
        return lambda product: torch.log(torch.maximum(product, tiny))


def smallest_normal(like: Tensor) -> Float[Tensor, ""]:
    """Return the smallest normal number of a dtype, whose logarithm has a finite gradient.

    It is a tensor, because FlexAttention traces a Python number as an unknown value.
    """
    return torch.full((), torch.finfo(like.dtype).tiny, dtype=like.dtype, device=like.device)


def apply_log_factor(
    weights: Pairs, log_relative: LogFactors, log_scale: LogScale, keep: PairMask
) -> Pairs:
    """Return weights_ij · c_ij · exp(s_j), divided by the largest factor of the row.

    Pairs that do not count get 0.
    """
    if log_scale is not None:
        log_scale = log_scale[:, :, None]
        log_relative = log_scale if log_relative is None else log_relative + log_scale
    if log_relative is None:
        return weights if keep is None else weights.masked_fill(~keep, 0.0)
    log_relative = mask_scores(log_relative, keep)
    return weights * torch.exp(log_relative - log_relative.amax(dim=-1, keepdim=True).detach())


def mask_scores(scores: LogRelative, keep: PairMask) -> Float[Tensor, "..."]:
    """Return the scores, with −∞ for pairs that do not count."""
    return scores if keep is None else scores.masked_fill(~keep, -math.inf)


def mask_features(features: KeyFeatures, key_mask: KeyMask) -> KeyFeatures:
    """Return the features with 0 for masked keys, which then have no weight."""
    return features if key_mask is None else features.masked_fill(~key_mask[:, None, :, None], 0.0)


def masked_mean(vectors: Keys, mask: KeyMask) -> Float[Tensor, "batch heads 1 dim"]:
    """Return the mean of each head over the tokens that the mask keeps, or 0 if it keeps none.

    Masked tokens may be NaN.
    """
    if mask is None:
        return vectors.mean(dim=-2, keepdim=True)
    count = mask.sum(dim=-1).clamp_min(1)[:, None, None, None]
    return mask_features(vectors, mask).sum(dim=-2, keepdim=True) / count
