"""The clipped kernel (strategy 2) in the paper's form."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from teka.checks import check_tensor
from teka.functional.kernel import Kernel, Positive, default_num_features
from teka.functional.kernel.exponential import LOWEST_EXPONENT
from teka.functional.projection import draw_projection
from teka.functional.relative.clipped import MAX_DISTANCE, Clipped


@dataclass(frozen=True)
class ClippedFeatures(Clipped):
    """c(Δ; q) = φ(q)ᵀφ(w_r), the random-feature estimate of `Clipped`, with positive features of the embeddings.

    It costs more than the exact kernel and errs by the estimator's error, but it sees only the ring and so is
    equivariant for every draw. Kept for parity with the paper, with the denominator that its text leaves out.

    Source: Horn et al. 2021, §2.3 (strategy 2).

    Args:
        distance_embedding: w_0 … w_k, shape (k + 1, d).
        ring_width: Distance between neighbouring rings in physical units.
        projection: Draws of the random features, shape (m, d).

    Raises:
        ValueError: As `Clipped`, or no projection.
    """

    name: ClassVar[str] = "clipped_features"

    projection: Float[Tensor, "features dim"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_tensor("projection", self.projection, "features", self.distance_embedding.shape[-1])

    @classmethod
    def draw(
        cls, generator: Generator, *, heads: int, dim: int, num_axes: int, kernel: str | Kernel
    ) -> "ClippedFeatures":
        """Embeddings ~ N(0, 1) up to the paper's distance, and an orthogonal projection."""
        embedding = torch.randn(MAX_DISTANCE + 1, dim, generator=generator, dtype=torch.float64)
        return cls(embedding, projection=draw_projection(default_num_features(dim), dim, generator=generator))

    def log_rings(
        self, query: Float[Tensor, "batch heads queries dim"], *, scale: float
    ) -> Float[Tensor, "batch heads queries rings"]:
        """log φ(q)ᵀφ(w_r) for every ring."""
        assert self.projection is not None
        features = Positive(self.projection)
        query_exponent = features.query_exponent(query, scale=scale)
        ring_exponent = features.key_exponent(self.distance_embedding.to(query)[None, None], scale=scale)
        query_peak = query_exponent.amax(dim=-1, keepdim=True)
        ring_peak = ring_exponent.amax(dim=(-2, -1), keepdim=True)
        query_features = torch.exp((query_exponent - query_peak).clamp_min(LOWEST_EXPONENT))
        ring_features = torch.exp((ring_exponent - ring_peak).clamp_min(LOWEST_EXPONENT))
        mean = query_features @ ring_features.transpose(-2, -1) / self.projection.shape[0]
        return torch.log(mean) + query_peak + ring_peak
