"""Base classes of attention weights that depend on the offset between query and key."""

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
    """Return True if neighboring cells of a grid are `spacing` apart along every axis."""
    return all(abs(step - spacing) <= 1e-9 * spacing for step in grid.spacing)


class Relative(TensorFields, ABC):
    """Base class of relative kernels, attention weights that depend on the offset of query and key.

    A relative kernel is written c(x_i − x_j; q_i) for a query q_i at the position x_i and a key at
    x_j, and multiplies the attention weight of the pair. Subclasses are frozen dataclasses. The
    annotation of a tensor field names its dimensions. "heads", "axes" and "dim" (the size of a
    query) must match the inputs of attention. Dimensions with other names can have any size.

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
        """Create an example of this position-dependent weight with random parameters in float64.

        Non-negative parameters are uniform between 0.1 and 0.6. All others are standard normal.

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
        """Create this position-dependent weight with initial parameters, to start training.

        `teka.nn.RelativeKernel` learns the parameters. The arguments are sizes, such as `num_axes`,
        `heads` and `dim_head`, and options of the relative kernel.
        """
        raise NotImplementedError(f"{cls.__name__} has no initial values to learn from")

    @property
    def constraints(self) -> dict[str, str]:
        """Return the constraint of each learned tensor that is constrained, by the tensor's name.

        A constraint is "positive", or "below 2" for values between 0 and 2.
        """
        learned = [name for name in self.nonnegative_tensors if name not in self.fixed_tensors]
        return dict.fromkeys(learned, "positive")

    def check(self, *, heads: int, dim: int, num_axes: int, kernel: Kernel) -> None:
        """Check that the parameters fit the number of heads and axes, and the content kernel.

        The content kernel is the similarity of queries and keys that is used with this
        position-dependent weight.

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
        """Adapt this position-dependent weight to a content kernel (similarity of query and key).

        By default, it is returned unchanged.
        """
        return self

    def for_positions(self, positions: Positions) -> "Relative":
        """Adapt this position-dependent weight to the positions of the tokens.

        For example, the frequencies of sinusoids are rounded so that they repeat with a periodic
        grid. By default, the weight is returned unchanged.

        Raises:
            ValueError: If the kernel is not defined for these positions.
        """
        return self

    def bound_with(self, kernel: Kernel) -> float | None:
        """Return an upper limit of the ratio max |output| / max |value| of attention.

        The limit depends on the content kernel (similarity of query and key). Return None if the
        output can be arbitrarily large.
        """
        return kernel.bound

    @property
    def num_waves(self) -> int:
        """Return the number of combined features of content and position per content feature.

        `linear_features` combines the features of queries and keys with their positions, for
        example by products with sinusoids.
        """
        return 1

    @property
    def num_position_features(self) -> int:
        """Return the number of position features that are appended to each query and key vector.

        It is 0 unless `appends_features` is True.
        """
        return 0

    def softmax_vectors(
        self, query: Queries, key: Keys, positions: Positions, *, scale: float
    ) -> VectorPair | None:
        """Return query and key vectors that make softmax attention depend on the positions.

        The inner products of the vectors are scale · qᵀk + log c, where c is the position-dependent
        weight. Return None if there are no such vectors.
        """
        return None

    def extra_softmax_dim(self, positions: Positions) -> int | None:
        """Return how many position entries `softmax_vectors` appends to queries and keys.

        Return None if `softmax_vectors` does not support the positions.
        """
        return None

    def triton_positions(
        self, positions: Positions, like: Tensor, num_features: int
    ) -> TritonPositions | None:
        """Return the rotary angles of queries and keys for the Triton (GPU) kernels.

        Return None if these kernels do not support this position-dependent weight.
        """
        return None

    @abstractmethod
    def dense_passes(self, num_axes: int) -> int:
        """Estimate how often dense attention reads or writes the matrix of query–key weights.

        The estimate is used to choose the fastest attention algorithm.
        """

    @abstractmethod
    def dense(self, pairs: DenseInputs, positions: Positions) -> Outputs:
        """Compute attention from the full matrix of query–key weights, including the positions."""

    def window_cost(self, positions: Positions, dense_size: int, dim_value: int) -> Cost | None:
        """Estimate the cost of attention within local windows, in multiply-adds and bytes.

        Return None if `local_attention` does not support the positions.
        """
        return None

    def local_attention(self, pairs: DenseInputs, positions: Positions) -> Outputs:
        """Compute attention in which each query sees only the keys in a window around it."""
        raise NotImplementedError(f"{self.name} has no window")

    def costs(self, sizes: Sizes, positions: Positions) -> dict[str, Cost]:
        """Estimate the cost of linear attention with this weight, for each supported algorithm.

        Algorithms (backends) that do not support the positions are left out. By default there are
        none.
        """
        return {}

    def sums(self, backend: str, tokens: FeatureInputs, positions: Positions) -> WeightedSums:
        """Compute linear attention with this position-dependent weight.

        The result is a numerator and a denominator for each query. `backend` is one of the
        algorithms that `costs` returns. All tokens must have a position.
        """
        raise NotImplementedError(f"{self.name} needs every pair")

    def linear_features(
        self, features: Tensor, positions: Positions, *, is_key: bool
    ) -> LinearFeatures:
        """Combine the features of queries or keys with their positions, for linear attention.

        The inner product of the resulting vectors of a query and a key is the attention weight of
        the pair, including the position-dependent weight.
        """
        raise NotImplementedError(f"{self.name} needs every pair")

    def sums_without_positions(
        self, query_features: Tensor, key_features: Tensor, value: Tensor
    ) -> WeightedSums:
        """Compute linear attention for pairs with a token without position, such as a class token.

        The result is a numerator and a denominator for each query. By default, positions do not
        change the weights of these pairs.
        """
        return plain_sums(FeatureInputs(query_features, query_features, key_features, value))

    def step(
        self, tokens: FeatureInputs, state: DecodingState | None, positions: Positions
    ) -> tuple[WeightedSums, DecodingState]:
        """Advance causal attention by one token, to generate a sequence token by token.

        Returns:
            The weighted sums over all keys so far for the query of the new token, and the updated
            recurrent state.
        """
        raise NotImplementedError(f"{self.name} needs every pair")


class FactorRelative(Relative):
    """Base class of positive position-dependent factors of the attention weights.

    The weight of a pair is the similarity of query and key times this factor.
    """

    @abstractmethod
    def log_kernel(self, query: Queries, offsets: Offsets, *, scale: float) -> LogRelative:
        """Return the log of the position-dependent weight for every pair of a query and a key.

        The offsets of the pairs may be different for each sample, or shared by all samples. The
        tests compare faster algorithms with this reference implementation.
        """

    def dense_passes(self, num_axes: int) -> int:
        return 3 + 12 * num_axes

    def pair_term(
        self, query: Queries, positions: Positions, *, scale: float
    ) -> PairFunction | None:
        """Return a function with which FlexAttention adds position-dependent terms to the scores.

        The function computes the log of the position-dependent weight from the indices of the
        sample, head, query and key. It is 0 for tokens without a position, such as a class token.
        Return None if the positions have too many different offsets for a table.
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
        """Return a function with which FlexAttention reads position-dependent terms from a table.

        The table contains the log of the position-dependent weight for all offsets of query and
        key.

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
        """Return the log of the position-dependent weight for some of the queries and all keys.

        It is 0 for pairs with a token without a position, such as a class token.
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
        """Return the log of the position-dependent weight for tokens that all have a position.

        `log_rows` adds the tokens without a position, such as a class token.
        """
        return self.log_kernel(query[:, :, rows], positions.offsets_like(query, rows), scale=scale)


def check_num_axes(argument: str, tensor: Tensor, tensor_axes: int, num_axes: int) -> None:
    """Check that positions have as many axes as a parameter of a position-dependent weight."""
    if tensor_axes != num_axes:
        expected = f"{tensor_axes}, because relative.{argument} has shape {tuple(tensor.shape)}"
        hint = f"Make the layer with num_axes={num_axes}."
        raise wrong_value("the number of axes of grid or positions", num_axes, expected, hint)
