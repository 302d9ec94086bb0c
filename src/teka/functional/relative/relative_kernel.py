"""Base classes of relative kernels, which are position-dependent attention weights."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.nn.functional import normalize, pad

from teka.checks import check_nonnegative, check_tensor
from teka.errors import wrong_value
from teka.functional.backends.attention_sums import (
    AttentionFeatures,
    LinearAttentionInputs,
    WeightedSums,
)
from teka.functional.backends.costs import AttentionSizes, Cost
from teka.functional.backends.dense import dense_attention, fused_softmax_attention
from teka.functional.backends.flex_attention import (
    attend_with_flex,
    can_use_flex,
    make_offset_table,
)
from teka.functional.backends.linear import DecodingState, attention_sums_without_positions
from teka.functional.backends.triton import TritonAngles
from teka.functional.kernels.content_kernel import (
    ContentKernel,
    DenseAttentionInputs,
    TensorShapeChecks,
)
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

R = TypeVar("R", bound="RelativeKernel")
# Index of a pair's offset in a table over all offsets, from the indices of its query and its key.
OffsetIndex = Callable[[Tensor, Tensor], Tensor]


def random_directions(
    heads: int, num_directions: int, num_axes: int
) -> Float[Tensor, "heads directions axes"]:
    """Draw unit vectors with uniformly distributed directions, several for each head."""
    return normalize(torch.randn(heads, num_directions, num_axes), dim=-1)


def has_spacing(grid: Grid, spacing: float) -> bool:
    """Return True if neighboring tokens of a grid are `spacing` apart along every axis."""
    return all(abs(step - spacing) <= 1e-9 * spacing for step in grid.spacing)


class RelativeKernel(TensorShapeChecks, ABC):
    """Base class of relative kernels: attention weights that depend on the offset of query and key.

    A relative kernel is a function c(x_i − x_j; q_i), where q_i is a query at the position x_i, and
    x_j is the position of a key. The attention weight of query and key is multiplied by it.

    Subclasses are frozen dataclasses. The annotation of a tensor field names its dimensions.
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
    - `can_add_positions_to_features`: True if `add_positions_to_features` is implemented, so that
      sums over keys can be split across chunks and processes.
    - `supports_decoding`: True if `decode_step` is implemented, so that causal attention can
      generate one token at a time with a state of fixed size.
    - `requires_unit_steps`: True if `decode_step` takes one token at a time and needs tokens that
      are 1 unit apart.
    - `nonnegative_tensors`: Names of tensors that must not be negative.
    - `fixed_tensors`: Names of tensors that are not learned.
    - `has_position_heads`: True if half of the heads of a layer attend by position alone by
      default.
    - `example_sizes`: Sizes of the other dimensions in the examples of `make_random_example`.

    >>> import torch, teka
    >>> from teka.functional.relative.stationary import SeparableRelativeKernel
    >>> class Near(SeparableRelativeKernel):
    ...     name = "near"
    ...     def axis_log_weights(self, axis, offsets):
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
    can_add_positions_to_features: ClassVar[bool] = False
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
    def make_random_example(
        cls: type[R],
        generator: Generator,
        *,
        heads: int,
        dim: int,
        num_axes: int,
        kernel: str | ContentKernel,
    ) -> R:
        """Create a relative kernel with random parameters.

        The function `attention` calls this method if a kernel is given by name. The parameters
        are in float64. Non-negative parameters are uniform between 0.1 and 0.6. All others are
        standard normal.

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
    def with_initial_parameters(cls, *args: Any, **kwargs: Any) -> "RelativeKernel":
        """Create a relative kernel with the parameters from which training starts.

        The arguments are sizes, such as `num_axes`, `heads` and `dim_head`, and options of the
        class. `teka.nn.LearnedRelativeKernel` learns the parameters.
        """
        raise NotImplementedError(f"{cls.__name__} has no initial values to learn from")

    @property
    def constraints(self) -> dict[str, str]:
        """Constraints on the values of the learned tensors, by the name of the tensor.

        A constraint is "positive", or "below 2" for values between 0 and 2. Tensors that are
        missing from the dictionary are not constrained.
        """
        learned = [name for name in self.nonnegative_tensors if name not in self.fixed_tensors]
        return dict.fromkeys(learned, "positive")

    def check_kernel_and_positions(
        self, *, heads: int, dim: int, num_axes: int, kernel: ContentKernel
    ) -> None:
        """Check that this relative kernel fits the content kernel and the sizes of the inputs.

        The shapes of its parameters must match the number of heads, the size of a query and the
        number of position axes. Some relative kernels support only some content kernels, which are
        similarities of queries and keys.

        Raises:
            ValueError: A shape does not match, or the content kernel is not supported.
        """
        sizes = {"heads": heads, "dim": dim, "axes": num_axes}
        for name, dimensions in self.tensor_shapes.items():
            tensor = getattr(self, name)
            if "axes" in dimensions:
                check_num_axes(name, tensor, tensor.shape[dimensions.index("axes")], num_axes)
            expected = [sizes.get(dimension, dimension) for dimension in dimensions]
            check_tensor(f"relative.{name}", tensor, *expected)

    def adapt_to_kernel(self, kernel: ContentKernel) -> "RelativeKernel":
        """Return this relative kernel, adapted to a content kernel (similarity).

        For example, `Rotary` needs another attention denominator if similarities may be negative.
        By default, the relative kernel is returned unchanged.
        """
        return self

    def adapt_to_positions(self, positions: Positions) -> "RelativeKernel":
        """Return this relative kernel, adapted to the positions of the tokens.

        For example, on a periodic grid, the frequencies of sinusoids are rounded so that the
        sinusoids repeat with the grid. By default, the relative kernel is returned unchanged.

        Raises:
            ValueError: If the kernel is not defined for these positions.
        """
        return self

    def output_bound_with(self, kernel: ContentKernel) -> float | None:
        """Return an upper bound of |output| / max |value| for attention with a content kernel.

        Return None if outputs can be arbitrarily large.
        """
        return kernel.output_bound

    @property
    def feature_multiplier(self) -> int:
        """Factor by which the number of features grows when they are combined with positions.

        For example, it is 9 if `add_positions_to_features` multiplies each feature by 9 functions
        of the position.
        """
        return 1

    @property
    def num_position_features(self) -> int:
        """Number of entries that encode the position and are appended to each query and key.

        It is 0 unless `appends_features` is True.
        """
        return 0

    def convert_to_softmax_vectors(
        self, query: Queries, key: Keys, positions: Positions, *, scale: float
    ) -> VectorPair | None:
        """Return queries and keys that contain the positions, for softmax attention.

        The inner product of the returned query and key is scale · qᵀk + log c, where c is their
        position-dependent weight. Return None if there are no such vectors.
        """
        return None

    def num_appended_entries(self, positions: Positions) -> int | None:
        """Return how many entries `convert_to_softmax_vectors` appends to each query and key.

        Return None if `convert_to_softmax_vectors` does not support these positions.
        """
        return None

    def triton_angles(
        self, positions: Positions, like: Tensor, num_features: int
    ) -> TritonAngles | None:
        """Return the rotary angles of queries and keys for the Triton kernels on a GPU.

        The angles have the dtype and the device of `like`. Return None if the Triton kernels do not
        support this relative kernel with `num_features` features per token.
        """
        return None

    @abstractmethod
    def num_weight_matrix_passes(self, num_axes: int) -> int:
        """Return how often the backend "dense" reads and writes the matrix of attention weights.

        This estimate is used to choose the fastest backend. `num_axes` is the number of position
        axes.
        """

    @abstractmethod
    def dense_attention(self, inputs: DenseAttentionInputs, positions: Positions) -> Outputs:
        """Compute attention with position-dependent weights from the full matrix of weights."""

    def window_cost(
        self, positions: Positions, inner_product_size: int, dim_value: int
    ) -> Cost | None:
        """Estimate the work of attention in which each query attends to a local window of keys.

        Return None if `local_attention` does not support the positions.
        """
        return None

    def local_attention(self, inputs: DenseAttentionInputs, positions: Positions) -> Outputs:
        """Compute attention in which each query attends only to the keys in a window around it."""
        raise NotImplementedError(f"{self.name} does not implement local_attention")

    def estimate_costs(self, sizes: AttentionSizes, positions: Positions) -> dict[str, Cost]:
        """Estimate the cost of linear attention for each algorithm that supports the positions.

        The result maps the name of each algorithm (backend) to its cost. By default, no algorithm
        supports the relative kernel, and the result is empty.
        """
        return {}

    def weighted_sums(
        self, backend: str, tokens: LinearAttentionInputs, positions: Positions
    ) -> WeightedSums:
        """Compute numerators and denominators of linear attention with position-dependent weights.

        Both are weighted sums over the keys. `backend` is one of the algorithms that
        `estimate_costs` returns. All tokens must have a position.
        """
        raise NotImplementedError(f"{self.name} does not implement weighted_sums")

    def add_positions_to_features(
        self, features: Tensor, positions: Positions, *, is_key: bool
    ) -> AttentionFeatures:
        """Combine the features of queries or keys with their positions, for linear attention.

        The inner product of the combined vectors of a query and a key is the attention weight of
        the pair: their similarity times the position-dependent weight.
        """
        raise NotImplementedError(f"{self.name} does not implement add_positions_to_features")

    def sums_without_positions(
        self, query_features: Tensor, key_features: Tensor, value: Tensor
    ) -> WeightedSums:
        """Compute numerators and denominators of linear attention for tokens without a position.

        A class token, for example, has no position. By default, the weight of such a token and any
        other token is the similarity of query and key alone.
        """
        return attention_sums_without_positions(
            LinearAttentionInputs(query_features, query_features, key_features, value)
        )

    def decode_step(
        self, tokens: LinearAttentionInputs, state: DecodingState | None, positions: Positions
    ) -> tuple[WeightedSums, DecodingState]:
        """Compute causal attention for the next token, to generate a sequence token by token.

        The recurrent state summarizes the earlier tokens.

        Returns:
            The weighted sums over all keys so far for the query of the new token, and the updated
            recurrent state.
        """
        raise NotImplementedError(f"{self.name} does not implement decode_step")


class PositiveRelativeKernel(RelativeKernel):
    """Base class of relative kernels with positive weights, such as relative position biases.

    The weight depends on the offset between query and key, and multiplies their similarity. The
    logarithm of the weight is the position bias, which is added to the attention score.
    """

    @abstractmethod
    def log_weights(self, query: Queries, offsets: Offsets, *, scale: float) -> LogRelative:
        """Return the log of the position-dependent weight for every pair of a query and a key.

        All samples may share the offsets of the pairs, or each sample may have its own. The tests
        compare faster algorithms with this reference implementation.
        """

    def num_weight_matrix_passes(self, num_axes: int) -> int:
        return 3 + 12 * num_axes

    def make_flex_attention_bias(
        self, query: Queries, positions: Positions, *, scale: float
    ) -> PairFunction | None:
        """Return a function that FlexAttention calls for the position bias of a query and a key.

        Its arguments are the indices of the sample, the head, the query and the key. The bias is 0
        for tokens without a position, such as a class token. Return None if the positions have too
        many different offsets for a table of their biases.
        """
        table = make_offset_table(positions, query)
        if table is None:
            return None
        offsets, query_code, key_code = table
        last = len(offsets)
        index: OffsetIndex = lambda i, j: torch.clamp_max(  # noqa: E731
            query_code[i] - key_code[j], last
        )
        return self.make_flex_attention_lookup(query, offsets, index, scale=scale)

    @abstractmethod
    def make_flex_attention_lookup(
        self, query: Queries, offsets: OffsetVectors, index: OffsetIndex, *, scale: float
    ) -> PairFunction:
        """Return a function that looks up position biases in a table, for FlexAttention.

        The table has an entry for every offset between a query and a key. The function returns the
        bias of one query and one key.

        Args:
            query: Queries.
            offsets: All possible offsets x_i − x_j. The table has an additional last entry for
                pairs with a prefix token.
            index: Index of a pair's entry in the table, from the indices of its query and its key.
            scale: Factor of qᵀk.
        """

    def dense_attention(self, inputs: DenseAttentionInputs, positions: Positions) -> Outputs:
        query, kernel, scale = inputs.query, inputs.kernel, inputs.scale
        if kernel.is_softmax:
            vectors = self.convert_to_softmax_vectors(query, inputs.key, positions, scale=scale)
            if vectors is not None:
                return fused_softmax_attention(inputs.with_softmax_vectors(*vectors))
        if query.is_cuda and can_use_flex(query, inputs.value, kernel):
            position_bias = self.make_flex_attention_bias(query, positions, scale=scale)
            if position_bias is not None:
                return attend_with_flex(inputs, position_bias)
        return dense_attention(
            inputs, lambda query, rows: self.log_weight_rows(query, positions, rows, scale=scale)
        )

    def log_weight_rows(
        self, query: Queries, positions: Positions, rows: slice, *, scale: float
    ) -> LogRelativeRows:
        """Return the logs of position-dependent weights for a range of queries and all keys.

        `rows` is the range of the queries. The result is 0 if the query or the key is a prefix
        token, such as a class token, because prefix tokens have no position.
        """
        first = positions.num_prefix_tokens
        others = slice(max(rows.start - first, 0), max(rows.stop - first, 0))
        num_prefix_rows = rows.stop - rows.start - (others.stop - others.start)
        query = query[:, :, first:]
        log_relative = self.log_weight_rows_without_prefix(query, positions, others, scale=scale)
        return pad(log_relative, (first, 0, num_prefix_rows, 0)) if first else log_relative

    def log_weight_rows_without_prefix(
        self, query: Queries, positions: Positions, rows: slice, *, scale: float
    ) -> LogRelativeRows:
        """Return the logs of position-dependent weights for a range of queries and all keys.

        `rows` is the range of the queries. Prefix tokens, such as a class token, are not included,
        because they have no position.
        """
        return self.log_weights(
            query[:, :, rows], positions.pairwise_offsets(query, rows), scale=scale
        )


def check_num_axes(argument: str, tensor: Tensor, tensor_axes: int, num_axes: int) -> None:
    """Check that a parameter of a relative kernel is made for the number of position axes.

    `argument` is the name of the parameter, and `tensor_axes` is the number of axes that its shape
    implies.
    """
    if tensor_axes != num_axes:
        expected = f"{tensor_axes}, because relative.{argument} has shape {tuple(tensor.shape)}"
        hint = f"Make the layer with num_axes={num_axes}."
        raise wrong_value("the number of axes of grid or positions", num_axes, expected, hint)
