"""What every relative kernel c(x_i − x_j; q_i) offers: what it is, and how each backend that it has evaluates it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.nn.functional import normalize, pad

from teka.functional.backends import Cost, FeatureInputs, WeightedSums, with_ones
from teka.functional.backends.dense import fused_softmax, matrix_attention
from teka.functional.backends.feature_sums import LinearFeatures, plain_sums
from teka.functional.backends.flex import flex, flex_fits
from teka.functional.backends.linear import DecodingState, Sizes, causal_step, left_by
from teka.functional.backends.triton import TritonPositions
from teka.functional.kernels.base import DenseInputs, Kernel
from teka.functional.positions import Positions
from teka.functional.shapes import (
    Keys,
    LogRelative,
    LogRelativeRows,
    Offsets,
    Outputs,
    PairFunction,
    Queries,
    VectorPair,
)


def linear_step(
    tokens: FeatureInputs, state: DecodingState | None, *waves: Tensor
) -> tuple[WeightedSums, DecodingState]:
    """The sums of one more token of causal attention, likewise, and what it leaves."""
    num_waves = waves[0].shape[-1] if waves else 1
    total = left_by(state, "total", tokens.key_features, tokens.value, num_waves)
    features = (tokens.query_features, tokens.key_features, tokens.log_scale)
    sums, total = causal_step(*features, with_ones(tokens.value), total, *waves)
    return WeightedSums.of_channels(sums), DecodingState(0, total)


def random_directions(
    heads: int, num_directions: int, num_axes: int
) -> Float[Tensor, "heads directions axes"]:
    """Return unit vectors in uniformly distributed directions."""
    return normalize(torch.randn(heads, num_directions, num_axes), dim=-1)


class Relative(ABC):
    """Base class of relative kernels c(x_i − x_j; q_i), which weigh a key by its position relative to the query.

    Class attributes:

    - `name`: Name of the kernel in `teka.functional.RELATIVES`.
    - `equivariance`: "exact" if a shift of all positions never changes the output, "in expectation" if only the mean
      over draws of random features is unchanged.
    - `uses_query`: True if c depends on the query.
    - `rotates_features`: True if the kernel rotates features (or queries and keys) instead of multiplying the weights.
    - `appends_features`: True if the kernel only appends `num_position_features` entries to queries and keys.
    - `has_linear_features`: True if `linear_features` is implemented, so that sums over keys can be split across chunks
      and processes.
    - `supports_decoding`: True if `step` is implemented, which decodes token by token with a state of fixed size.
    - `requires_unit_steps`: True if decoding needs tokens that are 1 unit apart, one at a time.
    - `fixed_tensors`: Names of the tensors that are not learned.
    - `shared_by_heads`: Names of the tensors without a dimension for heads.
    - `has_position_heads`: True if half of the heads of a layer attend by position alone by default.

    >>> import torch, teka
    >>> from teka.functional.relative.stationary import SeparableRelative
    >>> class Near(SeparableRelative):
    ...     name = "near"
    ...     def check(self, *, heads, dim, num_axes, kernel):
    ...         pass
    ...     def axis_log_kernel(self, axis, offsets):
    ...         return -offsets.square().expand(2, *offsets.shape)  # a row for every head
    >>> options = {"kernel": "relu", "relative": Near(), "grid": teka.Grid(8, periodic=True)}
    >>> tokens = torch.randn(3, 1, 2, 8, 4)  # queries, keys and values
    >>> moved = teka.functional.attention(*tokens.roll(3, dims=3), **options)
    >>> torch.allclose(moved, teka.functional.attention(*tokens, **options).roll(3, dims=2), atol=1e-5)
    True
    """

    name: ClassVar[str]
    equivariance: ClassVar[Literal["exact", "in expectation"]] = "exact"
    # For the evaluation.
    uses_query: ClassVar[bool] = False
    rotates_features: ClassVar[bool] = False
    appends_features: ClassVar[bool] = False
    has_linear_features: ClassVar[bool] = False
    supports_decoding: ClassVar[bool] = False
    requires_unit_steps: ClassVar[bool] = False
    # For layers that learn the kernel.
    fixed_tensors: ClassVar[tuple[str, ...]] = ()
    shared_by_heads: ClassVar[tuple[str, ...]] = ()
    has_position_heads: ClassVar[bool] = False

    @classmethod
    def draw(
        cls, generator: Generator, *, heads: int, dim: int, num_axes: int, kernel: str | Kernel
    ) -> "Relative":
        """An example with random parameters in float64, large enough that each matters; of kernels with a name."""
        raise NotImplementedError(f"{cls.__name__} has no example")

    @classmethod
    def initial(cls, *args: Any, **kwargs: Any) -> "Relative":
        """Return the kernel with the values that training starts from; `teka.nn.RelativeKernel` learns its tensors.

        Sizes such as `num_axes`, `heads` and `dim_head` and the options are those of the kernel.
        """
        raise NotImplementedError(f"{cls.__name__} has no initial values to learn from")

    @property
    def constraints(self) -> Mapping[str, str]:
        """Tensors that are learned under a constraint: "positive", or "below 2" for values between 0 and 2."""
        return {}

    @abstractmethod
    def check(self, *, heads: int, dim: int, num_axes: int, kernel: Kernel) -> None:
        """Check that this fits heads of size `dim`, `num_axes` axes and the content kernel; a ValueError if not."""

    def for_kernel(self, kernel: Kernel) -> "Relative":
        """The kernel as it is beside this content kernel, itself by default."""
        return self

    def bound_with(self, kernel: Kernel) -> float | None:
        """C with |out| ≤ C · max |v| beside a content kernel, or None; by default that kernel's, which c ≥ 0 leaves."""
        return kernel.bound

    def for_positions(self, positions: Positions) -> "Relative":
        """The kernel between these positions, itself by default; a ValueError where it is not defined there."""
        return self

    @property
    def num_position_features(self) -> int:
        """By how much it lengthens queries and keys, if it `joins`."""
        return 0

    def softmax_vectors(
        self, query: Queries, key: Keys, positions: Positions, *, scale: float
    ) -> VectorPair | None:
        """Vectors of all queries and keys whose inner product is scale · qᵀk + log c, or None where there are none."""
        return None

    def extra_softmax_dim(self, positions: Positions) -> int | None:
        """By how much these are longer than queries and keys."""
        return None

    def triton_positions(
        self, positions: Positions, like: Tensor, num_features: int
    ) -> TritonPositions | None:
        """Return the rotary angles for the Triton kernels, or None if these cannot compute this kernel."""
        return None

    @abstractmethod
    def dense_passes(self, num_axes: int) -> int:
        """Passes over all pairs of the dense backend."""

    @abstractmethod
    def dense(self, pairs: DenseInputs, positions: Positions) -> Outputs:
        """Attention from every pair."""

    def window_cost(self, positions: Positions, dense_size: int, dim_value: int) -> Cost | None:
        """Cost of the backend "windows", which takes any content kernel; None where it cannot compute it."""
        return None

    def local_attention(self, pairs: DenseInputs, positions: Positions) -> Outputs:
        """Attention by that backend."""
        raise NotImplementedError(f"{self.name} has no window")

    def costs(self, sizes: Sizes, positions: Positions) -> dict[str, Cost]:
        """Costs of the backends beside the dense one that can compute it between these positions, none by default."""
        return {}

    def sums(self, backend: str, tokens: FeatureInputs, positions: Positions) -> WeightedSums:
        """The sums of tokens that are all somewhere, by one of those backends."""
        raise NotImplementedError(f"{self.name} needs every pair")

    def linear_features(
        self, features: Tensor, positions: Positions, *, is_key: bool
    ) -> LinearFeatures:
        """Return vectors whose inner products are the weights, if the kernel has `has_linear_features`."""
        raise NotImplementedError(f"{self.name} needs every pair")

    def sums_without_positions(
        self, query_features: Tensor, key_features: Tensor, value: Tensor
    ) -> WeightedSums:
        """The sums of pairs of which one is nowhere."""
        return plain_sums(FeatureInputs(query_features, query_features, key_features, value))

    def step(
        self, tokens: FeatureInputs, state: DecodingState | None, positions: Positions
    ) -> tuple[WeightedSums, DecodingState]:
        """The sums of one more token of causal attention, and what it leaves, if the kernel `decodes`."""
        raise NotImplementedError(f"{self.name} needs every pair")


