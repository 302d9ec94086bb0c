"""What kernels share whose features are those of one vector at a time."""

from abc import abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd import Function

from teka.functional.eager import is_plain_eager
from teka.functional.kernel.base import FeatureKernel, mask_features


class LocalKernel(FeatureKernel):
    """A kernel whose φ is one map for queries and keys, of one vector at a time, with its gradient written out.

    The fused evaluation (`backend.fused_linear`) is for these: it makes φ anew in the backward pass.
    """

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
        return mask_features(self.feature_map(key, scale=scale), key_mask)


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
