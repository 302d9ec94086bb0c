"""Attention weights that depend on the query and on the signed offset between query and key.

They are the relative position embeddings of Shaw et al. 2018 and the position bias of
Transformer-XL.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor
from torch.nn.functional import pad

from teka._compat import replace
from teka.checks import POSITIVE_NUMBER, check_tensor, check_tensor_sizes, is_positive
from teka.errors import wrong_shape, wrong_value
from teka.functional.backends.attention_sums import LinearAttentionInputs, WeightedSums
from teka.functional.backends.costs import AttentionSizes, Cost, signed_offset_cost
from teka.functional.backends.linear import DecodingState
from teka.functional.backends.rings import causal_ring_attention_sums, signed_offset_attention_sums
from teka.functional.positions import Positions, round_to_steps
from teka.functional.relative.clipped import MAX_DISTANCE, decode_with_rings
from teka.functional.relative.relative_kernel import (
    OffsetIndex,
    PositiveRelativeKernel,
    has_spacing,
)
from teka.functional.relative.rotation import NUM_FREQUENCIES, append_position_features
from teka.functional.shapes import (
    Keys,
    LogRelative,
    Offsets,
    OffsetVectors,
    PairFunction,
    Queries,
    VectorPair,
)

# Ratio of the longest wavelength to the shortest (Vaswani et al. 2017).
WAVE_BASE = 10_000.0


@dataclass(frozen=True)
class Shaw(PositiveRelativeKernel):
    """Relative position embeddings for clipped offsets of query and key, as in Shaw et al. 2018.

    The attention weight of a query q and a key at the offset Δ is multiplied by

        c(Δ; q) = exp(scale · Σ_a qᵀw_a[clip(Δ_a, −k, k)]).

    Here Δ_a is the offset along axis a, which is clipped to the range from −k to k. The vector
    w_a[Δ_a] is the learned embedding of the offset. On one axis, attention with L tokens takes O(L
    · k) operations, because a sum over keys is a weighted sum of 2k + 1 sums over offsets.

    Source: Shaw et al. 2018, equations 2 and 4, on one axis, without embeddings of values. The
    offset here is query minus key, in the paper it is key minus query. On several axes it is
    strategy 2 of Horn et al. 2021 with signs.

    >>> import torch
    >>> from teka.functional import Shaw
    >>> kernel = Shaw(torch.randn(1, 5, 8))  # k = 2
    >>> offsets = torch.tensor([[-9.0], [-1.0], [0.0], [1.0], [9.0]])
    >>> kernel.compute_embedding_indices(offsets).flatten()
    tensor([0, 1, 2, 3, 4])

    Args:
        embedding: w with entry k + Δ for an offset of Δ cells, shape (axes, 2k + 1, d), with k ≥ 1.
        unit: Width of a cell > 0 in physical units. Offsets are rounded to whole cells.

    Raises:
        ValueError: If an argument is out of range.
    """

    name = "shaw"
    uses_query = True
    supports_decoding = True
    requires_unit_steps = True
    example_sizes: ClassVar[dict[str, int]] = {"entries": 5}

    embedding: Float[Tensor, "axes entries dim"]
    unit: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        num_entries = self.embedding.shape[1]
        if num_entries < 3 or num_entries % 2 == 0:
            raise wrong_shape(
                "embedding", self.embedding.shape, "(axes, 2 max_distance + 1 ≥ 3, dim)"
            )
        if not is_positive(self.unit):
            raise wrong_value("unit", self.unit, POSITIVE_NUMBER)

    @classmethod
    def with_initial_parameters(
        cls, *, num_axes: int, dim_head: int, max_distance: int = MAX_DISTANCE
    ) -> "Shaw":
        """Create relative position embeddings of 0, which all heads share."""
        sizes = {"num_axes": num_axes, "dim_head": dim_head, "max_distance": max_distance}
        check_tensor_sizes(sizes)
        return cls(torch.zeros(num_axes, 2 * max_distance + 1, dim_head))

    @property
    def max_distance(self) -> int:
        """Return k, the offset in cells at which offsets are clipped."""
        return self.embedding.shape[1] // 2

    def log_entries(
        self, query: Queries, *, scale: float
    ) -> Float[Tensor, "batch heads queries axes entries"]:
        """Return the log of the weight that each query gives to every offset along each axis."""
        return scale * torch.einsum("bhqd,aed->bhqae", query, self.embedding.to(query))

    def compute_embedding_indices(
        self, offsets: Float[Tensor, "*pairs axes"]
    ) -> Int[Tensor, "*pairs axes"]:
        """Return the index of the embedding that belongs to each offset, for every axis."""
        steps = round_to_steps(offsets, self.unit)
        return (steps.clamp(-self.max_distance, self.max_distance) + self.max_distance).long()

    def log_weights(self, query: Queries, offsets: Offsets, *, scale: float) -> LogRelative:
        entries = self.compute_embedding_indices(offsets)
        entries = entries[:, None] if entries.ndim == 4 else entries
        axes = zip(self.log_entries(query, scale=scale).unbind(-2), entries.unbind(-1), strict=True)
        terms = [
            log_axis.gather(-1, entry.expand(*log_axis.shape[:-1], -1)) for log_axis, entry in axes
        ]
        return sum(terms[1:], terms[0])

    def num_weight_matrix_passes(self, num_axes: int) -> int:
        # The entry of an offset and a table lookup for each axis.
        return 3 + 10 * num_axes

    def make_flex_attention_lookup(
        self, query: Queries, offsets: OffsetVectors, index: OffsetIndex, *, scale: float
    ) -> PairFunction:
        # One more entry, whose log c is 0, is for pairs with a prefix token.
        entries = pad(
            self.compute_embedding_indices(offsets).int().T, (0, 1), value=self.embedding.shape[1]
        )
        log_entries = pad(self.log_entries(query, scale=scale), (0, 1))
        axes = list(zip(log_entries.unbind(-2), entries, strict=True))
        zero = query.new_zeros(())
        return lambda b, h, i, j: sum(
            (log_axis[b, h, i, entry[index(i, j)]] for log_axis, entry in axes), zero
        )

    def estimate_costs(self, sizes: AttentionSizes, positions: Positions) -> dict[str, Cost]:
        grid = positions.shared_grid
        if (
            grid is None
            or grid.num_axes > 1
            or grid.periodic[0]
            or not has_spacing(grid, self.unit)
        ):
            return {}
        cost = signed_offset_cost(
            grid.num_tokens, sizes.num_features, sizes.dim_value, self.max_distance
        )
        return {"rings": cost}

    def weighted_sums(
        self, backend: str, tokens: LinearAttentionInputs, positions: Positions
    ) -> WeightedSums:
        grid = positions.shared_grid
        assert grid is not None
        if tokens.is_causal:
            return causal_ring_attention_sums(
                self._log_weights_of_earlier_keys(tokens), tokens, grid
            )
        log_entries = self.log_entries(tokens.query, scale=tokens.scale)
        return signed_offset_attention_sums(log_entries[..., 0, :], tokens, grid)

    def decode_step(
        self, tokens: LinearAttentionInputs, state: DecodingState | None, positions: Positions
    ) -> tuple[WeightedSums, DecodingState]:
        return decode_with_rings(self._log_weights_of_earlier_keys(tokens), tokens, state)

    def _log_weights_of_earlier_keys(
        self, tokens: LinearAttentionInputs
    ) -> Float[Tensor, "batch heads queries rings"]:
        """Return the log weights that each query gives to keys 0, 1, …, k tokens before it.

        All keys that are k tokens or more before the query share the last weight.
        """
        return self.log_entries(tokens.query, scale=tokens.scale)[..., 0, self.max_distance :]


@dataclass(frozen=True)
class TransformerXLBias(PositiveRelativeKernel):
    """The position bias of Transformer-XL: sinusoids of the offset, weighted by the query.

    The bias of the attention score is

        log c(Δ; q) = scale · Σ_{a, s} [α_as(q) cos(ω_sa Δ_a) + β_as(q) sin(ω_sa Δ_a)].

    Here Δ_a is the offset of query and key along axis a, and ω_sa are frequencies. The weights are
    a learned linear function of the query, [α, β] = W q + b. Softmax attention needs no matrix of
    all pairs, because log c is an inner product of a vector of the query and a vector of the key.
    Other content kernels evaluate every pair. Along periodic axes, frequencies are rounded so that
    the sinusoids repeat with the period.

    With b = W v the weights are the content–position and the position–position terms of the paper,
    (q + v)ᵀW'r_Δ with sinusoids r_Δ. The term uᵀk of the paper is a bias u of the queries in qᵀk.
    With the frequencies of `SinusoidalBias` the kernel is strategy 1 of Horn et al. 2021 with
    weights that depend on the query.

    Source: Dai et al. 2019, §3.3; Cordonnier et al. 2020, equation 8, for two axes.

    >>> import math, torch
    >>> from teka.functional import TransformerXLBias
    >>> weight = torch.tensor([[[[0.0]], [[1.0]]]])  # α = 0 and β = q
    >>> kernel = TransformerXLBias(torch.tensor([[math.pi / 2]]), weight, bias=torch.zeros(1, 2, 1))
    >>> query = torch.tensor([[[[1.0], [-1.0]]]])
    >>> offsets = torch.tensor([[[1.0], [-1.0]]]).expand(2, 2, 1)
    >>> kernel.log_weights(query, offsets, scale=1.0)
    tensor([[[[ 1., -1.],
              [-1.,  1.]]]])

    Args:
        frequency: ω in radians per unit of length, shape (scales, axes).
        query_weight: W, shape (heads, 2 · scales, axes, d). The rows of α come before those of β.
        bias: b, shape (heads, 2 · scales, axes).

    Raises:
        ValueError: `bias` does not fit the frequencies.
    """

    name = "transformer_xl"
    uses_query = True
    fixed_tensors = ("frequency",)
    example_sizes: ClassVar[dict[str, int]] = {"scales": 3, "weights": 6}

    frequency: Float[Tensor, "scales axes"]
    query_weight: Float[Tensor, "heads weights axes dim"]
    bias: Float[Tensor, "heads weights axes"]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_tensor("bias", self.bias, "heads", 2 * self.frequency.shape[0], "axes")

    @classmethod
    def with_initial_parameters(
        cls, *, num_axes: int, heads: int, dim_head: int, frequency: Tensor | None = None
    ) -> "TransformerXLBias":
        """Create the position bias of Transformer-XL with random weights for the start of training.

        The weights are initialized as in `torch.nn.Linear`. The bias b is 0, and the frequencies of
        the sinusoids are fixed.

        Args:
            num_axes: Number of axes of the grid.
            heads: Number of heads.
            dim_head: Size of queries.
            frequency: ω of all axes, shape (scales,), by default 10000^(−s/4) for s = 0, …, 3. With
                8^(−s/2) the kernel is strategy 1 of Horn et al. 2021 with weights that depend on
                the query.
        """
        check_tensor_sizes({"num_axes": num_axes, "heads": heads, "dim_head": dim_head})
        if frequency is None:
            frequency = WAVE_BASE ** -(torch.arange(NUM_FREQUENCIES) / NUM_FREQUENCIES)
        check_tensor("frequency", frequency, "scales")
        shape = (heads, 2 * len(frequency), num_axes)
        limit = dim_head**-0.5
        weight = torch.nn.init.uniform_(torch.empty(*shape, dim_head), -limit, limit)
        frequency = frequency.detach()[:, None].repeat(1, num_axes)
        return cls(frequency, weight, torch.zeros(shape))

    @classmethod
    def make_random_example(cls, generator: Generator, **sizes: Any) -> "TransformerXLBias":
        """Create a position bias with random weights and the frequencies 1, 1/4 and 1/16."""
        frequency = 4.0 ** -torch.arange(3, dtype=torch.float64)[:, None]
        kernel = super().make_random_example(generator, **sizes)
        return replace(kernel, frequency=frequency.repeat(1, sizes["num_axes"]))

    def adapt_to_positions(self, positions: Positions) -> "TransformerXLBias":
        return replace(self, frequency=positions.round_frequency_to_periods(self.frequency))

    def sinusoid_amplitudes(self, query: Queries, *, scale: float) -> tuple[Tensor, Tensor]:
        """Return the amplitudes of the sinusoids in the position bias, which depend on the query.

        The first result contains the amplitudes of the cosines, and the second those of the sines.
        Both have the shape (batch, heads, queries, scales · axes).
        """
        weights = torch.einsum("bhqd,hwad->bhqwa", query, self.query_weight.to(query))
        weights = scale * (weights + self.bias.to(query)[:, None])
        cosine, sine = weights.flatten(-2).chunk(2, dim=-1)
        return cosine, sine

    def log_weights(self, query: Queries, offsets: Offsets, *, scale: float) -> LogRelative:
        angle = self._sinusoid_phases(offsets)
        angle = angle[:, None] if angle.ndim == 4 else angle
        cosine, sine = self.sinusoid_amplitudes(query, scale=scale)
        waves = torch.cos(angle) @ cosine[..., None] + torch.sin(angle) @ sine[..., None]
        return waves[..., 0]

    def _sinusoid_phases(
        self, offsets: Float[Tensor, "*pairs axes"]
    ) -> Float[Tensor, "*pairs waves"]:
        return (offsets[..., None, :] * self.frequency.to(offsets)).flatten(-2)

    def num_weight_matrix_passes(self, num_axes: int) -> int:
        # A sine and a cosine of each scale and axis.
        return 3 + 34 * self.frequency.shape[0] * num_axes

    def make_flex_attention_lookup(
        self, query: Queries, offsets: OffsetVectors, index: OffsetIndex, *, scale: float
    ) -> PairFunction:
        angle = self._sinusoid_phases(offsets)
        amplitudes = torch.cat(self.sinusoid_amplitudes(query, scale=scale), dim=-1)
        waves = pad(torch.cat([torch.cos(angle), torch.sin(angle)], dim=-1), (0, 0, 0, 1))
        # One tensor for each wave, because gradients reach a table only if it is read at one place.
        columns = [
            [column.contiguous() for column in table.unbind(-1)] for table in (amplitudes, waves)
        ]
        pairs = list(zip(*columns, strict=True))
        zero = query.new_zeros(())
        return lambda b, h, i, j: sum(
            (amplitude[b, h, i] * wave[index(i, j)] for amplitude, wave in pairs), zero
        )

    def num_appended_entries(self, positions: Positions) -> int:
        return 2 * self.frequency.numel()

    def convert_to_softmax_vectors(
        self, query: Queries, key: Keys, positions: Positions, *, scale: float
    ) -> VectorPair:
        """Append sinusoids of the positions to queries and keys, for softmax attention.

        The inner product of the longer vectors is scale · qᵀk plus the position bias. For a query
        at the position x and a key at y, the vectors are

            [scale · q, α cos ωx + β sin ωx, α sin ωx − β cos ωx],
            [k, cos ωy, sin ωy],

        with the frequencies ω and the amplitudes α and β, which depend on the query.
        """
        scales, num_axes = self.frequency.shape
        frequency = torch.diag_embed(self.frequency).reshape(1, scales * num_axes, num_axes)
        query_angle, key_angle = positions.compute_sinusoid_phases(frequency, query)
        tokens = query[:, :, positions.num_prefix_tokens :]
        alpha, beta = self.sinusoid_amplitudes(tokens, scale=scale)
        cosine, sine = torch.cos(query_angle), torch.sin(query_angle)
        query_waves = torch.cat([alpha * cosine + beta * sine, alpha * sine - beta * cosine], -1)
        key_waves = torch.cat([torch.cos(key_angle), torch.sin(key_angle)], dim=-1)
        query = append_position_features(scale * query, query_waves, positions)
        return query, append_position_features(key, key_waves, positions)
