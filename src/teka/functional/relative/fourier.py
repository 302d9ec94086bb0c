"""Kernels of a few waves, and the Fourier kernel: a non-negative sum of them."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.nn.functional import pad

from teka._compat import replace
from teka.checks import (
    POSITIVE_NUMBER,
    can_check_elements,
    check_nonnegative,
    check_tensor,
    check_tensor_sizes,
    is_number,
    is_positive,
)
from teka.errors import wrong_value
from teka.functional.backends import Cost, FeatureInputs, WeightedSums
from teka.functional.backends.feature_sums import LinearFeatures, plain_sums
from teka.functional.backends.linear import DecodingState, Sizes, linear_cost, product_features
from teka.functional.kernels.base import Kernel, smallest_normal
from teka.functional.positions import Positions, check_heads_and_axes
from teka.functional.relative.base import linear_step, random_directions
from teka.functional.relative.stationary import StationaryRelative
from teka.functional.shapes import (
    KeyPhases,
    LogRelativePerHead,
    OffsetVectors,
    PairFunction,
    Queries,
    QueryPhases,
)

NUM_FOURIER_WAVES = (
    4  # with the constant, 9 products of features: the layer stays near the cost of its projections
)

# Initial wavelengths, in physical units.
SHORTEST_WAVE = 2.0
LONGEST_WAVE = 64.0


class WaveRelative(StationaryRelative):
    """A stationary kernel of a few waves: c(x_i − x_j) = Σ_w a_w(x_i) b_w(x_j), a product of features of positions."""

    supports_decoding: ClassVar[bool] = True
    has_linear_features: ClassVar[bool] = True

    @property
    @abstractmethod
    def num_waves(self) -> int:
        """Number of terms of the sum."""

    @abstractmethod
    def waves(self, positions: Positions, like: Tensor) -> tuple[QueryPhases, KeyPhases]:
        """a(x_i) and b(x_j) with c = Σ_w a_w(x_i) b_w(x_j), from all digits that positions have."""

    def pair_term(self, query: Queries, positions: Positions, *, scale: float) -> PairFunction:
        """From a table, or where the positions are on no lattice log Σ_w a_w(x_i) b_w(x_j)."""
        term = super().pair_term(query, positions, scale=scale)
        if term is not None:
            return term
        first, tiny, waves = positions.num_prefix_tokens, smallest_normal(query), []
        for of_tokens in self.waves(positions, query):
            of_batch = of_tokens.expand(query.shape[0], *of_tokens.shape[-3:])
            # A tensor for each wave: gradients reach a table that is read at one place only.
            waves.append(
                [
                    wave.contiguous()
                    for wave in pad(of_batch, (0, 0, first, 0), value=1.0).unbind(dim=-1)
                ]
            )
        pairs = list(zip(*waves, strict=True))
        summed: PairFunction = lambda b, h, i, j: torch.log(  # noqa: E731
            torch.maximum(sum((a[b, h, i] * c[b, h, j] for a, c in pairs), tiny), tiny)
        )
        if not first:
            return summed
        return lambda b, h, i, j: torch.where((i < first) | (j < first), 0.0, summed(b, h, i, j))

    def costs(self, sizes: Sizes, positions: Positions) -> dict[str, Cost]:
        """Of products of features and waves too, at any positions."""
        return {"linear": linear_cost(sizes, self.num_waves), **super().costs(sizes, positions)}

    def sums(self, backend: str, tokens: FeatureInputs, positions: Positions) -> WeightedSums:
        if backend == "fft":
            return super().sums(backend, tokens, positions)
        return plain_sums(tokens, *self.waves(positions, tokens.value))

    def linear_features(
        self, features: Tensor, positions: Positions, *, is_key: bool
    ) -> LinearFeatures:
        waves = self.waves(positions, features)[1 if is_key else 0]
        return LinearFeatures(product_features(features, waves))

    def step(
        self, tokens: FeatureInputs, state: DecodingState | None, positions: Positions
    ) -> tuple[WeightedSums, DecodingState]:
        return linear_step(tokens, state, *self.waves(positions, tokens.value))


@dataclass(frozen=True)
class Fourier(WaveRelative):
    """c(Δ) = a_0 + Σ_f a_f [1 + cos(ω_f·Δ + θ_f)] with a ≥ 0, and so c ≥ 0, for waves in any direction.

    cos(ω·(x_i − x_j) + θ) = cos(ω·x_i + θ) cos(ω·x_j) + sin(ω·x_i + θ) sin(ω·x_j), so that c is an inner product of 2F
    + 1 features: exact at any real positions, and sums cost O(L · m · F). On a periodic grid frequencies are rounded to
    those of the torus. A negative weight or amplitude, or a head in which all of them are 0, is a ValueError.

    Source: this library; near to the Fourier masks of Choromanski et al. 2023 (FLT), whose waves are drawn at random.

    >>> import math, torch
    >>> from teka.functional import Fourier
    >>> frequency, phase = torch.full((1, 1, 1), math.pi / 4), torch.zeros(1, 1)  # one wave of 8 cells
    >>> kernel = Fourier(torch.tensor([0.5]), torch.ones(1, 1), frequency, phase)
    >>> kernel.log_at(torch.tensor([[0.0], [2.0], [4.0], [8.0]])).exp().round(decimals=4)
    tensor([[2.5000, 1.5000, 0.5000, 2.5000]])

    Args:
        constant_weight: a_0, used as it is, shape (heads,).
        amplitude: a_f, used as it is, shape (heads, waves).
        frequency: ω_f in radians per unit of length, shape (heads, waves, axes).
        phase: θ_f in radians, shape (heads, waves).
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
        for argument, weight in (
            ("constant_weight", self.constant_weight),
            ("amplitude", self.amplitude),
        ):
            check_nonnegative(argument, weight)
        if can_check_elements(self.constant_weight) and can_check_elements(self.amplitude):
            total = self.constant_weight.detach() + self.amplitude.detach().sum(dim=1)
            if not bool((total > 0).all()):
                expected = "at least one weight above 0 in every head"
                raise wrong_value(
                    "the sum of constant_weight and amplitude", total.tolist(), expected
                )

    @classmethod
    def initial(
        cls,
        *,
        num_axes: int,
        heads: int,
        num_waves: int = NUM_FOURIER_WAVES,
        longest_wave: float = LONGEST_WAVE,
        shortest_wave: float = SHORTEST_WAVE,
        wave_weight: float = 1.0,
    ) -> "Fourier":
        """Random directions, log-uniform wavelengths, θ = 0, a_0 = 1 and a_f = A/F.

        c is 1 + 2A at offset 0, and between 1 and 1 + 2A elsewhere.

        Args:
            num_axes: Number of axes of the grid.
            heads: Number of heads.
            num_waves: Number of waves F.
            longest_wave: Longest initial wavelength, in physical units.
            shortest_wave: Shortest initial wavelength.
            wave_weight: A > 0, the sum of the amplitudes.
        """
        check_tensor_sizes({"num_axes": num_axes, "heads": heads, "num_waves": num_waves})
        if not is_positive(shortest_wave):
            raise wrong_value("shortest_wave", shortest_wave, POSITIVE_NUMBER)
        if not (is_number(longest_wave) and longest_wave >= shortest_wave):
            expected = f"finite and at least shortest_wave = {shortest_wave:g}"
            raise wrong_value("longest_wave", longest_wave, expected)
        if not is_positive(wave_weight):
            raise wrong_value("wave_weight", wave_weight, POSITIVE_NUMBER)
        length = shortest_wave * (longest_wave / shortest_wave) ** torch.rand(heads, num_waves, 1)
        frequency = 2 * math.pi / length * random_directions(heads, num_waves, num_axes)
        amplitude = torch.full((heads, num_waves), wave_weight / num_waves)
        return cls(torch.ones(heads), amplitude, frequency, torch.zeros(heads, num_waves))

    @property
    def constraints(self) -> dict[str, str]:
        return {"constant_weight": "positive", "amplitude": "positive"}

    @classmethod
    def draw(
        cls, generator: Generator, *, heads: int, dim: int, num_axes: int, kernel: str | Kernel
    ) -> "Fourier":
        """Amplitudes from 0 to 1 over a constant from 0.1 to 0.6, frequencies ~ N(0, 1), phases ~ N(0, 1)."""
        size = (heads, NUM_FOURIER_WAVES)
        constant = 0.1 + 0.5 * torch.rand(heads, generator=generator, dtype=torch.float64)
        amplitude = torch.rand(size, generator=generator, dtype=torch.float64)
        frequency = torch.randn(*size, num_axes, generator=generator, dtype=torch.float64)
        return cls(
            constant,
            amplitude,
            frequency,
            torch.randn(size, generator=generator, dtype=torch.float64),
        )

    def pair_passes(self, num_axes: int) -> int:
        """A cosine a wave."""
        return 17 * self.frequency.shape[1]

    @property
    def num_waves(self) -> int:
        return 2 * self.frequency.shape[1] + 1

    def check(self, *, heads: int, dim: int, num_axes: int, kernel: Kernel) -> None:
        check_heads_and_axes("frequency", self.frequency, heads, "waves", num_axes)

    def for_positions(self, positions: Positions) -> "Fourier":
        return replace(self, frequency=positions.torus_frequency(self.frequency))

    def log_at(self, offsets: OffsetVectors) -> LogRelativePerHead:
        """log c at offsets, from 1 + cos t = 2 cos²(t/2), which loses no digits where it is small."""
        heads, waves = self.amplitude.shape
        angle = torch.einsum("hwn,...n->hw...", self.frequency.to(offsets), offsets)
        angle = angle + self.phase.to(offsets).reshape(heads, waves, *(1,) * (offsets.ndim - 1))
        swell = torch.einsum(
            "hw,hw...->h...", 2 * self.amplitude.to(offsets), torch.cos(angle / 2).square()
        )
        return torch.log(
            swell + self.constant_weight.to(offsets).reshape(heads, *(1,) * (offsets.ndim - 1))
        )

    def waves(self, positions: Positions, like: Tensor) -> tuple[QueryPhases, KeyPhases]:
        """[a_0 + Σ_f a_f, a_f cos(ω_f·x + θ_f), a_f sin(ω_f·x + θ_f)] of queries, [1, cos ω_f·x, sin ω_f·x] of keys."""
        angle, key_angle = positions.angles(self.frequency, like)
        angle = angle + self.phase.to(angle)[:, None]
        amplitude = self.amplitude.to(angle)[:, None]
        constant = self.constant_weight.to(angle)[:, None, None] + amplitude.sum(
            dim=-1, keepdim=True
        )
        constant = constant.expand(*angle.shape[:-1], 1)
        of_query = torch.cat(
            [constant, amplitude * torch.cos(angle), amplitude * torch.sin(angle)], dim=-1
        )
        ones = torch.ones_like(key_angle[..., :1])
        of_key = torch.cat([ones, torch.cos(key_angle), torch.sin(key_angle)], dim=-1)
        query_waves, key_waves = (one if one.ndim == 4 else one[None] for one in (of_query, of_key))
        return query_waves, key_waves
