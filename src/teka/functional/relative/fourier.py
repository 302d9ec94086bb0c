"""A position-dependent attention weight that is a non-negative sum of sinusoids of the offset."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from teka._compat import replace
from teka.checks import (
    POSITIVE_NUMBER,
    check_tensor_sizes,
    is_number,
    is_positive,
    should_check_elements,
)
from teka.errors import wrong_value
from teka.functional.backends.attention_sums import (
    AttentionFeatures,
    LinearAttentionInputs,
    WeightedSums,
)
from teka.functional.backends.costs import AttentionSizes, Cost, linear_cost
from teka.functional.backends.linear import (
    DecodingState,
    decode_linear_attention,
    linear_attention_sums,
    multiply_by_sinusoids,
)
from teka.functional.kernels.content_kernel import smallest_normal_number
from teka.functional.positions import Positions
from teka.functional.relative.relative_kernel import random_directions
from teka.functional.relative.stationary import StationaryRelativeKernel
from teka.functional.shapes import (
    KeyPhases,
    LogRelativePerHead,
    OffsetVectors,
    PairFunction,
    Queries,
    QueryPhases,
)

# Default number of sinusoids. With it, attention takes about as long as the projections of a layer.
NUM_FOURIER_WAVES = 4

# Initial wavelengths, in physical units.
SHORTEST_WAVE = 2.0
LONGEST_WAVE = 64.0


@dataclass(frozen=True)
class Fourier(StationaryRelativeKernel):
    """A position-dependent attention weight: a learned, non-negative sum of sinusoids.

        c(Δ) = a_0 + Σ_f a_f [1 + cos(ω_f·Δ + θ_f)]

    Here Δ is the offset between query and key. Each sinusoid f has a learned frequency ω_f, phase
    θ_f and amplitude a_f ≥ 0. The cosine of a difference is a sum of products, so c is the inner
    product of a vector of the query position and a vector of the key position. Attention is
    therefore linear in the number of tokens, and exact at any real positions. On a periodic grid,
    frequencies are rounded so that whole periods fit the grid.

    Source: this library. Choromanski et al. 2023 (FLT) use a similar sum, with random frequencies.

    >>> import math, torch
    >>> from teka.functional import Fourier
    >>> frequency = torch.full((1, 1, 1), math.pi / 4)  # one wave with a length of 8 cells
    >>> kernel = Fourier(torch.tensor([0.5]), torch.ones(1, 1), frequency, torch.zeros(1, 1))
    >>> kernel.log_weight_at(torch.tensor([[0.0], [2.0], [4.0], [8.0]])).exp().round(decimals=4)
    tensor([[2.5000, 1.5000, 0.5000, 2.5000]])

    Args:
        constant_weight: a_0, shape (heads,).
        amplitude: a_f, shape (heads, waves).
        frequency: ω_f in radians per unit of length, shape (heads, waves, axes).
        phase: θ_f in radians, shape (heads, waves).

    Raises:
        ValueError: If a weight is negative, or all weights of a head are 0.
    """

    name = "fourier"
    can_add_positions_to_features = True
    supports_decoding = True
    nonnegative_tensors = ("constant_weight", "amplitude")
    example_sizes: ClassVar[dict[str, int]] = {"waves": NUM_FOURIER_WAVES}

    constant_weight: Float[Tensor, "heads"]
    amplitude: Float[Tensor, "heads waves"]
    frequency: Float[Tensor, "heads waves axes"]
    phase: Float[Tensor, "heads waves"]

    def __post_init__(self) -> None:
        super().__post_init__()
        if should_check_elements(self.constant_weight) and should_check_elements(self.amplitude):
            total = self.constant_weight.detach() + self.amplitude.detach().sum(dim=1)
            if not bool((total > 0).all()):
                argument = "the sum of constant_weight and amplitude"
                raise wrong_value(
                    argument, total.tolist(), "at least one weight above 0 in every head"
                )

    @classmethod
    def with_initial_parameters(
        cls,
        *,
        num_axes: int,
        heads: int,
        num_waves: int = NUM_FOURIER_WAVES,
        longest_wave: float = LONGEST_WAVE,
        shortest_wave: float = SHORTEST_WAVE,
        wave_weight: float = 1.0,
    ) -> "Fourier":
        """Create a kernel whose sinusoids have random directions, for the start of training.

        The constant a_0 is 1, all amplitudes are equal, and all phases are 0. The weight is
        therefore at least 1, and it is largest at offset 0. Wavelengths are log-uniform.

        Args:
            num_axes: Number of axes of the grid.
            heads: Number of heads.
            num_waves: Number of sinusoids.
            longest_wave: Longest initial wavelength, in physical units.
            shortest_wave: Shortest initial wavelength.
            wave_weight: Sum of the amplitudes, above 0.
        """
        check_tensor_sizes({"num_axes": num_axes, "heads": heads, "num_waves": num_waves})
        if not is_positive(shortest_wave):
            raise wrong_value("shortest_wave", shortest_wave, POSITIVE_NUMBER)
        if not (is_number(longest_wave) and longest_wave >= shortest_wave):
            raise wrong_value(
                "longest_wave",
                longest_wave,
                f"finite and at least shortest_wave = {shortest_wave:g}",
            )
        if not is_positive(wave_weight):
            raise wrong_value("wave_weight", wave_weight, POSITIVE_NUMBER)
        length = shortest_wave * (longest_wave / shortest_wave) ** torch.rand(heads, num_waves, 1)
        frequency = 2 * math.pi / length * random_directions(heads, num_waves, num_axes)
        amplitude = torch.full((heads, num_waves), wave_weight / num_waves)
        return cls(torch.ones(heads), amplitude, frequency, torch.zeros(heads, num_waves))

    def adapt_to_positions(self, positions: Positions) -> "Fourier":
        if not any(positions.periods):
            return self
        return replace(self, frequency=positions.round_frequency_to_periods(self.frequency))

    def num_weight_matrix_passes(self, num_axes: int) -> int:
        # One cosine for each wave.
        return 3 + 17 * self.frequency.shape[1]

    def log_weight_at(self, offsets: OffsetVectors) -> LogRelativePerHead:
        # 1 + cos t = 2 cos²(t/2) loses no digits where it is small.
        ones = (1,) * (offsets.ndim - 1)
        angle = torch.einsum("hwn,...n->hw...", self.frequency.to(offsets), offsets)
        angle = angle + self.phase.to(offsets).reshape(*self.phase.shape, *ones)
        squares = torch.cos(angle / 2).square()
        waves = torch.einsum("hw,hw...->h...", 2 * self.amplitude.to(offsets), squares)
        return torch.log(waves + self.constant_weight.to(offsets).reshape(-1, *ones))

    def position_features(
        self, positions: Positions, like: Tensor
    ) -> tuple[QueryPhases, KeyPhases]:
        """Return vectors whose inner products are the position-dependent attention weights.

        The first result contains a vector for each query, and the second a vector for each key. At
        the position x, with the frequencies ω_f, phases θ_f and amplitudes a_f of the sinusoids f,
        and the constant a_0, the vectors are

            [a_0 + Σ_f a_f, a_f cos(ω_f·x + θ_f), a_f sin(ω_f·x + θ_f)] for a query,
            [1, cos ω_f·x, sin ω_f·x] for a key.

        They have the dtype and the device of the tensor `like`.
        """
        angle, key_angle = positions.compute_sinusoid_phases(self.frequency, like)
        angle = angle + self.phase.to(angle)[:, None]
        amplitude = self.amplitude.to(angle)[:, None]
        constant = self.constant_weight.to(angle)[:, None, None]
        constant = constant + amplitude.sum(dim=-1, keepdim=True)
        constant = constant.expand(*angle.shape[:-1], 1)
        cosine, sine = amplitude * torch.cos(angle), amplitude * torch.sin(angle)
        query = torch.cat([constant, cosine, sine], dim=-1)
        ones = torch.ones_like(key_angle[..., :1])
        key = torch.cat([ones, torch.cos(key_angle), torch.sin(key_angle)], dim=-1)
        return query if query.ndim == 4 else query[None], key if key.ndim == 4 else key[None]

    def make_flex_attention_bias(
        self, query: Queries, positions: Positions, *, scale: float
    ) -> PairFunction:
        position_bias = super().make_flex_attention_bias(query, positions, scale=scale)
        if position_bias is not None:
            return position_bias
        first, tiny = positions.num_prefix_tokens, smallest_normal_number(query)
        columns = []
        for features in self.position_features(positions, query):
            features = features.expand(query.shape[0], *features.shape[-3:])
            features = pad(features, (0, 0, first, 0), value=1.0)
            # One tensor for each feature, because gradients reach a table only if it is read at one
            # place.
            columns.append([column.contiguous() for column in features.unbind(dim=-1)])
        pairs = list(zip(*columns, strict=True))
        log_sum: PairFunction = lambda b, h, i, j: torch.log(  # noqa: E731
            torch.maximum(
                sum((left[b, h, i] * right[b, h, j] for left, right in pairs), tiny), tiny
            )
        )
        if not first:
            return log_sum
        return lambda b, h, i, j: torch.where((i < first) | (j < first), 0.0, log_sum(b, h, i, j))

    def estimate_costs(self, sizes: AttentionSizes, positions: Positions) -> dict[str, Cost]:
        return {
            "linear": linear_cost(sizes, self.feature_multiplier),
            **super().estimate_costs(sizes, positions),
        }

    def weighted_sums(
        self, backend: str, tokens: LinearAttentionInputs, positions: Positions
    ) -> WeightedSums:
        if backend == "fft":
            return super().weighted_sums(backend, tokens, positions)
        return linear_attention_sums(tokens, *self._linear_features(tokens, positions))

    def add_positions_to_features(
        self, features: Tensor, positions: Positions, *, is_key: bool
    ) -> AttentionFeatures:
        position_features = self.position_features(positions, features)[1 if is_key else 0]
        return AttentionFeatures(multiply_by_sinusoids(features, position_features))

    def decode_step(
        self, tokens: LinearAttentionInputs, state: DecodingState | None, positions: Positions
    ) -> tuple[WeightedSums, DecodingState]:
        return decode_linear_attention(tokens, *self._linear_features(tokens, positions), state)

    @property
    def feature_multiplier(self) -> int:
        return 2 * self.frequency.shape[1] + 1

    def _linear_features(
        self, tokens: LinearAttentionInputs, positions: Positions
    ) -> tuple[AttentionFeatures, AttentionFeatures]:
        query_waves, key_waves = self.position_features(positions, tokens.value)
        query = multiply_by_sinusoids(tokens.query_features, query_waves)
        key = multiply_by_sinusoids(tokens.key_features, key_waves)
        return AttentionFeatures(query), AttentionFeatures(key)
