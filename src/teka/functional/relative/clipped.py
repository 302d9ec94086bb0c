"""The clipped kernel (strategy 2), exactly and in the paper's form: c depends on the ring in which a key lies."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor
from torch.nn.functional import pad

from teka.checks import POSITIVE_NUMBER, check_sizes, check_tensor, check_tensor_sizes, is_positive
from teka.errors import wrong_shape, wrong_value
from teka.functional.backends import Cost, FeatureInputs, WeightedSums, with_ones
from teka.functional.backends.flex import offset_numbers
from teka.functional.backends.linear import DecodingState, Sizes, causal_rings, causal_step, left_by
from teka.functional.backends.rings import rings, rings_cost
from teka.functional.kernels.base import LOWEST_EXPONENT, Kernel
from teka.functional.kernels.projection import default_num_features, draw_projection
from teka.functional.kernels.random import Positive
from teka.functional.positions import Positions, whole_steps
from teka.functional.relative.base import FactorRelative
from teka.functional.shapes import LogRelative, Offsets, PairFunction, Queries
from teka.grid import Grid

MAX_DISTANCE = 6  # Horn et al. 2021, §3


class RingRelative(FactorRelative):
    """A relative kernel that sees of an offset only its ring r = 0 … k."""

    supports_decoding: ClassVar[bool] = True
    requires_unit_steps: ClassVar[bool] = True

    @property
    @abstractmethod
    def max_distance(self) -> int:
        """The last ring k, which holds everything at least as far."""

    @abstractmethod
    def rings_fit(self, grid: Grid) -> bool:
        """Whether ring r of this kernel is the cells r steps away on the grid, each once."""

    @abstractmethod
    def ring(self, offsets: Float[Tensor, "*batch axes"]) -> Int[Tensor, "*batch"]:
        """The ring of every offset."""

    @abstractmethod
    def log_rings(
        self, query: Queries, *, scale: float
    ) -> Float[Tensor, "batch heads queries rings"]:
        """log c of every ring for every query."""

    def log_kernel(self, query: Queries, offsets: Offsets, *, scale: float) -> LogRelative:
        log_rings = self.log_rings(query, scale=scale)
        ring = self.ring(offsets)
        ring = ring[:, None] if ring.ndim == 3 else ring
        return log_rings.gather(-1, ring.expand(*log_rings.shape[:-1], ring.shape[-1]))

    def pair_passes(self, num_axes: int) -> int:
        """A ring for every offset, and a look into a table."""
        return 5 + 6 * num_axes

    def pair_term(
        self, query: Queries, positions: Positions, *, scale: float
    ) -> PairFunction | None:
        """From a table of the ring of every offset of the lattice into the rings of every query."""
        numbers = offset_numbers(positions, query)
        if numbers is None:
            return None
        offsets, query_code, key_code = numbers
        last, ring = (
            len(offsets),
            pad(self.ring(offsets).int(), (0, 1), value=self.max_distance + 1),
        )
        log_rings = pad(self.log_rings(query, scale=scale), (0, 1))
        return lambda b, h, i, j: log_rings[
            b, h, i, ring[torch.clamp_max(query_code[i] - key_code[j], last)]
        ]

    def costs(self, sizes: Sizes, positions: Positions) -> dict[str, Cost]:
        """Of ring sums on one grid; causally, on a line whose keys follow one another."""
        grid = positions.shared_grid
        if grid is None or not self.rings_fit(grid):
            return {}
        if sizes.is_causal and (grid.num_axes > 1 or grid.periodic[0]):
            return {}
        return {"rings": rings_cost(grid, sizes.num_features, sizes.dim_value, self.max_distance)}

    def sums(self, backend: str, tokens: FeatureInputs, positions: Positions) -> WeightedSums:
        grid = positions.shared_grid
        assert grid is not None
        log_rings = self.log_rings(tokens.query, scale=tokens.scale)
        return (causal_rings if tokens.is_causal else rings)(log_rings, tokens, grid)

    def step(
        self, tokens: FeatureInputs, state: DecodingState | None, positions: Positions
    ) -> tuple[WeightedSums, DecodingState]:
        return ring_step(self.log_rings(tokens.query, scale=tokens.scale), tokens, state)


def ring_step(
    log_rings: Float[Tensor, "batch heads 1 rings"],
    tokens: FeatureInputs,
    state: DecodingState | None,
) -> tuple[WeightedSums, DecodingState]:
    """The sums of one more token, whose rings are of 0, 1, … and at least k tokens before it, and what it leaves."""
    value = with_ones(tokens.value)
    total = left_by(state, "total", tokens.key_features, tokens.value)
    log_scale = torch.zeros_like(value[..., 0]) if tokens.log_scale is None else tokens.log_scale
    recent = ((tokens.key_features, log_scale, value), *(() if state is None else state.recent))
    if len(recent) > log_rings.shape[-1] - 1:
        *recent, oldest = recent
        _, total = causal_step(oldest[0], *oldest, total)
    log_factors = [log_rings[..., distance] + one[1] for distance, one in enumerate(recent)]
    log_factors.append(log_rings[..., -1] + total.log_peak[..., None])
    peak = torch.stack(log_factors).amax(dim=0).detach()
    sums = torch.exp(log_factors[-1] - peak)[..., None] * (tokens.query_features @ total.total)
    for log_factor, (features, _, values) in zip(log_factors[:-1], recent, strict=True):
        weight = torch.exp(log_factor - peak) * (tokens.query_features * features).sum(dim=-1)
        sums = sums + weight[..., None] * values
    return WeightedSums.of_channels(sums), DecodingState(0, total, recent=tuple(recent))


@dataclass(frozen=True)
class Clipped(RingRelative):
    """c(Δ; q) = exp(scale · qᵀw_r) with the ring r = min(‖Δ‖₁ / ring_width, k), rounded to a whole number.

    A sum over keys is a weighted sum of k + 1 ring sums: O(L · k). Source: Horn et al. 2021, §2.3 (strategy 2), after
    Shaw et al. 2018; with w_0 … w_k, the Manhattan distance and the denominator, which the paper's text leaves out.

    >>> import torch
    >>> from teka.functional import Clipped
    >>> kernel = Clipped(torch.zeros(4, 8))  # k = 3
    >>> kernel.ring(torch.tensor([[0.0, 0.0], [1.0, -1.0], [-2.0, 7.0]]))
    tensor([0, 2, 3])

    Args:
        distance_embedding: w_0 … w_k, shape (k + 1, d), at least two.
        ring_width: Distance between neighbouring rings in physical units, above 0; else a ValueError.
    """

    name: ClassVar[str] = "clipped"
    has_position_heads: ClassVar[bool] = True
    uses_query: ClassVar[bool] = True
    shared_by_heads: ClassVar[tuple[str, ...]] = ("distance_embedding", "projection")

    distance_embedding: Float[Tensor, "rings dim"]
    ring_width: float = 1.0

    def __post_init__(self) -> None:
        check_tensor("distance_embedding", self.distance_embedding, "k + 1", "dim")
        if self.distance_embedding.shape[0] < 2:
            raise wrong_shape(
                "distance_embedding",
                self.distance_embedding.shape,
                "(k + 1, dim) with k of at least 1",
            )
        if not is_positive(self.ring_width):
            raise wrong_value("ring_width", self.ring_width, POSITIVE_NUMBER)

    @classmethod
    def initial(
        cls, *, dim_head: int, max_distance: int = MAX_DISTANCE, ring_width: float = 1.0
    ) -> "Clipped":
        """Embeddings of 0."""
        check_tensor_sizes({"dim_head": dim_head, "max_distance": max_distance})
        return cls(torch.zeros(max_distance + 1, dim_head), ring_width)

    @classmethod
    def draw(
        cls, generator: Generator, *, heads: int, dim: int, num_axes: int, kernel: str | Kernel
    ) -> "Clipped":
        """Embeddings ~ N(0, 1) up to the paper's distance."""
        return cls(torch.randn(MAX_DISTANCE + 1, dim, generator=generator, dtype=torch.float64))

    @property
    def max_distance(self) -> int:
        return self.distance_embedding.shape[0] - 1

    def check(self, *, heads: int, dim: int, num_axes: int, kernel: Kernel) -> None:
        if self.distance_embedding.shape[-1] != dim:
            expected = f"({self.max_distance + 1}, {dim}) for queries of size {dim}"
            raise wrong_shape(
                "relative.distance_embedding", self.distance_embedding.shape, expected
            )

    def rings_fit(self, grid: Grid) -> bool:
        """Whether cells are one ring width apart and no ring below k meets itself round a periodic axis."""
        axes = range(grid.num_axes)
        apart = all(
            abs(grid.spacing[axis] - self.ring_width) < 1e-9 * self.ring_width for axis in axes
        )
        return apart and all(
            2 * (self.max_distance - 1) < grid.shape[axis] for axis in axes if grid.periodic[axis]
        )

    def ring(self, offsets: Float[Tensor, "*batch axes"]) -> Int[Tensor, "*batch"]:
        distance = whole_steps(offsets.abs().sum(dim=-1), self.ring_width)
        return distance.clamp_max(self.max_distance).long()

    def log_rings(
        self, query: Queries, *, scale: float
    ) -> Float[Tensor, "batch heads queries rings"]:
        return scale * (query @ self.distance_embedding.to(query).T)


