"""What every content kernel κ(q, k) offers."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka.checks import check_tensor

# Shapes that go through attention: i is a query, j a key.
Queries = Float[Tensor, "batch heads queries dim"]
Keys = Float[Tensor, "batch heads keys dim"]
Values = Float[Tensor, "batch heads keys dim_value"]
Outputs = Float[Tensor, "batch heads queries dim_value"]
QueryFeatures = Float[Tensor, "batch heads queries features"]
KeyFeatures = Float[Tensor, "batch heads keys features"]
LogScale = Float[Tensor, "batch heads keys"]  # s_j, of a factor exp(s_j) of a key
Pairs = Float[Tensor, "batch heads queries keys"]
LogRelative = Float[Tensor, "#batch #heads #queries #keys"]  # log c_ij
QueryMask = Bool[Tensor, "batch queries"]  # True where a token counts
KeyMask = Bool[Tensor, "batch keys"]
PairMask = Bool[Tensor, "#batch 1 #queries keys"]
QueryWaves = Float[Tensor, "#batch heads queries waves"]
KeyWaves = Float[Tensor, "#batch heads keys waves"]
Tokens = Float[Tensor, "batch heads tokens dim"]

# Exponents are taken relative to the largest; below e^−40 of it a feature stays at e^−40, so that the product of two
# features stays a normal float32 and a denominator can never be 0. Being relative, the floor cannot swamp the features.
LOWEST_EXPONENT = -40.0


class Kernel(ABC):
    """A content kernel: how much query q attends to key k for what they are, wherever they are.

    `uses_content` says whether κ depends on q and k, `estimates_softmax` whether it stands for exp(scale · qᵀk), and
    `is_softmax` whether `dense_weights` are the softmax of inner products, which torch has fused kernels for.
    """

    name: ClassVar[str]
    uses_content: ClassVar[bool] = True
    estimates_softmax: ClassVar[bool] = False
    is_softmax: ClassVar[bool] = False
    reads_heads_first: ClassVar[bool] = False  # whether one head at a time, in one piece of memory, is faster on a CPU

    @property
    def bound(self) -> float | None:
        """C with |out| ≤ C · max |v| whatever the tokens are, or None where nothing promises one."""
        return None

    @property
    def features(self) -> "FeatureKernel | None":
        """The kernel as one with a feature map, or None where it has none."""
        return None

    @abstractmethod
    def dense_vectors(
        self, query: Queries, key: Keys, *, scale: float, key_mask: KeyMask | None, is_causal: bool
    ) -> tuple[Float[Tensor, "batch heads queries size"], Float[Tensor, "batch heads keys size"], LogScale | None]:
        """Vectors of queries and keys whose inner products `dense_weights` takes, and s, or None for s = 0.

        Args:
            query: Queries.
            key: Keys.
            scale: Factor of the inner product qᵀk.
            key_mask: True where a key is kept.
            is_causal: Whether nothing of a key may depend on another key.
        """

    @abstractmethod
    def dense_weights(
        self, products: Pairs, *, log_relative: LogRelative | None, log_scale: LogScale | None, keep: PairMask | None
    ) -> Pairs:
        """Weights κ(q_i, k_j) · c_ij of every pair, up to one factor a row.

        Args:
            products: Inner products of the vectors of `dense_vectors`.
            log_relative: log c of every pair, or None for c = 1.
            log_scale: s of `dense_vectors`: a factor exp(s_j).
            keep: True for the pairs that count, as `pair_mask` gives them; the others have weight 0.
        """

    def weights(
        self,
        query: Queries,
        key: Keys,
        *,
        scale: float,
        log_relative: LogRelative | None = None,
        key_mask: KeyMask | None = None,
        is_causal: bool = False,
    ) -> Pairs:
        """Weights κ(q_i, k_j) · c_ij of every pair, up to one factor a row: the dense truth.

        Args:
            query: Queries.
            key: Keys.
            scale: Factor of the inner product qᵀk.
            log_relative: log c of every pair, or None for c = 1.
            key_mask: True where a key is kept.
            is_causal: Whether no weight may depend on a key after its own.
        """
        left, right, log_scale = self.dense_vectors(query, key, scale=scale, key_mask=key_mask, is_causal=is_causal)
        keep = pair_mask(key_mask, query.shape[2], key.shape[2], is_causal=is_causal, like=query)
        products = left @ right.transpose(-2, -1)
        return self.dense_weights(products, log_relative=log_relative, log_scale=log_scale, keep=keep)

    @abstractmethod
    def dense_size(self, dim: int) -> int:
        """Length of the vectors of `dense_vectors` for queries of size `dim`: the cost of a pair."""

    def log_content(self, like: Tensor) -> Callable[[Tensor], Tensor] | None:
        """log κ from a product of `dense_vectors`; None where it may be negative or is not a function of that."""
        return None


class FeatureKernel(Kernel):
    """A content kernel with a feature map, κ(q, k) = φ(q)ᵀφ(k), so that sums over keys cost O(L).

    Every kernel declares `nonnegative`. There is no default, for a wrong True gives wrong outputs without a word. True
    says that κ(q, k) ≥ 0 for all vectors and every draw: a denominator below the smallest normal number is then that of
    a row without weights, and log κ may be taken. False says that κ may be negative: denominators are taken as they
    are, and that of `Rotary` is made of lengths alone. False is safe for any kernel.

    Raises:
        TypeError: A subclass without abstract methods that does not say.
    """

    nonnegative: ClassVar[bool]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # ABCMeta has not yet noted which methods are abstract.
        is_abstract = any(getattr(getattr(cls, name, None), "__isabstractmethod__", False) for name in dir(cls))
        if not is_abstract and not hasattr(cls, "nonnegative"):
            raise TypeError(
                f"{cls.__name__} does not declare `nonnegative: ClassVar[bool]`: "
                "True if no weight κ(q, k) = φ(q)ᵀφ(k) can be negative, False if one can be"
            )

    @property
    def bound(self) -> float | None:
        """1 where no weight is negative, so that outputs are means of the values."""
        return 1.0 if self.nonnegative else None

    @property
    def features(self) -> "FeatureKernel":
        """The kernel itself."""
        return self

    @property
    def is_fused(self) -> bool:
        """Whether the linear backend can make the features block by block in a CPU's cache; see `LocalKernel`."""
        return False

    @abstractmethod
    def num_features(self, dim: int) -> int:
        """Length m of φ for vectors of size `dim`."""

    def dense_size(self, dim: int) -> int:
        """Length m of φ."""
        return self.num_features(dim)

    def fitted(
        self, query: Queries, key: Keys, *, scale: float, query_mask: QueryMask | None, key_mask: KeyMask | None
    ) -> "FeatureKernel":
        """The kernel with what it takes from all queries and keys of a batch and head together; itself by default.

        It is asked before any features, and never where attention is causal.
        """
        return self

    @abstractmethod
    def query_features(self, query: Queries, *, scale: float) -> QueryFeatures:
        """φ(q), up to one factor for each query, which cancels in the normaliser."""

    @abstractmethod
    def key_features(self, key: Keys, *, scale: float, key_mask: KeyMask | None = None) -> KeyFeatures:
        """φ(k), up to one factor for all keys of one batch and head; 0 where masked."""

    def causal_key_features(
        self, key: Keys, *, scale: float, key_mask: KeyMask | None = None
    ) -> tuple[KeyFeatures, LogScale | None]:
        """φ(k_j) · exp(−s_j), with s_j a function of k_j alone that keeps it in range, and s, or None for s = 0.

        The features are 0 where masked, and s there is any finite number. By default φ needs no s.
        """
        return self.key_features(key, scale=scale, key_mask=key_mask), None

    def feature_maps(
        self, query: Queries, key: Keys, *, scale: float, key_mask: KeyMask | None, is_causal: bool
    ) -> tuple[QueryFeatures, KeyFeatures, LogScale | None]:
        """φ(q), φ(k) and, if causal, s; see `causal_key_features`."""
        features = self.query_features(query, scale=scale)
        if is_causal:
            return features, *self.causal_key_features(key, scale=scale, key_mask=key_mask)
        return features, self.key_features(key, scale=scale, key_mask=key_mask), None

    def dense_vectors(
        self, query: Queries, key: Keys, *, scale: float, key_mask: KeyMask | None, is_causal: bool
    ) -> tuple[Float[Tensor, "batch heads queries size"], Float[Tensor, "batch heads keys size"], LogScale | None]:
        """φ(q) and φ(k)."""
        return self.feature_maps(query, key, scale=scale, key_mask=key_mask, is_causal=is_causal)

    def dense_weights(
        self, products: Pairs, *, log_relative: LogRelative | None, log_scale: LogScale | None, keep: PairMask | None
    ) -> Pairs:
        """φ(q_i)ᵀφ(k_j) · c_ij · exp(s_j) over the largest factor of the row."""
        return apply_log_factor(products, log_relative, log_scale, keep)

    def log_content(self, like: Tensor) -> Callable[[Tensor], Tensor] | None:
        """log of the product, of the least number whose logarithm has a finite gradient where it is smaller."""
        if not self.nonnegative:
            return None
        tiny = least_number(like)
        return lambda product: torch.log(torch.maximum(product, tiny))


