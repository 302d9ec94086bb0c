"""What every content kernel κ(q, k) offers."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka._compat import replace
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

# Exponents are taken relative to the largest; below e^−40 of it a feature stays at e^−40, so that the product of two
# features stays a normal float32 and a denominator can never be 0. Being relative, the floor cannot swamp the features.
LOWEST_EXPONENT = -40.0


class Kernel(ABC):
    """A content kernel: how much query q attends to key k for what they are, wherever they are.

    >>> import torch
    >>> from teka.functional import DotProduct, Softmax
    >>> query, key = torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([[[[0.0, 1.0], [1.0, 0.0], [3.0, 0.0]]]])
    >>> [kernel.weights(query, key, scale=1.0).flatten().round(decimals=2) for kernel in (Softmax(), DotProduct())]
    [tensor([0.0400, 0.1100, 0.8400]), tensor([0., 1., 3.])]
    """

    name: ClassVar[str]
    uses_content: ClassVar[bool] = True  # whether κ depends on q and k
    estimates_softmax: ClassVar[bool] = False  # whether it stands for exp(scale · qᵀk)
    is_softmax: ClassVar[bool] = (
        False  # whether `dense_weights` are the softmax of inner products, which torch fuses
    )
    normalizes_by_count: ClassVar[bool] = (
        False  # whether the sum is over how many keys there are, Σ c, and not over Σ κ c
    )
    extra_dense_passes: ClassVar[int] = (
        0  # over all pairs, in the time that `dense_weights` takes beyond what others do
    )
    fitted_tensors: ClassVar[
        tuple[str, ...]
    ] = ()  # what `FeatureKernel.fitted` sets, with an entry for every sample

    def repeat_samples(self, number: int) -> "Kernel":
        """The kernel for batches in which every sample comes so many times in a row."""
        fitted = {name: getattr(self, name) for name in self.fitted_tensors}
        copied = {
            name: one.repeat_interleave(number, dim=0)
            for name, one in fitted.items()
            if one is not None
        }
        return replace(self, **copied) if copied else self

    @property
    def bound(self) -> float | None:
        """C with |out| ≤ C · max |v| whatever the tokens are, or None where nothing promises one."""
        return None

    @property
    def features(self) -> "FeatureKernel | None":
        """The kernel as one with a feature map, or None where it has none."""
        return None

    def softmax_vectors(self, query: Queries, key: Keys) -> VectorPair | None:
        """Vectors the softmax of whose inner products, times the scale, this is, or None."""
        return (query, key) if self.is_softmax else None

    @abstractmethod
    def dense_vectors(
        self, query: Queries, key: Keys, *, scale: float, key_mask: KeyMask, is_causal: bool
    ) -> FeatureMaps:
        """Vectors whose inner products `dense_weights` takes, and s or None for 0; if causal, of each key by itself."""

    @abstractmethod
    def dense_weights(
        self, products: Pairs, *, log_relative: LogFactors, log_scale: LogScale, keep: PairMask
    ) -> Pairs:
        """Weights κ(q_i, k_j) · c_ij from products of `dense_vectors`, up to a factor a row; 0 for pairs not kept."""

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
        """Weights κ(q_i, k_j) · c_ij of every pair, up to a factor a row; 0 in one without keys: the dense truth."""
        pairs = DenseInputs(query, key, key, self, scale, key_mask, is_causal)
        left, right, log_scale = pairs.vectors()
        products = left @ right.transpose(-2, -1)
        keep, empty = pairs.mask(), None
        if keep is not None:
            empty = has_no_key(keep)
            keep = keep | empty  # a softmax of nothing would be NaN
        weights = self.dense_weights(
            products, log_relative=log_relative, log_scale=log_scale, keep=keep
        )
        return weights if empty is None else weights.masked_fill(empty, 0.0)

    @abstractmethod
    def dense_size(self, dim: int) -> int:
        """Length of the vectors of `dense_vectors` for queries of size `dim`: the cost of a pair."""

    def log_content(self, like: Tensor) -> Callable[[Tensor], Tensor] | None:
        """log κ from a product of `dense_vectors`; None where it may be negative or is not a function of that."""
        return None


@dataclass(frozen=True)
class DenseInputs:
    """Queries, keys and values of which every pair is weighed, and how."""

    query: Queries
    key: Keys
    value: Values
    kernel: Kernel
    scale: float
    key_mask: KeyMask
    is_causal: bool
    window_mask: PairMask = None  # which pairs count for where they are, None for all

    def vectors(self) -> FeatureMaps:
        """The kernel's `dense_vectors` of queries and keys, and s."""
        options = {"scale": self.scale, "key_mask": self.key_mask, "is_causal": self.is_causal}
        return self.kernel.dense_vectors(self.query, self.key, **options)

    def mask(self) -> PairMask:
        """Which pairs count: keys that are kept and, if causal, not after the query, the last of which sees all."""
        keep = self.window_mask
        if self.key_mask is not None:
            kept = self.key_mask[:, None, None, :]
            keep = kept if keep is None else keep & kept
        if self.is_causal:
            num_queries, num_keys = self.query.shape[2], self.key.shape[2]
            past = self.query.new_ones(num_queries, num_keys, dtype=torch.bool).tril(
                num_keys - num_queries
            )
            keep = past[None, None] if keep is None else keep & past
        return keep

    def with_vectors(self, query: Queries, key: Keys) -> "DenseInputs":
        """The same of other vectors, whose inner products are those that count."""
        return replace(self, query=query, key=key, scale=1.0)


def has_no_key(keep: Bool[Tensor, "batch 1 queries keys"]) -> Bool[Tensor, "batch 1 queries 1"]:
    """The queries that keep no key."""
    # A sum: for `any` Inductor of PyTorch 2.6 writes C++ that does not compile.
    return keep.sum(dim=-1, keepdim=True) == 0


