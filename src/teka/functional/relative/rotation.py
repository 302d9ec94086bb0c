"""The rotation kernel (strategy 1), exactly."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from teka.checks import check_tensor, is_number
from teka.errors import wrong_shape, wrong_value
from teka.functional.kernel import Kernel
from teka.functional.relative.base import SeparableRelative
from teka.functional.relative.drawable import DrawableRelative

NUM_FREQUENCIES = 4  # Horn et al. 2021, appendix A.2


def initial_frequency(num_frequencies: int) -> Float[Tensor, "scales"]:
    """ω_s = 8^(−s/2) radians per unit of length: 1, .354, .125, .0442 for four (Horn et al. 2021, authors' code)."""
    return 8.0 ** (-torch.arange(num_frequencies, dtype=torch.float64) / 2)


def rotation_scale(dim: int, num_axes: int, num_frequencies: int) -> float:
    """1/√d' with d' = d + 2 · axes · scales, the size of the concatenated vectors (Horn et al. 2021)."""
    return (dim + 2 * num_axes * num_frequencies) ** -0.5


@dataclass(frozen=True)
class Rotation(SeparableRelative, DrawableRelative):
    """log c(Δ) = scale · Σ_{axis a, s} [α_as cos(ω_s Δ_a) + β_as sin(ω_s Δ_a)].

    Lemma 1: with u(x) = [sin ωx, cos ωx], ⟨u(x) W, u(y)⟩ depends on x − y alone when W = [[α, β], [−β, α]], and then is
    α cos ω(x − y) + β sin ω(x − y). The paper asks it of W_qᵀW_k; with vectors as rows it is W_q W_kᵀ. For

        u(x) W = [α sin ωx − β cos ωx, β sin ωx + α cos ωx],

    ⟨u(x) W, u(y)⟩ = α (sin ωx sin ωy + cos ωx cos ωy) + β (sin ωx cos ωy − cos ωx sin ωy). A sum over axes in the
    exponent is a product of one factor an axis, so the sum over keys is one Toeplitz matrix an axis.

    On a periodic grid Δ is first wrapped into [−P/2, P/2), so that c has the grid's period for any ω.

    Source: Horn et al. 2021, Lemma 1 and §2.3 (strategy 1); the separable form is this library's.

    Args:
        frequency: ω in radians per unit of length, shape (scales,).
        cosine_weight: α, shape (heads, axes, scales).
        sine_weight: β, shape (heads, axes, scales).
        scale: Factor of the sum; the paper's is 1/√d' with d' = d + 2 · axes · scales.

    Raises:
        ValueError: Shapes that do not fit each other, or a scale that is negative.
    """

    name: ClassVar[str] = "rotation"

    frequency: Float[Tensor, "scales"]
    cosine_weight: Float[Tensor, "heads axes scales"]
    sine_weight: Float[Tensor, "heads axes scales"]
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_tensor("frequency", self.frequency, "scales")
        check_tensor("cosine_weight", self.cosine_weight, "heads", "axes", len(self.frequency))
        check_tensor("sine_weight", self.sine_weight, *self.cosine_weight.shape)
        if not (is_number(self.scale) and self.scale >= 0):
            raise wrong_value("scale", self.scale, "a finite number of at least 0")

    @classmethod
    def draw(cls, generator: Generator, *, heads: int, dim: int, num_axes: int, kernel: str | Kernel) -> "Rotation":
        """Weights ~ N(0, 1), with the paper's frequencies and scale."""
        shape = (2, heads, num_axes, NUM_FREQUENCIES)
        cosine_weight, sine_weight = torch.randn(shape, generator=generator, dtype=torch.float64)
        scale = rotation_scale(dim, num_axes, NUM_FREQUENCIES)
        return cls(initial_frequency(NUM_FREQUENCIES), cosine_weight, sine_weight, scale)

    def check(self, *, heads: int, dim: int, num_axes: int, kernel: Kernel) -> None:
        """Check that the weights have this many heads and axes."""
        if tuple(self.cosine_weight.shape[:2]) != (heads, num_axes):
            expected = (
                f"({heads}, {num_axes}, {len(self.frequency)}) for {heads} heads and positions of {num_axes} axes; "
                f"a layer that makes its own relative kernel takes num_axes={num_axes}"
            )
            raise wrong_shape("relative.cosine_weight", self.cosine_weight.shape, expected)

    def axis_log_kernel(self, axis: int, offsets: Float[Tensor, "*pairs"]) -> Float[Tensor, "heads *pairs"]:
        """scale · Σ_s [α_as cos(ω_s Δ) + β_as sin(ω_s Δ)] at offsets along one axis."""
        phase = offsets[..., None] * self.frequency.to(offsets)
        waves = torch.cat([torch.cos(phase), torch.sin(phase)], dim=-1)
        weight = torch.cat([self.cosine_weight[:, axis], self.sine_weight[:, axis]], dim=-1).to(offsets)
        return self.scale * torch.einsum("hs,...s->h...", weight, waves)
