"""What every content kernel κ(q, k) offers."""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka.checks import check_tensor


class Kernel(ABC):
    """A content kernel: how much query q attends to key k for what they are, wherever they are."""

    name: ClassVar[str]
    uses_content: ClassVar[bool] = True
    estimates_softmax: ClassVar[bool] = False
    reads_heads_first: ClassVar[bool] = False  # whether one head at a time, in one piece of memory, is faster on a CPU

    @property
    def bound(self) -> float | None:
        """C with |out| ≤ C · max |v| whatever the tokens are, or None where nothing promises one."""
        return None

    @abstractmethod
    def dense_vectors(
        self,
        query: Float[Tensor, "batch heads queries dim"],
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        key_mask: Bool[Tensor, "batch keys"] | None,
        is_causal: bool,
    ) -> tuple[
        Float[Tensor, "batch heads queries size"],
        Float[Tensor, "batch heads keys size"],
        Float[Tensor, "batch heads keys"] | None,
    ]:
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
        self,
        products: Float[Tensor, "batch heads queries keys"],
        *,
        log_relative: Float[Tensor, "#batch #heads #queries #keys"] | None,
        log_scale: Float[Tensor, "batch heads keys"] | None,
        keep: Bool[Tensor, "#batch 1 #queries keys"] | None,
    ) -> Float[Tensor, "batch heads queries keys"]:
        """Weights κ(q_i, k_j) · c_ij of every pair, up to one factor a row.

        Args:
            products: Inner products of the vectors of `dense_vectors`.
            log_relative: log c of every pair, or None for c = 1.
            log_scale: s of `dense_vectors`: a factor exp(s_j).
            keep: True for the pairs that count, as `pair_mask` gives them; the others have weight 0.
        """

    def weights(
        self,
        query: Float[Tensor, "batch heads queries dim"],
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        log_relative: Float[Tensor, "#batch #heads #queries #keys"] | None = None,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
        is_causal: bool = False,
    ) -> Float[Tensor, "batch heads queries keys"]:
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

    @abstractmethod
    def num_features(self, dim: int) -> int:
        """Length m of φ for vectors of size `dim`."""

    def dense_size(self, dim: int) -> int:
        """Length m of φ."""
        return self.num_features(dim)

    def fitted(
        self,
        query: Float[Tensor, "batch heads queries dim"],
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        query_mask: Bool[Tensor, "batch queries"] | None,
        key_mask: Bool[Tensor, "batch keys"] | None,
    ) -> "FeatureKernel":
        """The kernel with what it takes from all queries and keys of a batch and head together; itself by default.

        It is asked before any features, and never where attention is causal.
        """
        return self

    @abstractmethod
    def query_features(
        self, query: Float[Tensor, "batch heads queries dim"], *, scale: float
    ) -> Float[Tensor, "batch heads queries features"]:
        """φ(q), up to one factor for each query, which cancels in the normaliser."""

    @abstractmethod
    def key_features(
        self,
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
    ) -> Float[Tensor, "batch heads keys features"]:
        """φ(k), up to one factor for all keys of one batch and head; 0 where masked."""

    def causal_key_features(
        self,
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
    ) -> tuple[Float[Tensor, "batch heads keys features"], Float[Tensor, "batch heads keys"] | None]:
        """φ(k_j) · exp(−s_j), with s_j a function of k_j alone that keeps it in range, and s, or None for s = 0.

        The features are 0 where masked, and s there is any finite number. By default φ needs no s.
        """
        return self.key_features(key, scale=scale, key_mask=key_mask), None

    def feature_maps(
        self,
        query: Float[Tensor, "batch heads queries dim"],
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        key_mask: Bool[Tensor, "batch keys"] | None,
        is_causal: bool,
    ) -> tuple[
        Float[Tensor, "batch heads queries features"],
        Float[Tensor, "batch heads keys features"],
        Float[Tensor, "batch heads keys"] | None,
    ]:
        """φ(q), φ(k) and, if causal, s; see `causal_key_features`."""
        features = self.query_features(query, scale=scale)
        if is_causal:
            return features, *self.causal_key_features(key, scale=scale, key_mask=key_mask)
        return features, self.key_features(key, scale=scale, key_mask=key_mask), None

    def dense_vectors(
        self,
        query: Float[Tensor, "batch heads queries dim"],
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        key_mask: Bool[Tensor, "batch keys"] | None,
        is_causal: bool,
    ) -> tuple[
        Float[Tensor, "batch heads queries size"],
        Float[Tensor, "batch heads keys size"],
        Float[Tensor, "batch heads keys"] | None,
    ]:
        """φ(q) and φ(k)."""
        return self.feature_maps(query, key, scale=scale, key_mask=key_mask, is_causal=is_causal)

    def dense_weights(
        self,
        products: Float[Tensor, "batch heads queries keys"],
        *,
        log_relative: Float[Tensor, "#batch #heads #queries #keys"] | None,
        log_scale: Float[Tensor, "batch heads keys"] | None,
        keep: Bool[Tensor, "#batch 1 #queries keys"] | None,
    ) -> Float[Tensor, "batch heads queries keys"]:
        """φ(q_i)ᵀφ(k_j) · c_ij · exp(s_j) over the largest factor of the row."""
        return apply_log_factor(products, log_relative, log_scale, keep)


