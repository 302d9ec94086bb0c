"""Kernels as attention uses them: drawn, and fitted to the queries and keys."""

import torch
from torch import Generator, Tensor

from teka.functional import ContentKernel, FeatureKernel, Softmax, Taylor2
from teka.functional.kernels import make_content_kernel

# Every kernel by name, and the modes that are not the default.
OTHER_MODES: dict[str, ContentKernel] = {"taylor2-mean": Taylor2("mean")}


def build(name: str, dim: int) -> ContentKernel:
    return OTHER_MODES.get(name) or make_content_kernel(name, dim)


def fit(
    kernel: ContentKernel,
    query: Tensor,
    key: Tensor,
    *,
    scale: float,
    key_mask: Tensor | None = None,
    query_mask: Tensor | None = None,
) -> ContentKernel:
    if not isinstance(kernel, FeatureKernel):
        return kernel
    return kernel.with_statistics(query, key, scale=scale, query_mask=query_mask, key_mask=key_mask)


def attention_matrix(
    kernel: ContentKernel,
    query: Tensor,
    key: Tensor,
    *,
    scale: float,
    key_mask: Tensor | None = None,
    query_mask: Tensor | None = None,
) -> Tensor:
    """Weights of the fitted kernel, normalised over the keys unless they are counted."""
    fitted = fit(kernel, query, key, scale=scale, key_mask=key_mask, query_mask=query_mask)
    weights = fitted.weights(query, key, scale=scale, key_mask=key_mask)
    return weights if kernel.normalizes_by_count else weights / weights.sum(dim=-1, keepdim=True)


def softmax_error(kernel: ContentKernel, query: Tensor, key: Tensor, *, scale: float) -> float:
    """Return the mean L1 distance of the attention weights of a query from those of softmax."""
    actual = attention_matrix(kernel, query, key, scale=scale)
    reference = attention_matrix(Softmax(), query, key, scale=scale)
    return float((actual - reference).abs().sum(dim=-1).mean())


def draw_vectors(
    *size: int,
    seed: int,
    deviation: float = 1.0,
    mean: float = 0.0,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Vectors ~ N(mean, deviation²)."""
    generator = Generator().manual_seed(seed)
    return (mean + deviation * torch.randn(size, generator=generator, dtype=torch.float64)).to(
        dtype
    )
