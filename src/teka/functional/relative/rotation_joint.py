"""The rotation kernel (strategy 1) in the paper's joint form."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from teka.errors import wrong_value
from teka.functional.kernel import Kernel
from teka.functional.placement import Placement
from teka.functional.relative.rotation import Rotation


@dataclass(frozen=True)
class RotationJoint(Rotation):
    """The rotation kernel by concatenation: random features of [q; u(x_i) W] and [k; u(x_j)] together.

    In expectation over the draws it equals `Rotation` with the softmax kernel. For one draw w it does not: the product
    exp(wᵀ[q; u(x_i)W]) · exp(wᵀ[k; u(x_j)]) depends on u(x_i)W + u(x_j) and not on x_i − x_j, so a shift changes the
    output by as much as the estimator's error. Kept for parity with the paper.

    Source: Horn et al. 2021, §2.3 (strategy 1).

    Args:
        frequency: ω in radians per unit of length, shape (scales,).
        cosine_weight: α, shape (heads, axes, scales).
        sine_weight: β, shape (heads, axes, scales).
        scale: Factor of the positions' inner product, as in `Rotation`.
    """

    name: ClassVar[str] = "rotation_joint"
    equivariance: ClassVar[Literal["exact", "in expectation"]] = "in expectation"

    def check(self, *, heads: int, dim: int, num_axes: int, kernel: Kernel) -> None:
        """Check that the weights fit and that the content kernel is softmax or an estimate of it.

        Raises:
            ValueError: They do not, or it is not: only exp turns a sum of inner products into a product of kernels.
        """
        super().check(heads=heads, dim=dim, num_axes=num_axes, kernel=kernel)
        if not kernel.estimates_softmax:
            expected = "softmax or random features of it with relative='rotation_joint'; relative='rotation' takes all"
            raise wrong_value("kernel", kernel.name, expected)

    @property
    def num_position_features(self) -> int:
        """Length 2 · axes · scales of u."""
        return 2 * self.cosine_weight.shape[1] * self.cosine_weight.shape[2]

    def on(self, placement: Placement) -> "RotationJoint":
        """The kernel itself.

        Raises:
            ValueError: A periodic axis: these features see absolute positions, which there are none of on a torus.
        """
        if any(period is not None for period in placement.periods):
            came = placement.query.grid or placement.key.grid
            raise wrong_value("grid", came, "no periodic axis with relative='rotation_joint'")
        return self

    def concatenate(
        self,
        query: Float[Tensor, "batch heads queries dim"],
        key: Float[Tensor, "batch heads keys dim"],
        placement: Placement,
        *,
        scale: float,
    ) -> tuple[Float[Tensor, "batch heads queries joint"], Float[Tensor, "batch heads keys joint"]]:
        """√scale · q and √scale · k, each followed by its position's features: their inner product is the logit.

        Args:
            query: Queries.
            key: Keys.
            placement: Where they are, on grids without periodic axes or at any positions.
            scale: Factor of qᵀk.

        Raises:
            ValueError: As `on`.
        """
        self.on(placement)
        alpha, beta = (weight.to(query)[:, None] for weight in (self.cosine_weight, self.sine_weight))
        sine, cosine = self._waves(placement.query.places(query.device), query.dtype)
        rotated = torch.cat([alpha * sine - beta * cosine, beta * sine + alpha * cosine], dim=-1).flatten(-2)
        plain = torch.cat(self._waves(placement.key.places(key.device), key.dtype), dim=-1).flatten(-2)
        joined = []
        for vectors, waves in ((query, rotated), (key, plain)):
            waves = pad(waves * math.sqrt(self.scale), (0, 0, placement.num_prefix_tokens, 0))
            waves = waves.expand(*vectors.shape[:-1], waves.shape[-1])
            joined.append(torch.cat([vectors * math.sqrt(scale), waves], dim=-1))
        return joined[0], joined[1]

    def _waves(
        self, positions: Float[Tensor, "*batch tokens axes"], dtype: torch.dtype
    ) -> tuple[Float[Tensor, "#batch 1 tokens axes scales"], Float[Tensor, "#batch 1 tokens axes scales"]]:
        """sin ωx and cos ωx of every position, axis and scale."""
        phase = positions[..., None] * self.frequency.to(positions)
        phase = phase[:, None] if phase.ndim == 4 else phase[None, None]
        return torch.sin(phase).to(dtype), torch.cos(phase).to(dtype)
