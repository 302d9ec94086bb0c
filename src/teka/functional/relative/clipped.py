"""Attention weights that depend on the query and on the clipped distance of the key.

This is strategy 2 of Horn et al. 2021. One class computes the weights exactly, and another class
estimates them by random features.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor
from torch.nn.functional import pad

from teka.checks import POSITIVE_NUMBER, check_sizes, check_tensor, check_tensor_sizes, is_positive
from teka.errors import wrong_shape, wrong_value
from teka.functional.backends.attention_sums import (
    AttentionFeatures,
    LinearAttentionInputs,
    WeightedSums,
)
from teka.functional.backends.costs import AttentionSizes, Cost, rings_cost
from teka.functional.backends.linear import DecodingState, LinearState
from teka.functional.backends.rings import causal_ring_attention_sums, ring_attention_sums
from teka.functional.kernels.content_kernel import LOWEST_EXPONENT
from teka.functional.kernels.random_features import PositiveFeatures
from teka.functional.kernels.random_projection import default_num_features, draw_projection
from teka.functional.positions import Positions, round_to_steps
from teka.functional.relative.relative_kernel import (
    OffsetIndex,
    PositiveRelativeKernel,
    has_spacing,
)
from teka.functional.shapes import LogRelative, Offsets, OffsetVectors, PairFunction, Queries
from teka.grid import Grid

# Horn et al. 2021, §3.
MAX_DISTANCE = 6


@dataclass(frozen=True)
class ClippedDistanceBias(PositiveRelativeKernel):
    """An attention weight that depends on the query and on the clipped distance of the key.

        c = exp(scale · qᵀw_r),   r = min(‖Δ‖₁ / ring_width, k)

    Here q is the query, and w_r is a learned embedding of the distance r. The distance is the
    Manhattan distance ‖Δ‖₁ of query and key, in ring widths and rounded to an integer. Distances
    above the maximum k are clipped.

    All keys at one distance form a ring around the query. A sum over keys is a weighted sum of k +
    1 sums over rings, so attention with L tokens takes O(L · k) operations.

    Source: Horn et al. 2021, §2.3 (strategy 2), after Shaw et al. 2018. The paper does not state
    the range of the embeddings w_0 to w_k, the Manhattan distance and the denominator.

    >>> import torch
    >>> from teka.functional import ClippedDistanceBias
    >>> kernel = ClippedDistanceBias(torch.zeros(4, 8))  # k = 3
    >>> kernel.compute_ring_indices(torch.tensor([[0.0, 0.0], [1.0, -1.0], [-2.0, 7.0]]))
    tensor([0, 2, 3])

    Args:
        distance_embedding: w_0 … w_k, shape (k + 1, d), with k ≥ 1.
        ring_width: Distance of neighboring rings > 0, in physical units.

    Raises:
        ValueError: If an argument is out of range.
    """

    name = "clipped"
    uses_query = True
    supports_decoding = True
    requires_unit_steps = True
    has_position_heads = True
    example_sizes: ClassVar[dict[str, int]] = {"rings": MAX_DISTANCE + 1}

    distance_embedding: Float[Tensor, "rings dim"]
    ring_width: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.distance_embedding.shape[0] < 2:
            expected = "(k + 1, dim) with k of at least 1"
            raise wrong_shape("distance_embedding", self.distance_embedding.shape, expected)
        if not is_positive(self.ring_width):
            raise wrong_value("ring_width", self.ring_width, POSITIVE_NUMBER)

    @classmethod
    def with_initial_parameters(
        cls, *, dim_head: int, max_distance: int = MAX_DISTANCE, ring_width: float = 1.0
    ) -> "ClippedDistanceBias":
        """Create the kernel with distance embeddings of 0, for which all weights are 1."""
        check_tensor_sizes({"dim_head": dim_head, "max_distance": max_distance})
        return cls(torch.zeros(max_distance + 1, dim_head), ring_width)

    @property
    def max_distance(self) -> int:
        """Maximum distance k, in units of `ring_width`, to which larger distances are clipped."""
        return self.distance_embedding.shape[0] - 1

    def can_use_rings(self, grid: Grid) -> bool:
        """Return True if the backend "rings" can compute attention on a grid of tokens.

        This backend first sums all keys at equal distance from a query. Neighboring tokens must be
        one `ring_width` apart. A periodic axis must have more than 2 · (max_distance − 1) tokens.
        """
        axes = zip(grid.shape, grid.periodic, strict=True)
        is_wide = all(
            2 * (self.max_distance - 1) < side for side, is_periodic in axes if is_periodic
        )
        return is_wide and has_spacing(grid, self.ring_width)

    def compute_ring_indices(self, offsets: Float[Tensor, "*batch axes"]) -> Int[Tensor, "*batch"]:
        """Return the ring of each offset: its distance in ring widths, rounded and clipped to k."""
        distance = round_to_steps(offsets.abs().sum(dim=-1), self.ring_width)
        return distance.clamp_max(self.max_distance).long()

    def log_rings(
        self, query: Queries, *, scale: float
    ) -> Float[Tensor, "batch heads queries rings"]:
        """Return the log of the weight that each query gives to the keys in each ring around it."""
        return scale * (query @ self.distance_embedding.to(query).T)

    def log_weights(self, query: Queries, offsets: Offsets, *, scale: float) -> LogRelative:
        log_rings = self.log_rings(query, scale=scale)
        ring = self.compute_ring_indices(offsets)
        ring = ring[:, None] if ring.ndim == 3 else ring
        return log_rings.gather(-1, ring.expand(*log_rings.shape[:-1], ring.shape[-1]))

    def num_weight_matrix_passes(self, num_axes: int) -> int:
        # The ring of an offset, and a table lookup.
        return 8 + 6 * num_axes

    def make_flex_attention_lookup(
        self, query: Queries, offsets: OffsetVectors, index: OffsetIndex, *, scale: float
    ) -> PairFunction:
        ring = pad(self.compute_ring_indices(offsets).int(), (0, 1), value=self.max_distance + 1)
        log_rings = pad(self.log_rings(query, scale=scale), (0, 1))
        return lambda b, h, i, j: log_rings[b, h, i, ring[index(i, j)]]

    def estimate_costs(self, sizes: AttentionSizes, positions: Positions) -> dict[str, Cost]:
        grid = positions.shared_grid
        if grid is None or not self.can_use_rings(grid):
            return {}
        if sizes.is_causal and (grid.num_axes > 1 or grid.periodic[0]):
            return {}
        return {"rings": rings_cost(grid, sizes.num_features, sizes.dim_value, self.max_distance)}

    def weighted_sums(
        self, backend: str, tokens: LinearAttentionInputs, positions: Positions
    ) -> WeightedSums:
        grid = positions.shared_grid
        assert grid is not None
        log_rings = self.log_rings(tokens.query, scale=tokens.scale)
        return (causal_ring_attention_sums if tokens.is_causal else ring_attention_sums)(
            log_rings, tokens, grid
        )

    def decode_step(
        self, tokens: LinearAttentionInputs, state: DecodingState | None, positions: Positions
    ) -> tuple[WeightedSums, DecodingState]:
        return decode_with_rings(self.log_rings(tokens.query, scale=tokens.scale), tokens, state)


def decode_with_rings(
    log_rings: Float[Tensor, "batch heads 1 rings"],
    tokens: LinearAttentionInputs,
    state: DecodingState | None,
) -> tuple[WeightedSums, DecodingState]:
    """Compute causal attention for the next token, if weights depend on the clipped distance.

    The recurrent state stores the features and values of the last k tokens, because the weights of
    these tokens depend on their distance. All older tokens have the maximum distance k and are
    stored as one sum.

    Returns:
        The weighted sums over all keys so far for the query of the new token, and the new state.
    """
    key_features, log_scale, value = tokens.key_features, tokens.log_scale, tokens.value
    log_scale = torch.zeros_like(value[..., 0]) if log_scale is None else log_scale
    new = LinearState.from_keys(AttentionFeatures(key_features), value, log_scale)
    distant = new.empty_copy()
    recent = [(key_features, log_scale, value)]
    if state is not None:
        state.check_compatible(new)
        distant = state.sums
        recent.extend(state.recent)
    if len(recent) > log_rings.shape[-1] - 1:
        oldest_features, oldest_scale, oldest_value = recent.pop()
        oldest = AttentionFeatures(oldest_features)
        distant = distant + LinearState.from_keys(oldest, oldest_value, oldest_scale)
    sums = distant.weighted_sums(AttentionFeatures(tokens.query_features))
    assert sums.log_peak is not None
    log_factors = [sums.log_peak + log_rings[..., -1]]
    for distance, (_, scale, _) in enumerate(recent):
        log_factors.append(log_rings[..., distance] + scale)
    stacked = torch.stack(log_factors)
    peak = stacked.amax(dim=0).detach()
    distant_factor, *factors = torch.exp(stacked - peak)
    numerator = distant_factor[..., None] * sums.numerator
    denominator = distant_factor * sums.denominator
    for factor, (features, _, values) in zip(factors, recent, strict=True):
        weight = factor * (tokens.query_features * features).sum(dim=-1)
        numerator = numerator + weight[..., None] * values
        denominator = denominator + weight
    new_state = DecodingState(0, distant, recent=tuple(recent))
    return WeightedSums(numerator, denominator, peak), new_state


@dataclass(frozen=True)
class ClippedDistanceFeatures(ClippedDistanceBias):
    """An estimate of `ClippedDistanceBias` by random features, as in Horn et al. 2021.

    The exact weight, exp(scale · qᵀw_r), depends on the query q and on an embedding w_r of the
    clipped distance r. This class estimates the weight by the inner product of positive random
    features of q and of w_r. It costs more than the exact weight. Shifting all positions does not
    change the estimate.

    Source: Horn et al. 2021, §2.3 (strategy 2). The denominator is from this library.

    >>> import torch, teka
    >>> embedding, projection = torch.randn(3, 4), torch.randn(2, 4)
    >>> relative = teka.functional.ClippedDistanceFeatures(embedding, projection=projection)
    >>> options = {"kernel": "relu", "relative": relative, "grid": teka.Grid(8, periodic=True)}
    >>> tokens = torch.randn(3, 1, 2, 8, 4)  # queries, keys and values
    >>> output = teka.functional.attention(*tokens, **options)
    >>> shifted_output = teka.functional.attention(*tokens.roll(3, dims=3), **options)
    >>> torch.allclose(shifted_output, output.roll(3, dims=2), atol=1e-5)
    True

    Args:
        distance_embedding: As for `ClippedDistanceBias`.
        ring_width: As for `ClippedDistanceBias`.
        projection: Draws of the random features, shape (m, d).

    Raises:
        ValueError: The projection and the embeddings of distances have different sizes.
    """

    name = "clipped_features"

    projection: Float[Tensor, "features dim"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_tensor("projection", self.projection, "features", self.distance_embedding.shape[-1])

    @classmethod
    def with_initial_parameters(
        cls,
        *,
        dim_head: int,
        max_distance: int = MAX_DISTANCE,
        ring_width: float = 1.0,
        num_features: int | None = None,
    ) -> "ClippedDistanceFeatures":
        """Create the kernel with distance embeddings of 0, and space for a random projection.

        The projection is 0 until `teka.nn.RandomFeatures` draws it. For queries of size d, the
        default number of random features is ⌊d ln d⌋.
        """
        check_tensor_sizes({"dim_head": dim_head, "max_distance": max_distance})
        check_sizes({"num_features": num_features}, or_none=True)
        num_features = default_num_features(dim_head) if num_features is None else num_features
        embedding = torch.zeros(max_distance + 1, dim_head)
        return cls(embedding, ring_width, torch.zeros(num_features, dim_head))

    @classmethod
    def make_random_example(
        cls, generator: Generator, *, dim: int, **sizes: Any
    ) -> "ClippedDistanceFeatures":
        """Create the kernel with random distance embeddings and an orthogonal random projection."""
        embedding = torch.randn(MAX_DISTANCE + 1, dim, generator=generator, dtype=torch.float64)
        projection = draw_projection(default_num_features(dim), dim, generator=generator)
        return cls(embedding, projection=projection)

    def log_rings(
        self, query: Queries, *, scale: float
    ) -> Float[Tensor, "batch heads queries rings"]:
        assert self.projection is not None
        kernel = PositiveFeatures(self.projection)
        query_exponent = kernel.query_exponent(query, scale=scale)
        embedding = self.distance_embedding.to(query)[None, None]
        ring_exponent = kernel.key_exponent(embedding, scale=scale)
        query_peak = query_exponent.amax(dim=-1, keepdim=True).detach()
        ring_peak = ring_exponent.amax(dim=(-2, -1), keepdim=True).detach()
        query_features = torch.exp((query_exponent - query_peak).clamp_min(LOWEST_EXPONENT))
        ring_features = torch.exp((ring_exponent - ring_peak).clamp_min(LOWEST_EXPONENT))
        mean = query_features @ ring_features.mT / self.projection.shape[0]
        return torch.log(mean) + query_peak + ring_peak
