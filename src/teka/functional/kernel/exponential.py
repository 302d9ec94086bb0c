"""What the positive estimates of the softmax kernel share: features that are exponentials."""

from abc import abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka.functional.kernel.base import FeatureKernel, mask_features

# Exponents are taken relative to the largest; below e^−40 of it a feature stays at e^−40, so that the product of two
# features stays a normal float32 and a denominator can never be 0. Being relative, the floor cannot swamp the features.
LOWEST_EXPONENT = -40.0


class Exponential(FeatureKernel):
    """φ_r(x) = exp(e_r(x)), divided by its largest entry before exp is taken.

    The largest exponent is that over the features of a query, and that over all kept keys and features of one batch and
    head: it cancels in the normaliser, and no sample sees another. Where attention is causal each key has its own, and
    the sums take the running maximum: no key sees a later one.
    """

    estimates_softmax: ClassVar[bool] = True
    nonnegative: ClassVar[bool] = True

    @abstractmethod
    def query_exponent(
        self, query: Float[Tensor, "batch heads queries dim"], *, scale: float
    ) -> Float[Tensor, "batch heads queries features"]:
        """e(q)."""

    def key_exponent(
        self, key: Float[Tensor, "batch heads keys dim"], *, scale: float
    ) -> Float[Tensor, "batch heads keys features"]:
        """e(k), as for queries by default."""
        return self.query_exponent(key, scale=scale)

    def query_features(
        self, query: Float[Tensor, "batch heads queries dim"], *, scale: float
    ) -> Float[Tensor, "batch heads queries features"]:
        """φ(q) divided by its largest entry."""
        return _raise_over_peak(self.query_exponent(query, scale=scale))[0]

    def key_features(
        self,
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
    ) -> Float[Tensor, "batch heads keys features"]:
        """φ(k) divided by the largest entry of its batch and head."""
        exponent = self.key_exponent(key, scale=scale)
        kept = exponent if key_mask is None else exponent.masked_fill(~key_mask[:, None, :, None], -torch.inf)
        peak = kept.amax(dim=(-2, -1), keepdim=True).detach()
        return mask_features(torch.exp((exponent - peak).clamp(LOWEST_EXPONENT, 0.0)), key_mask)

    def causal_key_features(
        self,
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
    ) -> tuple[Float[Tensor, "batch heads keys features"], Float[Tensor, "batch heads keys"] | None]:
        """φ(k) divided by its own largest entry, and the logarithm of that."""
        features, log_scale = _raise_over_peak(self.key_exponent(key, scale=scale))
        return mask_features(features, key_mask), log_scale


def _raise_over_peak(
    exponent: Float[Tensor, "batch heads tokens features"],
) -> tuple[Float[Tensor, "batch heads tokens features"], Float[Tensor, "batch heads tokens"]]:
    peak = exponent.amax(dim=-1, keepdim=True).detach()
    return torch.exp((exponent - peak).clamp_min(LOWEST_EXPONENT)), peak[..., 0]
