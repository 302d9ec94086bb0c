"""Kernels of the query and of the signed offset: embeddings of clipped offsets, and of their sinusoids."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor
from torch.nn.functional import pad

from teka._compat import replace
from teka.checks import POSITIVE_NUMBER, check_tensor, check_tensor_sizes, is_positive
from teka.errors import wrong_shape, wrong_value
from teka.functional.backends import Cost, FeatureInputs, WeightedSums
from teka.functional.backends.clipped_offsets import bin_sums, bins_cost, line_sums
from teka.functional.backends.flex import offset_numbers
from teka.functional.backends.linear import DecodingState, Sizes, causal_rings
from teka.functional.kernels.base import Kernel
from teka.functional.positions import Positions, check_heads_and_axes, whole_steps, wrong_axes
from teka.functional.relative.base import FactorRelative
from teka.functional.relative.clipped import MAX_DISTANCE, ring_step
from teka.functional.relative.rotation import NUM_FREQUENCIES
from teka.functional.shapes import Keys, LogRelative, Offsets, PairFunction, Queries, VectorPair

WAVE_BASE = 10_000.0  # ratio of the longest wave to the shortest (Vaswani et al. 2017)


@dataclass(frozen=True)
class Shaw(FactorRelative):
    """c(Δ; q) = exp(scale · Σ_a qᵀw_a[clip(Δ_a, −k, k)]), Δ in cells: an embedding of every offset along every axis.

    A sum over keys is one over (2k + 1)ⁿ bins, of a cell each or of all that lies beyond: O(L · (2k + 1)ⁿ). On several
    axes it is strategy 2 of Horn et al. 2021 with signs. Source: Shaw et al. 2018, equations 2 and 4, on one axis and
    without embeddings of values; our offset is query minus key, theirs key minus query.

    >>> import torch
    >>> from teka.functional import Shaw
    >>> kernel = Shaw(torch.randn(1, 5, 8))  # k = 2
    >>> kernel.entry(torch.tensor([[-9.0], [-1.0], [0.0], [1.0], [9.0]])).flatten()
    tensor([0, 1, 2, 3, 4])

    Args:
        embedding: w, entry k + Δ for an offset of Δ cells, shape (axes, 2k + 1, d) with k of at least 1.
        unit: Width of a cell in physical units, above 0; an offset is rounded to a whole number of them.
    """

    name: ClassVar[str] = "shaw"
    uses_query: ClassVar[bool] = True
    shared_by_heads: ClassVar[tuple[str, ...]] = ("embedding",)
    supports_decoding: ClassVar[bool] = True
    requires_unit_steps: ClassVar[bool] = True

    embedding: Float[Tensor, "axes entries dim"]
    unit: float = 1.0

    def __post_init__(self) -> None:
        check_tensor("embedding", self.embedding, "axes", "2 max_distance + 1", "dim")
        entries = self.embedding.shape[1]
        if entries < 3 or entries % 2 == 0:
            expected = "(axes, 2 max_distance + 1, dim) with a max_distance of at least 1"
            raise wrong_shape("embedding", self.embedding.shape, expected)
        if not is_positive(self.unit):
            raise wrong_value("unit", self.unit, POSITIVE_NUMBER)

    @classmethod
    def initial(cls, *, num_axes: int, dim_head: int, max_distance: int = MAX_DISTANCE) -> "Shaw":
        """Embeddings of 0, shared by the heads."""
        sizes = {"num_axes": num_axes, "dim_head": dim_head, "max_distance": max_distance}
        check_tensor_sizes(sizes)
        return cls(torch.zeros(num_axes, 2 * max_distance + 1, dim_head))

    @classmethod
    def draw(
        cls, generator: Generator, *, heads: int, dim: int, num_axes: int, kernel: str | Kernel
    ) -> "Shaw":
        """Embeddings ~ N(0, 1) of up to 2 cells."""
        return cls(torch.randn(num_axes, 5, dim, generator=generator, dtype=torch.float64))

    @property
    def max_distance(self) -> int:
        """The last offset k in cells that has an entry of its own, and stands for all beyond."""
        return self.embedding.shape[1] // 2

    def check(self, *, heads: int, dim: int, num_axes: int, kernel: Kernel) -> None:
        made_for, _, size = self.embedding.shape
        if made_for != num_axes:
            raise wrong_axes("embedding", self.embedding, made_for, num_axes)
        if size != dim:
            expected = f"({num_axes}, entries, {dim}) for queries of size {dim}"
            raise wrong_shape("relative.embedding", self.embedding.shape, expected)

    def log_entries(
        self, query: Queries, *, scale: float
    ) -> Float[Tensor, "batch heads queries axes entries"]:
        """scale · qᵀw of every entry of every axis."""
        return scale * torch.einsum("bhqd,aed->bhqae", query, self.embedding.to(query))

    def entry(self, offsets: Float[Tensor, "*pairs axes"]) -> Int[Tensor, "*pairs axes"]:
        """The entry of every offset along every axis."""
        steps = whole_steps(offsets, self.unit)
        return (steps.clamp(-self.max_distance, self.max_distance) + self.max_distance).long()

    def log_kernel(self, query: Queries, offsets: Offsets, *, scale: float) -> LogRelative:
        entries = self.entry(offsets)
        entries = entries[:, None] if entries.ndim == 4 else entries
        axes = zip(self.log_entries(query, scale=scale).unbind(-2), entries.unbind(-1), strict=True)
        terms = [
            log_axis.gather(-1, entry.expand(*log_axis.shape[:-1], -1)) for log_axis, entry in axes
        ]
        return sum(terms[1:], terms[0])

    def pair_passes(self, num_axes: int) -> int:
        """An entry and a look into a table for every axis."""
        return 10 * num_axes

    def pair_term(
        self, query: Queries, positions: Positions, *, scale: float
    ) -> PairFunction | None:
        """From a table of the entries of every offset of the lattice, of which one more is 0."""
        numbers = offset_numbers(positions, query)
        if numbers is None:
            return None
        offsets, query_code, key_code = numbers
        last, nothing = len(offsets), self.embedding.shape[1]
        entries = pad(self.entry(offsets).int().T, (0, 1), value=nothing)
        axes = list(
            zip(pad(self.log_entries(query, scale=scale), (0, 1)).unbind(-2), entries, strict=True)
        )
        zero = query.new_zeros(())
        return lambda b, h, i, j: sum(
            (
                log_axis[b, h, i, entry[torch.clamp_max(query_code[i] - key_code[j], last)]]
                for log_axis, entry in axes
            ),
            zero,
        )

    def costs(self, sizes: Sizes, positions: Positions) -> dict[str, Cost]:
        """Of sums over bins of one grid whose cells are a unit apart; causally, along a line."""
        grid = positions.shared_grid
        if grid is None or any(abs(step - self.unit) > 1e-9 * self.unit for step in grid.spacing):
            return {}
        if sizes.is_causal and (grid.num_axes > 1 or grid.periodic[0]):
            return {}
        return {"rings": bins_cost(grid, sizes.num_features, sizes.dim_value, self.max_distance)}

    def sums(self, backend: str, tokens: FeatureInputs, positions: Positions) -> WeightedSums:
        grid = positions.shared_grid
        assert grid is not None
        if tokens.is_causal:
            return causal_rings(self._log_past(tokens), tokens, grid)
        log_entries = self.log_entries(tokens.query, scale=tokens.scale)
        if grid.num_axes == 1 and not grid.periodic[0]:
            return line_sums(log_entries[..., 0, :], tokens, grid)
        return bin_sums(log_entries, tokens, grid)

    def step(
        self, tokens: FeatureInputs, state: DecodingState | None, positions: Positions
    ) -> tuple[WeightedSums, DecodingState]:
        return ring_step(self._log_past(tokens), tokens, state)

    def _log_past(self, tokens: FeatureInputs) -> Float[Tensor, "batch heads queries rings"]:
        """log c of 0 … k tokens before the query, which on a line are rings."""
        return self.log_entries(tokens.query, scale=tokens.scale)[..., 0, self.max_distance :]


@dataclass(frozen=True)
class TransformerXL(FactorRelative):
    """log c(Δ; q) = scale · Σ_{a, s} [α_as(q) cos(ω_sa Δ_a) + β_as(q) sin(ω_sa Δ_a)] with [α, β] = W q + b.

    With b = W v it is scale · (q + v)ᵀW'r_Δ with sinusoids r_Δ: the content–position and position–position terms of
    Transformer-XL. The fourth of its terms, uᵀk, is what a bias u of the queries adds to qᵀk. With the frequencies of
    `Rotation` it is strategy 1 of Horn et al. 2021 with weights that depend on the query.

    log c is an inner product, by the sums of angles, so that softmax is fused and holds no matrix; other kernels need
    every pair. On a periodic axis frequencies are rounded to those of the torus.

    Source: Dai et al. 2019, §3.3; Cordonnier et al. 2020, equation 8, on two axes.

    >>> import math, torch
    >>> from teka.functional import TransformerXL
    >>> weight = torch.tensor([[[[0.0]], [[1.0]]]])  # α = 0 and β = q: the query says on which side it looks
    >>> kernel = TransformerXL(torch.tensor([[math.pi / 2]]), weight, bias=torch.zeros(1, 2, 1))
    >>> query, offsets = torch.tensor([[[[1.0], [-1.0]]]]), torch.tensor([[[1.0], [-1.0]]]).expand(2, 2, 1)
    >>> kernel.log_kernel(query, offsets, scale=1.0)
    tensor([[[[ 1., -1.],
              [-1.,  1.]]]])

    Args:
        frequency: ω in radians per unit of length, shape (scales, axes).
        query_weight: W, shape (heads, 2 · scales, axes, d): α's rows and then β's.
        bias: b, shape (heads, 2 · scales, axes).
    """

    name: ClassVar[str] = "transformer_xl"
    uses_query: ClassVar[bool] = True
    fixed_tensors: ClassVar[tuple[str, ...]] = ("frequency",)
    shared_by_heads: ClassVar[tuple[str, ...]] = ("frequency",)

    frequency: Float[Tensor, "scales axes"]
    query_weight: Float[Tensor, "heads weights axes dim"]
    bias: Float[Tensor, "heads weights axes"]

    def __post_init__(self) -> None:
        check_tensor("frequency", self.frequency, "scales", "axes")
        scales, num_axes = self.frequency.shape
        check_tensor("bias", self.bias, "heads", 2 * scales, num_axes)
        check_tensor("query_weight", self.query_weight, *self.bias.shape, "dim")

    @classmethod
    def initial(
        cls, *, num_axes: int, heads: int, dim_head: int, frequency: Tensor | None = None
    ) -> "TransformerXL":
        """W as in `torch.nn.Linear`, b = 0, and fixed frequencies.

        Args:
            num_axes: Number of axes of the grid.
            heads: Number of heads.
            dim_head: Size of queries.
            frequency: ω of all axes, shape (scales,), by default 10000^(−s/4) for s = 0, …, 3. With 8^(−s/2) this is
                strategy 1 of Horn et al. 2021 with weights that depend on the query.
        """
        check_tensor_sizes({"num_axes": num_axes, "heads": heads, "dim_head": dim_head})
        if frequency is None:
            frequency = WAVE_BASE ** -(torch.arange(NUM_FREQUENCIES) / NUM_FREQUENCIES)
        check_tensor("frequency", frequency, "scales")
        shape = (heads, 2 * len(frequency), num_axes)
        largest = dim_head**-0.5
        weight = torch.nn.init.uniform_(torch.empty(*shape, dim_head), -largest, largest)
        frequency = frequency.detach()[:, None].repeat(1, num_axes)
        return cls(frequency, weight, torch.zeros(shape))

    @classmethod
    def draw(
        cls, generator: Generator, *, heads: int, dim: int, num_axes: int, kernel: str | Kernel
    ) -> "TransformerXL":
        """Weights ~ N(0, 1/2), and frequencies of 1, 1/4 and 1/16."""
        frequency = 4.0 ** -torch.arange(3, dtype=torch.float64)[:, None].expand(3, num_axes)
        weight = (
            torch.randn(heads, 6, num_axes, dim + 1, generator=generator, dtype=torch.float64)
            * 0.5**0.5
        )
        return cls(frequency, weight[..., :-1].contiguous(), weight[..., -1].contiguous())

    def check(self, *, heads: int, dim: int, num_axes: int, kernel: Kernel) -> None:
        check_heads_and_axes("bias", self.bias, heads, "weights", num_axes)
        if self.query_weight.shape[-1] != dim:
            expected = f"(…, {dim}) for queries of size {dim}"
            raise wrong_shape("relative.query_weight", self.query_weight.shape, expected)

    def for_positions(self, positions: Positions) -> "TransformerXL":
        return replace(self, frequency=positions.torus_frequency(self.frequency))

    def amplitudes(self, query: Queries, *, scale: float) -> tuple[Tensor, Tensor]:
        """scale · α and scale · β of every query, each (batch, heads, queries, scales, axes)."""
        weights = torch.einsum("bhqd,hwad->bhqwa", query, self.query_weight.to(query))
        cosine, sine = (scale * (weights + self.bias.to(query)[:, None])).chunk(2, dim=-2)
        return cosine, sine

    def log_kernel(self, query: Queries, offsets: Offsets, *, scale: float) -> LogRelative:
        angle = offsets[..., None, :] * self.frequency.to(offsets)
        angle = angle[:, None] if angle.ndim == 5 else angle
        cosine, sine = (one.flatten(-2)[..., None] for one in self.amplitudes(query, scale=scale))
        angle = angle.flatten(-2)
        return (torch.cos(angle) @ cosine + torch.sin(angle) @ sine)[..., 0]

    def pair_passes(self, num_axes: int) -> int:
        """A sine and a cosine of every scale and axis."""
        return 34 * self.frequency.shape[0] * num_axes

    def pair_term(
        self, query: Queries, positions: Positions, *, scale: float
    ) -> PairFunction | None:
        """From a table of every wave at the offsets of the lattice."""
        numbers = offset_numbers(positions, query)
        if numbers is None:
            return None
        offsets, query_code, key_code = numbers
        angle, last = (offsets[:, None] * self.frequency.to(offsets)).flatten(1), len(offsets)
        amplitudes = torch.cat(
            [one.flatten(-2) for one in self.amplitudes(query, scale=scale)], dim=-1
        )
        waves = pad(torch.cat([torch.cos(angle), torch.sin(angle)], dim=-1), (0, 0, 0, 1))
        # A tensor for each wave: gradients reach a table that is read at one place only.
        parts = ([one.contiguous() for one in every.unbind(-1)] for every in (amplitudes, waves))
        pairs, zero = list(zip(*parts, strict=True)), query.new_zeros(())
        return lambda b, h, i, j: sum(
            (
                a[b, h, i] * wave[torch.clamp_max(query_code[i] - key_code[j], last)]
                for a, wave in pairs
            ),
            zero,
        )

    def extra_softmax_dim(self, positions: Positions) -> int:
        return 2 * self.frequency.numel()

    def softmax_vectors(
        self, query: Queries, key: Keys, positions: Positions, *, scale: float
    ) -> VectorPair:
        """[scale · q, α cos ωx + β sin ωx, α sin ωx − β cos ωx] and [k, cos ωy, sin ωy]."""
        scales, num_axes = self.frequency.shape
        waves = torch.diag_embed(self.frequency).reshape(1, scales * num_axes, num_axes)
        here, there = positions.angles(waves, query)
        first = positions.num_prefix_tokens
        cosine, sine = (
            one.flatten(-2) for one in self.amplitudes(query[:, :, first:], scale=scale)
        )
        of_query = [
            cosine * torch.cos(here) + sine * torch.sin(here),
            cosine * torch.sin(here) - sine * torch.cos(here),
        ]
        of_key = torch.cat([torch.cos(there), torch.sin(there)], dim=-1)
        placed = pad(torch.cat(of_query, dim=-1), (0, 0, first, 0)), pad(of_key, (0, 0, first, 0))
        longer = torch.cat([scale * query, placed[0]], dim=-1)
        return longer, torch.cat([key, placed[1].expand(*key.shape[:-1], -1)], dim=-1)
