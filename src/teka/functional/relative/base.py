"""Base classes of relative kernels, which weigh a key by its position relative to the query."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.nn.functional import normalize, pad

from teka.checks import check_nonnegative, check_tensor
from teka.errors import wrong_value
from teka.functional.backends.costs import Cost
from teka.functional.backends.dense import fused_softmax, matrix_attention
from teka.functional.backends.feature_sums import plain_sums
from teka.functional.backends.flex import attend_with_flex, can_use_flex, offset_table
from teka.functional.backends.linear import DecodingState, LinearFeatures, Sizes
from teka.functional.backends.sums import FeatureInputs, WeightedSums
from teka.functional.backends.triton import TritonPositions
from teka.functional.kernels.base import DenseInputs, Kernel, TensorFields
from teka.functional.positions import Positions
from teka.functional.shapes import (
    Keys,
    LogRelative,
    LogRelativeRows,
    Offsets,
    OffsetVectors,
    Outputs,
    PairFunction,
    Queries,
    VectorPair,
)
from teka.grid import Grid

R = TypeVar("R", bound="Relative")
# Index of a pair's offset in a table over all offsets, from the indices of its query and its key.
OffsetIndex = Callable[[Tensor, Tensor], Tensor]


def random_directions(
    heads: int, num_directions: int, num_axes: int
) -> Float[Tensor, "heads directions axes"]:
    """Return unit vectors in uniformly distributed directions."""
    return normalize(torch.randn(heads, num_directions, num_axes), dim=-1)


def has_spacing(grid: Grid, spacing: float) -> bool:
    """Return True if neighboring cells of a grid are this far apart along every axis."""
    return all(abs(step - spacing) <= 1e-9 * spacing for step in grid.spacing)


class Relative(TensorFields, ABC):
    """Base class of relative kernels, which weigh a key by its position relative to the query.

    A relative kernel is written c(x_i − x_j; q_i) for a query q_i at the position x_i and a key at
    x_j. Subclasses are frozen dataclasses. The annotation of a tensor field names its dimensions.
    "heads", "axes" and "dim" (the size of a query) must match the inputs of attention. Dimensions
    with other names can have any size.

    Class attributes:

    - `name`: Name of the kernel in `teka.functional.RELATIVES`.
    - `equivariance`: "exact" if a shift of all positions never changes the output, "in expectation"
      if only the mean over draws of random features is unchanged.
    - `uses_query`: True if c depends on the query.
    - `rotates_features`: True if the kernel rotates features (or queries and keys) instead of
      multiplying weights.
    - `appends_features`: True if the kernel only appends `num_position_features` entries to queries
      and keys.
    - `has_linear_features`: True if `linear_features` is implemented, so that sums over keys can be
      split across chunks and processes.
    - `supports_decoding`: True if `step` is implemented, so that causal attention can generate one
      token at a time with a state of fixed size.
    - `requires_unit_steps`: True if `step` takes one token at a time and needs tokens that are 1
      unit apart.
    - `nonnegative_tensors`: Names of tensors that must not be negative.
    - `fixed_tensors`: Names of tensors that are not learned.
    - `has_position_heads`: True if half of the heads of a layer attend by position alone by
      default.
    - `example_sizes`: Sizes of the other dimensions in the examples that `draw` returns.

    >>> import torch, teka
    >>> from teka.functional.relative.stationary import SeparableRelative
    >>> class Near(SeparableRelative):
    ...     name = "near"
    ...     def axis_log_kernel(self, axis, offsets):
    ...         return -offsets.square().expand(2, *offsets.shape)  # shape (heads, *offsets.shape)
    >>> options = {"kernel": "relu", "relative": Near(), "grid": teka.Grid(8, periodic=True)}
    >>> tokens = torch.randn(3, 1, 2, 8, 4)  # queries, keys and values
    >>> output = teka.functional.attention(*tokens, **options)
    >>> shifted_output = teka.functional.attention(*tokens.roll(3, dims=3), **options)
    >>> torch.allclose(shifted_output, output.roll(3, dims=2), atol=1e-5)
    True
    """

    name: ClassVar[str]
    equivariance: ClassVar[Literal["exact", "in expectation"]] = "exact"
    uses_query: ClassVar[bool] = False
    rotates_features: ClassVar[bool] = False
    appends_features: ClassVar[bool] = False
    has_linear_features: ClassVar[bool] = False
    supports_decoding: ClassVar[bool] = False
    requires_unit_steps: ClassVar[bool] = False
    nonnegative_tensors: ClassVar[tuple[str, ...]] = ()
    fixed_tensors: ClassVar[tuple[str, ...]] = ()
    has_position_heads: ClassVar[bool] = False
    example_sizes: ClassVar[dict[str, int]] = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.nonnegative_tensors:
            check_nonnegative(name, getattr(self, name))

    @classmethod
    def draw(
        cls: type[R],
        generator: Generator,
        *,
        heads: int,
        dim: int,
        num_axes: int,
        kernel: str | Kernel,
    ) -> R:
        """Return an example of the kernel with random tensors in float64.

        Non-negative tensors are uniform between 0.1 and 0.6. All others are standard normal.

        Args:
            generator: Random generator.
            heads: Number of heads.
            dim: Size of a query.
            num_axes: Number of axes of the positions.
            kernel: Content kernel.
        """
        sizes = {**cls.example_sizes, "heads": heads, "dim": dim, "axes": num_axes}
        tensors = {}
        for name, dimensions in cls.tensor_shapes.items():
            is_nonnegative = name in cls.nonnegative_tensors
            sample = torch.rand if is_nonnegative else torch.randn
            shape = [sizes[dimension] for dimension in dimensions]
            values = sample(shape, generator=generator, dtype=torch.float64)
            tensors[name] = 0.1 + 0.5 * values if is_nonnegative else values
        return cls(**tensors)

    @classmethod
    def initial(cls, *args: Any, **kwargs: Any) -> "Relative":
        """Return the kernel with its initial values, from which training starts.

        `teka.nn.RelativeKernel` learns the tensors of the kernel. The arguments are sizes, such as
        `num_axes`, `heads` and `dim_head`, and the options of the kernel.
        """
        raise NotImplementedError(f"{cls.__name__} has no initial values to learn from")

    @property
    def constraints(self) -> dict[str, str]:
        """Return the names of constrained tensors and their constraint, "positive" or "below 2".

        The values of a learned tensor that is "below 2" are between 0 and 2.
        """
        learned = [name for name in self.nonnegative_tensors if name not in self.fixed_tensors]
        return dict.fromkeys(learned, "positive")

    def check(self, *, heads: int, dim: int, num_axes: int, kernel: Kernel) -> None:
        """Check that the kernel matches the heads, the positions and the content kernel.

        Raises:
            ValueError: If the kernel does not match.
        """
        sizes = {"heads": heads, "dim": dim, "axes": num_axes}
        for name, dimensions in self.tensor_shapes.items():
            tensor = getattr(self, name)
            if "axes" in dimensions:
                check_num_axes(name, tensor, tensor.shape[dimensions.index("axes")], num_axes)
            expected = [sizes.get(dimension, dimension) for dimension in dimensions]
            check_tensor(f"relative.{name}", tensor, *expected)

    def for_kernel(self, kernel: Kernel) -> "Relative":
        """Adapt this relative kernel to a content kernel.

        By default, the relative kernel is returned unchanged.
        """
        return self

    def for_positions(self, positions: Positions) -> "Relative":
        """Adapt this relative kernel to positions, such as to the periods of a grid.

        By default, the relative kernel is returned unchanged.

        Raises:
            ValueError: If the kernel is not defined for these positions.
        """
        return self

    def bound_with(self, kernel: Kernel) -> float | None:
        """Return an upper limit of max |output| / max |value| for a content kernel.

        Return None if the output is not bounded.
        """
        return kernel.bound

    @property
    def num_waves(self) -> int:
        """Return how many `linear_features` there are for each feature of the content kernel."""
        return 1

    @property
    def num_position_features(self) -> int:
        """Return the number of entries that are appended to each query and key.

        It is 0 unless `appends_features` is True.
        """
        return 0

    def softmax_vectors(
        self, query: Queries, key: Keys, positions: Positions, *, scale: float
    ) -> VectorPair | None:
        """Return query and key vectors with which softmax attention includes the relative kernel.

        Their inner products are scale · qᵀk + log c, where c is the weight of the relative kernel.
        Return None if there are no such vectors.
        """
        return None

    def extra_softmax_dim(self, positions: Positions) -> int | None:
        """Return the number of entries that `softmax_vectors` appends to queries and keys.

        Return None if `softmax_vectors` does not support the positions.
        """
        return None

    def triton_positions(
        self, positions: Positions, like: Tensor, num_features: int
    ) -> TritonPositions | None:
        """Return the angles of a rotary position embedding for the Triton kernels.

        Return None if the Triton kernels do not support this relative kernel.
        """
        return None

    @abstractmethod
    def dense_passes(self, num_axes: int) -> int:
        """Return the number of passes over all pairs of tokens that the dense backend takes.

        The number is an estimate for the cost model.
        """

    @abstractmethod
    def dense(self, pairs: DenseInputs, positions: Positions) -> Outputs:
        """Return the output of the dense backend, which evaluates every pair of tokens."""

    def window_cost(self, positions: Positions, dense_size: int, dim_value: int) -> Cost | None:
        """Return the estimated cost of `local_attention`.

        Return None if `local_attention` does not support the positions.
        """
        return None

    def local_attention(self, pairs: DenseInputs, positions: Positions) -> Outputs:
        """Return the output of the backend "windows", which evaluates pairs within a window."""
        raise NotImplementedError(f"{self.name} has no window")

    def costs(self, sizes: Sizes, positions: Positions) -> dict[str, Cost]:
        """Return the estimated cost of each backend of `sums` that supports the positions.

        By default there is no such backend.
        """
        return {}

    def sums(self, backend: str, tokens: FeatureInputs, positions: Positions) -> WeightedSums:
        """Compute the weighted sums over keys with one of the backends that `costs` returns.

        All tokens must have a position.
        """
        raise NotImplementedError(f"{self.name} needs every pair")

    def linear_features(
        self, features: Tensor, positions: Positions, *, is_key: bool
    ) -> LinearFeatures:
        """Combine the features of queries or keys with their positions.

        The inner product of the vectors of a query and a key is the attention weight of the pair,
        including the relative kernel.
        """
        raise NotImplementedError(f"{self.name} needs every pair")

    def sums_without_positions(
        self, query_features: Tensor, key_features: Tensor, value: Tensor
    ) -> WeightedSums:
        """Return the weighted sums over keys for pairs in which a token has no position.

        By default, the relative kernel does not change the weights of these pairs.
        """
        return plain_sums(FeatureInputs(query_features, query_features, key_features, value))

    def step(
        self, tokens: FeatureInputs, state: DecodingState | None, positions: Positions
    ) -> tuple[WeightedSums, DecodingState]:
        """Advance causal attention by one token, for generation.

        Returns:
            The weighted sums over all keys so far for the query of the new token, and the updated
            recurrent state.
        """
        raise NotImplementedError(f"{self.name} needs every pair")


class FactorRelative(Relative):
    """Base class of relative kernels c > 0 that multiply the weights of the content kernel."""

    @abstractmethod
    def log_kernel(self, query: Queries, offsets: Offsets, *, scale: float) -> LogRelative:
        """Return the logarithm of the relative kernel for every pair of a query and a key.

        The offsets of the pairs may be different for each sample, or shared by all samples. This
        is the reference implementation.
        """

    def dense_passes(self, num_axes: int) -> int:
        return 3 + 12 * num_axes

    def pair_term(
        self, query: Queries, positions: Positions, *, scale: float
    ) -> PairFunction | None:
        """Return a function that adds the relative kernel to the scores in FlexAttention.

        The function computes the logarithm of the relative kernel from the indices of the sample,
        head, query and key. It is 0 for prefix tokens, because they have no position. Return None
        if the positions have too many different offsets for a table.
        """
        numbers = offset_table(positions, query)
        if numbers is None:
            return None
        offsets, query_code, key_code = numbers
        last = len(offsets)
        index: OffsetIndex = lambda i, j: torch.clamp_max(  # noqa: E731
            query_code[i] - key_code[j], last
        )
        return self.table_term(query, offsets, index, scale=scale)

    @abstractmethod
    def table_term(
        self, query: Queries, offsets: OffsetVectors, index: OffsetIndex, *, scale: float
    ) -> PairFunction:
        """Return a function for FlexAttention that reads the relative kernel from a table.

        The table contains the logarithm of the kernel for all offsets.

        Args:
            query: Queries.
            offsets: All possible offsets x_i − x_j. The table has an additional last entry for
                pairs with a prefix token.
            index: Index of a pair's entry in the table, from the indices of its query and its key.
            scale: Factor of qᵀk.
        """

    def dense(self, pairs: DenseInputs, positions: Positions) -> Outputs:
        query, kernel, scale = pairs.query, pairs.kernel, pairs.scale
        if kernel.is_softmax:
            vectors = self.softmax_vectors(query, pairs.key, positions, scale=scale)
            if vectors is not None:
                return fused_softmax(pairs.with_vectors(*vectors))
        if query.is_cuda and can_use_flex(query, pairs.value, kernel):
            term = self.pair_term(query, positions, scale=scale)
            if term is not None:
                return attend_with_flex(pairs, term)
        return matrix_attention(
            pairs, lambda query, rows: self.log_rows(query, positions, rows, scale=scale)
        )

    def log_rows(
        self, query: Queries, positions: Positions, rows: slice, *, scale: float
    ) -> LogRelativeRows:
        """Return the logarithm of the relative kernel for a slice of the queries and all keys.

        It is 0 for pairs with a prefix token, because prefix tokens have no position.
        """
        first = positions.num_prefix_tokens
        others = slice(max(rows.start - first, 0), max(rows.stop - first, 0))
        num_prefix_rows = rows.stop - rows.start - (others.stop - others.start)
        query = query[:, :, first:]
        log_relative = self.log_rows_without_prefix(query, positions, others, scale=scale)
        return pad(log_relative, (first, 0, num_prefix_rows, 0)) if first else log_relative

    def log_rows_without_prefix(
        self, query: Queries, positions: Positions, rows: slice, *, scale: float
    ) -> LogRelativeRows:
        """Return the result of `log_rows` for queries and keys without prefix tokens."""
        return self.log_kernel(query[:, :, rows], positions.offsets_like(query, rows), scale=scale)


def check_num_axes(argument: str, tensor: Tensor, tensor_axes: int, num_axes: int) -> None:
    """Check that positions have the same number of axes as a tensor of a relative kernel."""
    if tensor_axes != num_axes:
        expected = f"{tensor_axes}, because relative.{argument} has shape {tuple(tensor.shape)}"
        hint = f"Make the layer with num_axes={num_axes}."
        raise wrong_value("the number of axes of grid or positions", num_axes, expected, hint)
