"""What kernels share whose features are those of one vector at a time."""

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd import Function

from teka.functional.eager import has_numbers, is_plain_eager
from teka.functional.kernel.base import FeatureKernel, mask_features

# Vectors are brought into range by powers of 2 to this.
RANGE_BITS = 8.0


class LocalKernel(FeatureKernel):
    """A kernel whose φ is one map for queries and keys, of one vector at a time, with its gradient written out.

    The fused evaluation (`backend.fused_linear`) is for these: it makes φ anew in the backward pass.

    φ(τx) = τ^degree φ(x) for every τ > 0 where a kernel says so. Then a factor of a query, and one of all keys of a
    batch and head, cancels in the normaliser: very small and very large vectors are brought into range before powers of
    them are taken. The factors are taken as fixed, for no output depends on them.
    """

    reads_heads_first: ClassVar[bool] = True
    degree: ClassVar[int | None] = None

    @property
    def is_its_map(self) -> bool:
        """Whether the features are the map's, and not those of a subclass that makes them in another way."""
        made = (type(self).query_features, type(self).key_features)
        return made == (LocalKernel.query_features, LocalKernel.key_features)

    @abstractmethod
    def feature_map(self, vectors: Float[Tensor, "*batch dim"], *, scale: float) -> Float[Tensor, "*batch features"]:
        """φ(x)."""

    @abstractmethod
    def feature_map_pullback(
        self, vectors: Float[Tensor, "*batch dim"], *, scale: float
    ) -> tuple[Float[Tensor, "*batch features"], Callable[[Tensor, Tensor], None]]:
        """φ(x), and a function of the gradient of φ(x), which it may overwrite, that writes that of x to its second."""

    def query_features(
        self, query: Float[Tensor, "batch heads queries dim"], *, scale: float
    ) -> Float[Tensor, "batch heads queries features"]:
        """φ(q)."""
        query = times(query, self.query_unit(query))
        if is_plain_eager(query):
            return _Map.apply(query, self, scale)
        return self.feature_map(query, scale=scale)

    def key_features(
        self,
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
    ) -> Float[Tensor, "batch heads keys features"]:
        """φ(k)."""
        key = times(key, self.key_unit(key, key_mask))
        return mask_features(self.feature_map(key, scale=scale), key_mask)

    def causal_key_features(
        self,
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
    ) -> tuple[Float[Tensor, "batch heads keys features"], Float[Tensor, "batch heads keys"] | None]:
        """φ(k) of each key in its own range, and the logarithm of what that takes out."""
        if self.degree is None:
            return self.key_features(key, scale=scale, key_mask=key_mask), None
        unit = _unit(key, (-1,))
        features = mask_features(self.feature_map(times(key, unit), scale=scale), key_mask)
        return features, None if unit is None else -self.degree * unit[..., 0].log()

    def query_unit(self, query: Float[Tensor, "*batch queries dim"]) -> Float[Tensor, "*batch queries 1"] | None:
        """A factor of every query that brings it into range, or None where it would not cancel."""
        return None if self.degree is None else _unit(query, (-1,))

    def key_unit(
        self, key: Float[Tensor, "batch heads keys dim"], key_mask: Bool[Tensor, "batch keys"] | None
    ) -> Float[Tensor, "batch heads 1 1"] | None:
        """A factor of the kept keys of every batch and head that brings them into range, or None likewise."""
        if self.degree is None:
            return None
        return _unit(key if key_mask is None else key.masked_fill(~key_mask[:, None, :, None], 0.0), (-2, -1))


def times(vectors: Float[Tensor, "*batch dim"], unit: Float[Tensor, "*#batch 1"] | None) -> Float[Tensor, "*batch dim"]:
    """Vectors times a unit of theirs, if they have one."""
    return vectors if unit is None else vectors * unit


def _unit(vectors: Tensor, dims: tuple[int, ...]) -> Tensor | None:
    """A power of 2⁸ that brings the largest entry to between 1/16 and 16; None where all are there already."""
    # Torch's norm of this order takes twenty times as long.
    peak = vectors.detach().abs().amax(dim=dims, keepdim=True)
    # In coarse steps, so that vectors of about one size share one factor, and no digit is lost between them.
    steps = torch.round(peak.clamp_min(torch.finfo(vectors.dtype).tiny).log2() / RANGE_BITS).clamp(-15.0, 15.0)
    if steps.is_cpu and has_numbers(steps) and not steps.any():
        return None
    return torch.exp2(-RANGE_BITS * steps)


class _Map(Function):
    """φ with the gradient that the kernel has by hand, which takes a third of the passes that autograd makes."""

    @staticmethod
    def forward(ctx, vectors, kernel, scale):
        ctx.save_for_backward(vectors)
        ctx.kernel, ctx.scale = kernel, scale
        return kernel.feature_map(vectors, scale=scale)

    @staticmethod
    def backward(ctx, *grad_outputs):
        (gradient,) = grad_outputs
        (vectors,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient is itself to be differentiated
            features = ctx.kernel.feature_map(vectors, scale=ctx.scale)
            return *torch.autograd.grad(features, vectors, gradient, create_graph=True), None, None
        _, pull = ctx.kernel.feature_map_pullback(vectors, scale=ctx.scale)
        of_vectors = torch.empty_like(vectors)
        pull(gradient.clone(), of_vectors)
        return of_vectors, None, None