class FeatureKernel(Kernel):
    """A content kernel with a feature map, κ(q, k) = φ(q)ᵀφ(k), so that sums over keys cost O(L).

    One that `normalizes_by_count` has no factor of a query or of all keys to spare, as nothing takes it out again.

    Every kernel declares `nonnegative`, or is a TypeError: True if κ(q, k) ≥ 0 for all vectors and every draw. A
    denominator below the smallest normal number is then that of a row without weights, and log κ may be taken. False is
    safe for any kernel; a wrong True gives wrong outputs without a word.

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

    nonnegative: ClassVar[bool]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # ABCMeta has not yet noted which methods are abstract.
        is_abstract = any(
            getattr(getattr(cls, name, None), "__isabstractmethod__", False) for name in dir(cls)
        )
        if not is_abstract and not hasattr(cls, "nonnegative"):
            raise TypeError(
                f"{cls.__name__} does not declare `nonnegative: ClassVar[bool]`: "
                "True if no weight κ(q, k) = φ(q)ᵀφ(k) can be negative, False if one can be"
            )

    @property
    def bound(self) -> float | None:
        return 1.0 if self.nonnegative and not self.normalizes_by_count else None

    @property
    def features(self) -> "FeatureKernel":
        return self

    @abstractmethod
    def num_features(self, dim: int) -> int:
        """Length m of φ for vectors of size `dim`."""

    def dense_size(self, dim: int) -> int:
        return self.num_features(dim)

    def fitted(
        self, query: Queries, key: Keys, *, scale: float, query_mask: QueryMask, key_mask: KeyMask
    ) -> "FeatureKernel":
        """The kernel with what it takes from a batch and head together, if not causal; itself by default.

        It is a dataclass then, and `fitted_tensors` names the fields that hold an entry for every sample.
        """
        return self

    @abstractmethod
    def query_features(self, query: Queries, *, scale: float) -> QueryFeatures:
        """φ(q), up to one factor for each query, which cancels in the normaliser."""

    @abstractmethod
    def key_features(self, key: Keys, *, scale: float, key_mask: KeyMask = None) -> KeyFeatures:
        """φ(k), up to one factor for all keys of one batch and head; 0 where masked."""

    def causal_key_features(
        self, key: Keys, *, scale: float, key_mask: KeyMask = None
    ) -> CausalFeatures:
        """φ(k_j) · exp(−s_j), 0 where masked, and s_j, finite and of k_j alone, that keeps it in range; None for 0."""
        return self.key_features(key, scale=scale, key_mask=key_mask), None

    def feature_maps(
        self, query: Queries, key: Keys, *, scale: float, key_mask: KeyMask, is_causal: bool
    ) -> FeatureMaps:
        """φ(q), φ(k) and, if causal, s; see `causal_key_features`."""
        features = self.query_features(query, scale=scale)
        if is_causal:
            return features, *self.causal_key_features(key, scale=scale, key_mask=key_mask)
        return features, self.key_features(key, scale=scale, key_mask=key_mask), None

    def dense_vectors(
        self, query: Queries, key: Keys, *, scale: float, key_mask: KeyMask, is_causal: bool
    ) -> FeatureMaps:
        return self.feature_maps(query, key, scale=scale, key_mask=key_mask, is_causal=is_causal)

    def dense_weights(
        self, products: Pairs, *, log_relative: LogFactors, log_scale: LogScale, keep: PairMask
    ) -> Pairs:
        return apply_log_factor(products, log_relative, log_scale, keep)

    def log_content(self, like: Tensor) -> Callable[[Tensor], Tensor] | None:
        """log of the product, of the least number whose logarithm has a finite gradient where it is smaller."""
        if not self.nonnegative:
            return None
        tiny = smallest_normal(like)
        return lambda product: torch.log(torch.maximum(product, tiny))


def smallest_normal(like: Tensor) -> Float[Tensor, ""]:
    """The smallest normal number of a dtype; a tensor, as a number would be traced as unknown."""
    return torch.full((), torch.finfo(like.dtype).tiny, dtype=like.dtype, device=like.device)


def apply_log_factor(
    weights: Pairs, log_relative: LogFactors, log_scale: LogScale, keep: PairMask
) -> Pairs:
    """weights_ij · c_ij · exp(s_j) over the largest factor of the row, and 0 for pairs that do not count."""
    if log_scale is not None:
        log_relative = (
            log_scale[:, :, None] if log_relative is None else log_relative + log_scale[:, :, None]
        )
    if log_relative is None:
        return weights if keep is None else weights.masked_fill(~keep, 0.0)
    log_relative = mask_scores(log_relative, keep)
    return weights * torch.exp(log_relative - log_relative.amax(dim=-1, keepdim=True).detach())


def mask_scores(scores: LogRelative, keep: PairMask) -> Float[Tensor, "..."]:
    """Scores with −∞ for pairs that do not count."""
    return scores if keep is None else scores.masked_fill(~keep, -math.inf)


def mask_features(features: KeyFeatures, key_mask: KeyMask) -> KeyFeatures:
    """Features with 0 where a key is dropped: it then counts neither in the numerator nor in the denominator."""
    return features if key_mask is None else features.masked_fill(~key_mask[:, None, :, None], 0.0)


def masked_mean(vectors: Keys, mask: KeyMask) -> Float[Tensor, "batch heads 1 dim"]:
    """Mean of each batch and head over its kept tokens; 0 if none is kept, and what is dropped may be NaN."""
    if mask is None:
        return vectors.mean(dim=-2, keepdim=True)
    count = mask.sum(dim=-1).clamp_min(1)[:, None, None, None]
    return mask_features(vectors, mask).sum(dim=-2, keepdim=True) / count
