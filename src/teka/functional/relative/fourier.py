"""The Fourier kernel: a non-negative sum of a few waves."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from teka.checks import check_nonnegative, check_tensor
from teka.errors import wrong_shape
from teka.functional.kernel import Kernel
from teka.functional.placement import Placement
from teka.functional.relative.base import WaveRelative
from teka.functional.relative.drawable import DrawableRelative
from teka.functional.relative.phase import phases, precise

NUM_FOURIER_WAVES = 4  # with the constant, 9 products of features: the layer stays near the cost of its projections


@dataclass(frozen=True)
class Fourier(WaveRelative, DrawableRelative):
    """c(Δ) = a_0 + Σ_f a_f [1 + cos(ω_f·Δ + θ_f)] with a ≥ 0, and so c ≥ 0, for waves in any direction.

    cos(ω·(x_i − x_j) + θ) = cos(ω·x_i + θ) cos(ω·x_j) + sin(ω·x_i + θ) sin(ω·x_j), so that c is an inner product of
    2F + 1 features of x_i and of x_j: exact at any real positions, and the sum over keys costs O(L · m · F). On a
    periodic grid frequencies are rounded to those of the torus.

    Source: this library; near to the Fourier masks of Choromanski et al. 2023 (FLT), whose waves are drawn at random.

    Args:
        constant_weight: a_0, used as it is, shape (heads,).
        amplitude: a_f, used as it is, shape (heads, waves).
        frequency: ω_f in radians per unit of length, shape (heads, waves, axes).
        phase: θ_f in radians, shape (heads, waves).

    Raises:
        ValueError: Shapes that do not fit each other, or a negative weight or amplitude.
    """

    name: ClassVar[str] = "fourier"

    constant_weight: Float[Tensor, "heads"]
    amplitude: Float[Tensor, "heads waves"]
    frequency: Float[Tensor, "heads waves axes"]
    phase: Float[Tensor, "heads waves"]

    def __post_init__(self) -> None:
        check_tensor("frequency", self.frequency, "heads", "waves", "axes")
        heads, waves, _ = self.frequency.shape
        check_tensor("constant_weight", self.constant_weight, heads)
        check_tensor("amplitude", self.amplitude, heads, waves)
        check_tensor("phase", self.phase, heads, waves)
        for argument, weight in (("constant_weight", self.constant_weight), ("amplitude", self.amplitude)):
            check_nonnegative(argument, weight)

    @classmethod
    def draw(cls, generator: Generator, *, heads: int, dim: int, num_axes: int, kernel: str | Kernel) -> "Fourier":
        """Amplitudes from 0 to 1 over a constant from 0.1 to 0.6, frequencies ~ N(0, 1), phases ~ N(0, 1)."""
        size = (heads, NUM_FOURIER_WAVES)
        constant = 0.1 + 0.5 * torch.rand(heads, generator=generator, dtype=torch.float64)
        amplitude = torch.rand(size, generator=generator, dtype=torch.float64)
        frequency = torch.randn(*size, num_axes, generator=generator, dtype=torch.float64)
        return cls(constant, amplitude, frequency, torch.randn(size, generator=generator, dtype=torch.float64))

    def pair_passes(self, num_axes: int) -> int:
        """A cosine a wave."""
        return 17 * self.frequency.shape[1]

    @property
    def num_waves(self) -> int:
        """2F + 1: the constant, and a cosine and a sine for each wave."""
        return 2 * self.frequency.shape[1] + 1

    def check(self, *, heads: int, dim: int, num_axes: int, kernel: Kernel) -> None:
        """Check that there are waves for each of the heads, in as many axes."""
        if (self.frequency.shape[0], self.frequency.shape[2]) != (heads, num_axes):
            expected = f"({heads}, waves, {num_axes}) for {heads} heads and positions of {num_axes} axes"
            raise wrong_shape("relative.frequency", self.frequency.shape, expected)

    def on(self, placement: Placement) -> "Fourier":
        """The kernel with frequencies that fit the grid's periods; rounded components have a gradient of 0."""
        frequency = placement.torus_frequency(precise(self.frequency))
        return Fourier(self.constant_weight, self.amplitude, frequency, self.phase)

    def log_at(self, offsets: Float[Tensor, "*pairs axes"]) -> Float[Tensor, "heads *pairs"]:
        """log c at offsets, from 1 + cos t = 2 cos²(t/2), which loses no digits where it is small."""
        heads, waves = self.amplitude.shape
        angle = torch.einsum("hwn,...n->hw...", self.frequency.to(offsets), offsets)
        angle = angle + self.phase.to(offsets).reshape(heads, waves, *(1,) * (offsets.ndim - 1))
        swell = torch.einsum("hw,hw...->h...", 2 * self.amplitude.to(offsets), torch.cos(angle / 2).square())
        return torch.log(swell + self.constant_weight.to(offsets).reshape(heads, *(1,) * (offsets.ndim - 1)))

    def query_waves(
        self, positions: Float[Tensor, "*batch tokens axes"], dtype: torch.dtype
    ) -> Float[Tensor, "*batch heads tokens waves"]:
        """[a_0 + Σ_f a_f, a_f cos(ω_f·x + θ_f), a_f sin(ω_f·x + θ_f)]."""
        angle = phases(self.frequency, positions, dtype)
        angle = angle + self.phase.to(angle)[:, None]
        amplitude = self.amplitude.to(angle)[:, None]
        constant = self.constant_weight.to(angle)[:, None, None] + amplitude.sum(dim=-1, keepdim=True)
        constant = constant.expand(*angle.shape[:-1], 1)
        return torch.cat([constant, amplitude * torch.cos(angle), amplitude * torch.sin(angle)], dim=-1)

    def key_waves(
        self, positions: Float[Tensor, "*batch tokens axes"], dtype: torch.dtype
    ) -> Float[Tensor, "*batch heads tokens waves"]:
        """[1, cos ω_f·x, sin ω_f·x]."""
        angle = phases(self.frequency, positions, dtype)
        return torch.cat([torch.ones_like(angle[..., :1]), torch.cos(angle), torch.sin(angle)], dim=-1)