def least_number(like: Tensor) -> Float[Tensor, ""]:
    """The smallest normal number of a dtype; a tensor, as a number would be traced as unknown."""
    return torch.full((), torch.finfo(like.dtype).tiny, dtype=like.dtype, device=like.device)


def apply_log_factor(
    weights: Pairs, log_relative: LogRelative | None, log_scale: LogScale | None, keep: PairMask | None
) -> Pairs:
    """weights_ij · c_ij · exp(s_j) over the largest factor of the row, and 0 for pairs that do not count."""
    if log_scale is not None:
        log_relative = log_scale[:, :, None] if log_relative is None else log_relative + log_scale[:, :, None]
    if log_relative is None:
        return weights if keep is None else weights.masked_fill(~keep, 0.0)
    log_relative = mask_scores(log_relative, keep)
    return weights * torch.exp(log_relative - log_relative.amax(dim=-1, keepdim=True).detach())


def pair_mask(
    key_mask: KeyMask | None, num_queries: int, num_keys: int, *, is_causal: bool, like: Tensor
) -> PairMask | None:
    """Which pairs count: keys that are kept and, if causal, not after the query, the last of which sees all."""
    keep = None if key_mask is None else key_mask[:, None, None, :]
    if is_causal:
        past = torch.ones(num_queries, num_keys, dtype=torch.bool, device=like.device).tril(num_keys - num_queries)
        keep = past[None, None] if keep is None else keep & past
    return keep


def mask_scores(scores: LogRelative, keep: PairMask | None) -> Float[Tensor, "..."]:
    """Scores with −∞ for pairs that do not count."""
    return scores if keep is None else scores.masked_fill(~keep, -math.inf)


def mask_features(features: KeyFeatures, key_mask: KeyMask | None) -> KeyFeatures:
    """Features with 0 where a key is dropped: it then counts neither in the numerator nor in the denominator."""
    return features if key_mask is None else features.masked_fill(~key_mask[:, None, :, None], 0.0)


def kept_mean(vectors: Keys, mask: KeyMask | None) -> Float[Tensor, "batch heads 1 dim"]:
    """Mean of each batch and head over its kept tokens; 0 if none is kept, and what is dropped may be NaN."""
    if mask is None:
        return vectors.mean(dim=-2, keepdim=True)
    count = mask.sum(dim=-1).clamp_min(1)[:, None, None, None]
    return mask_features(vectors, mask).sum(dim=-2, keepdim=True) / count


def check_projection(projection: Tensor, dim: int) -> None:
    """Check that a projection fits vectors of size `dim`."""
    check_tensor("projection", projection, "features", dim)