@dataclass(frozen=True)
class ClippedFeatures(Clipped):
    """c(Δ; q) = φ(q)ᵀφ(w_r), the random-feature estimate of `Clipped`, with positive features of the embeddings.

    It costs more than the exact kernel and errs by the estimator's error, but is equivariant for every draw. Kept for
    parity with the paper, with its missing denominator. Source: Horn et al. 2021, §2.3 (strategy 2).

    >>> import torch, teka
    >>> few = teka.functional.ClippedFeatures(torch.randn(3, 4), projection=torch.randn(2, 4))
    >>> options = {"kernel": "relu", "relative": few, "grid": teka.Grid(8, periodic=True)}
    >>> tokens = torch.randn(3, 1, 2, 8, 4)  # queries, keys and values
    >>> moved = teka.functional.attention(*tokens.roll(3, dims=3), **options)
    >>> torch.allclose(moved, teka.functional.attention(*tokens, **options).roll(3, dims=2), atol=1e-5)
    True

    Args:
        distance_embedding: As for `Clipped`, and so is ring_width.
        projection: Draws of the random features, shape (m, d).
    """

    name: ClassVar[str] = "clipped_features"

    projection: Float[Tensor, "features dim"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_tensor("projection", self.projection, "features", self.distance_embedding.shape[-1])

    @classmethod
    def initial(
        cls,
        *,
        dim_head: int,
        max_distance: int = MAX_DISTANCE,
        ring_width: float = 1.0,
        num_features: int | None = None,
    ) -> "ClippedFeatures":
        """Embeddings of 0, and a projection that `teka.nn.RandomFeatures` draws; ⌊d ln d⌋ features by default."""
        check_tensor_sizes({"dim_head": dim_head, "max_distance": max_distance})
        check_sizes({"num_features": num_features}, or_none=True)
        num_features = default_num_features(dim_head) if num_features is None else num_features
        embedding = torch.zeros(max_distance + 1, dim_head)
        return cls(embedding, ring_width, torch.zeros(num_features, dim_head))

    @classmethod
    def draw(
        cls, generator: Generator, *, heads: int, dim: int, num_axes: int, kernel: str | Kernel
    ) -> "Clipped":
        """Embeddings ~ N(0, 1) up to the paper's distance, and an orthogonal projection."""
        embedding = torch.randn(MAX_DISTANCE + 1, dim, generator=generator, dtype=torch.float64)
        return cls(
            embedding,
            projection=draw_projection(default_num_features(dim), dim, generator=generator),
        )

    def log_rings(
        self, query: Queries, *, scale: float
    ) -> Float[Tensor, "batch heads queries rings"]:
        assert self.projection is not None
        features = Positive(self.projection)
        query_exponent = features.query_exponent(query, scale=scale)
        ring_exponent = features.key_exponent(
            self.distance_embedding.to(query)[None, None], scale=scale
        )
        query_peak = query_exponent.amax(dim=-1, keepdim=True)
        ring_peak = ring_exponent.amax(dim=(-2, -1), keepdim=True)
        query_features = torch.exp((query_exponent - query_peak).clamp_min(LOWEST_EXPONENT))
        ring_features = torch.exp((ring_exponent - ring_peak).clamp_min(LOWEST_EXPONENT))
        mean = query_features @ ring_features.transpose(-2, -1) / self.projection.shape[0]
        return torch.log(mean) + query_peak + ring_peak
