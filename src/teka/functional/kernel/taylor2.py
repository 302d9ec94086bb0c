"""The Taylor series of the softmax kernel to second order."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka.checks import check_name
from teka.errors import wrong_value
from teka.functional.kernel.base import FeatureKernel, apply_log_factor, mask_features
from teka.functional.kernel.kept_mean import kept_mean

KeyShift = Literal["none", "mean"]


@dataclass(frozen=True)
class Taylor2(FeatureKernel):
    """κ(q, k) = 1 + t + t²/2 with t = scale · qᵀk: finite, exact, deterministic.

    φ(x) = [1, x, x_i²/√2, x_i x_j (i < j)] with x = √scale · q (or k), of length 1 + d + d(d+1)/2. As
    κ = ((1 + t)² + 1)/2 ≥ ½, it is always positive; it is within 0.22 of exp(t) for |t| ≤ 1, and about t²/2 for large t
    of either sign.

    Softmax does not change when one vector is subtracted from all keys; this kernel does. With key_shift "mean" the
    mean of the kept keys is subtracted, which makes t smaller and κ nearer to softmax. Gradients pass through the mean.

    Source: Keles et al. 2023; Arora et al. 2024 (Based).

    Args:
        key_shift: What is subtracted from the keys: "none" for nothing, "mean" for the mean of the kept keys of the
            batch and head, where attention is not causal.
        key_mean: That mean, which `fitted` takes.

    Raises:
        ValueError: An unknown shift.
    """

    name: ClassVar[str] = "taylor2"
    nonnegative: ClassVar[bool] = True

    key_shift: KeyShift = "none"
    key_mean: Float[Tensor, "batch heads 1 dim"] | None = None

    def __post_init__(self) -> None:
        check_name("key_shift", self.key_shift, get_args(KeyShift))

    def num_features(self, dim: int) -> int:
        """Length 1 + d + d(d+1)/2 of φ."""
        return 1 + dim + dim * (dim + 1) // 2

    def dense_size(self, dim: int) -> int:
        """Length d of queries and keys: `dense_vectors` are they."""
        return dim

    def fitted(
        self,
        query: Float[Tensor, "batch heads queries dim"],
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        query_mask: Bool[Tensor, "batch queries"] | None,
        key_mask: Bool[Tensor, "batch keys"] | None,
    ) -> "Taylor2":
        """The kernel with the mean of the kept keys, if it is to be subtracted."""
        return self if self.key_shift == "none" else Taylor2(self.key_shift, kept_mean(key, key_mask))

    def query_features(
        self, query: Float[Tensor, "batch heads queries dim"], *, scale: float
    ) -> Float[Tensor, "batch heads queries features"]:
        """φ(q)."""
        return second_order_features(query * math.sqrt(scale))

    def key_features(
        self,
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
    ) -> Float[Tensor, "batch heads keys features"]:
        """φ(k), or φ(k − k̄).

        Raises:
            ValueError: The mean is to be subtracted, and the kernel has not been fitted.
        """
        return mask_features(second_order_features(self._shifted(key) * math.sqrt(scale)), key_mask)

    def causal_key_features(
        self,
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
    ) -> tuple[Float[Tensor, "batch heads keys features"], None]:
        """φ(k), and None: it needs no scale.

        Raises:
            ValueError: The mean is to be subtracted, which would let a query see later keys.
        """
        self._check_causal()
        return self.key_features(key, scale=scale, key_mask=key_mask), None

    def dense_vectors(
        self,
        query: Float[Tensor, "batch heads queries dim"],
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        key_mask: Bool[Tensor, "batch keys"] | None,
        is_causal: bool,
    ) -> tuple[Float[Tensor, "batch heads queries dim"], Float[Tensor, "batch heads keys dim"], None]:
        """scale · q and k, or k − k̄, whose inner product is t.

        Raises:
            ValueError: The mean is to be subtracted, and attention is causal or the kernel has not been fitted.
        """
        if is_causal:
            self._check_causal()
        return scale * query, self._shifted(key), None

    def dense_weights(
        self,
        products: Float[Tensor, "batch heads queries keys"],
        *,
        log_relative: Float[Tensor, "#batch #heads #queries #keys"] | None,
        log_scale: Float[Tensor, "batch heads keys"] | None,
        keep: Bool[Tensor, "#batch 1 #queries keys"] | None,
    ) -> Float[Tensor, "batch heads queries keys"]:
        """(1 + t_ij + t_ij²/2) · c_ij over the largest factor of the row."""
        return apply_log_factor(1 + products + products.square() / 2, log_relative, log_scale, keep)

    def _check_causal(self) -> None:
        if self.key_shift != "none":
            raise wrong_value("key_shift", self.key_shift, "'none' in causal attention: a mean would hold later keys")

    def _shifted(self, key: Float[Tensor, "batch heads keys dim"]) -> Float[Tensor, "batch heads keys dim"]:
        if self.key_shift == "none":
            return key
        if self.key_mean is None:
            raise wrong_value("key_mean", None, "the mean of the keys with key_shift='mean': call `fitted` first")
        return key - self.key_mean


def second_order_features(
    vectors: Float[Tensor, "batch heads tokens dim"],
) -> Float[Tensor, "batch heads tokens features"]:
    """[1, x, x_i²/√2, x_i x_j (i < j)], whose inner product with that of y is 1 + xᵀy + (xᵀy)²/2.

    Args:
        vectors: x, shape (B, H, L, d).
    """
    squares = vectors.square() / math.sqrt(2)
    # Products of slices: gathering both factors by index takes three times as long.
    products = [vectors[..., i : i + 1] * vectors[..., i + 1 :] for i in range(vectors.shape[-1] - 1)]
    return torch.cat([torch.ones_like(vectors[..., :1]), vectors, squares, *products], dim=-1)