def apply_log_factor(
    weights: Float[Tensor, "batch heads queries keys"],
    log_relative: Float[Tensor, "#batch #heads #queries #keys"] | None,
    log_scale: Float[Tensor, "batch heads keys"] | None,
    keep: Bool[Tensor, "#batch 1 #queries keys"] | None,
) -> Float[Tensor, "batch heads queries keys"]:
    """weights_ij · c_ij · exp(s_j) over the largest factor of the row, and 0 for pairs that do not count.

    Args:
        weights: Weights of every pair.
        log_relative: log c, or None for c = 1.
        log_scale: s, or None for s = 0.
        keep: True for the pairs that count.
    """
    if log_scale is not None:
        log_relative = log_scale[:, :, None] if log_relative is None else log_relative + log_scale[:, :, None]
    if log_relative is None:
        return weights if keep is None else weights.masked_fill(~keep, 0.0)
    log_relative = mask_scores(log_relative, keep)
    return weights * torch.exp(log_relative - log_relative.amax(dim=-1, keepdim=True).detach())


def pair_mask(
    key_mask: Bool[Tensor, "batch keys"] | None, num_queries: int, num_keys: int, *, is_causal: bool, like: Tensor
) -> Bool[Tensor, "#batch 1 #queries keys"] | None:
    """Which pairs count: keys that are kept and, if causal, not after the query; None for all.

    Args:
        key_mask: True where a key is kept.
        num_queries: Number of queries.
        num_keys: Number of keys; the last query sees all of them.
        is_causal: Whether query i sees keys up to its own place only.
        like: A tensor on the device in question.
    """
    keep = None if key_mask is None else key_mask[:, None, None, :]
    if is_causal:
        past = torch.ones(num_queries, num_keys, dtype=torch.bool, device=like.device).tril(num_keys - num_queries)
        keep = past[None, None] if keep is None else keep & past
    return keep


def mask_scores(
    scores: Float[Tensor, "#batch #heads #queries #keys"], keep: Bool[Tensor, "#batch 1 #queries keys"] | None
) -> Float[Tensor, "..."]:
    """Scores with −∞ for pairs that do not count."""
    return scores if keep is None else scores.masked_fill(~keep, -math.inf)


def mask_features(
    features: Float[Tensor, "batch heads keys features"], key_mask: Bool[Tensor, "batch keys"] | None
) -> Float[Tensor, "batch heads keys features"]:
    """Features with 0 where a key is dropped: it then counts neither in the numerator nor in the denominator."""
    return features if key_mask is None else features.masked_fill(~key_mask[:, None, :, None], 0.0)


def check_projection(projection: Tensor, dim: int) -> None:
    """Check that a projection fits vectors of size `dim`.

    Raises:
        ValueError: It does not.
    """
    check_tensor("projection", projection, "features", dim)