class FactorRelative(Relative):
    """A relative kernel c > 0 that multiplies the content kernel's weight of a pair."""

    @abstractmethod
    def log_kernel(self, query: Queries, offsets: Offsets, *, scale: float) -> LogRelative:
        """log c for every pair, from offsets x_i − x_j of every batch or for all: the dense truth."""

    def pair_passes(self, num_axes: int) -> int:
        """Passes over the pairs in the time that log c takes pair by pair."""
        return 12 * num_axes

    def dense_passes(self, num_axes: int) -> int:
        return 3 + self.pair_passes(num_axes)

    @abstractmethod
    def pair_term(
        self, query: Queries, positions: Positions, *, scale: float
    ) -> PairFunction | None:
        """log c of a pair by its indices, 0 for one that holds a prefix token; None where there is no small table."""

    def dense(self, pairs: DenseInputs, positions: Positions) -> Outputs:
        """By a fused kernel where there is one, or from the matrix of weights."""
        query, kernel, scale = pairs.query, pairs.kernel, pairs.scale
        if kernel.is_softmax:
            vectors = self.softmax_vectors(query, pairs.key, positions, scale=scale)
            if vectors is not None:
                return fused_softmax(pairs.with_vectors(*vectors))
        if query.is_cuda and flex_fits(query, pairs.value, kernel):
            term = self.pair_term(query, positions, scale=scale)
            if term is not None:
                return flex(pairs, term)
        return matrix_attention(
            pairs, lambda query, rows: self.log_rows(query, positions, rows, scale=scale)
        )

    def log_rows(
        self, query: Queries, positions: Positions, rows: slice, *, scale: float
    ) -> LogRelativeRows:
        """log c of some rows of the matrix; 0 for every pair that holds a prefix token."""
        first = positions.num_prefix_tokens
        placed = slice(max(rows.start - first, 0), max(rows.stop - first, 0))
        num_unplaced = rows.stop - rows.start - (placed.stop - placed.start)
        log_relative = self.log_placed_rows(query[:, :, first:], positions, placed, scale=scale)
        return pad(log_relative, (first, 0, num_unplaced, 0)) if first else log_relative

    def log_placed_rows(
        self, query: Queries, positions: Positions, rows: slice, *, scale: float
    ) -> LogRelativeRows:
        """log c of some queries that are somewhere with every such key."""
        return self.log_kernel(query[:, :, rows], positions.offsets_like(query, rows), scale=scale)
