"""Groups of attention heads that share their kernels, and the creation of these kernels."""

from dataclasses import dataclass

from teka.checks import check_name, check_sizes
from teka.errors import wrong_value
from teka.functional import KERNELS, ClippedDistanceFeatures, ContentKernel, RelativeKernel
from teka.functional.attention_plan import make_attention_plan, unchecked_attention
from teka.functional.backends.costs import Cost
from teka.functional.kernels import DETERMINISTIC_KERNELS, LEARNED_KERNELS, RANDOM_KERNELS
from teka.functional.positions import Positions
from teka.functional.relative.rotary import ROTARY_NORMALIZERS
from teka.functional.relative.rotation import NUM_FREQUENCIES
from teka.functional.shapes import Keys, Outputs, Queries, Values
from teka.grid import Grid, as_grid
from teka.nn.features import AnyContentKernel, LearnedFeatures, RandomFeatures
from teka.nn.inputs import AllKeys, AllQueries, AllValues, AttentionInputs
from teka.nn.options import AttentionOptions
from teka.nn.relative import (
    DEFAULT_NUM_AXES,
    RelativeModule,
    find_relative_kernel_class,
    make_learned_relative_kernel,
)


@dataclass(frozen=True)
class HeadGroup:
    """Heads of an attention layer that have the same kernels and are computed together.

    Args:
        kernel: Content kernel with the current parameters.
        relative: Relative kernel with the current parameters, or None.
        heads: Indices of the heads.
        backend: Backend option of the heads.
        queries: Indices of the heads among the layer's queries, or None if the kernels use no
            queries.
        keys: Indices of the heads among the layer's keys, or None if the kernels use no keys.
        dim: Size of a query and a key.
        dim_value: Size of a value.
        is_causal: True if no query sees a later key.
    """

    kernel: ContentKernel
    relative: RelativeKernel | None
    heads: slice
    backend: str
    queries: slice | None
    keys: slice | None
    dim: int
    dim_value: int
    is_causal: bool

    @property
    def num_heads(self) -> int:
        """Number of heads."""
        return self.heads.stop - self.heads.start

    @property
    def name(self) -> str:
        """Names of the kernels, such as "squared_relu × rotary"."""
        return join_kernel_names(self.kernel, self.relative)

    @property
    def output_bound(self) -> float | None:
        """Bound on |output| of these heads if all |values| ≤ 1, or None if there is no bound."""
        return (
            self.kernel.output_bound
            if self.relative is None
            else self.relative.output_bound_with(self.kernel)
        )

    def select_heads(
        self, query: AllQueries | None, key: AllKeys | None, value: AllValues, num_queries: int
    ) -> tuple[Queries, Keys, Values]:
        """Select the queries, keys and values of these heads from those of all heads of the layer.

        Queries or keys that the kernels do not use become zeros, because `teka.functional` always
        takes both.
        """
        value = value[:, self.heads]
        batch, num_heads, num_keys, _ = value.shape
        zero = value.new_zeros(1)
        if query is None or self.queries is None:
            query = zero.expand(batch, num_heads, num_queries, self.dim)
        else:
            query = query[:, self.queries]
        if key is None or self.keys is None:
            key = zero.expand(batch, num_heads, num_keys, self.dim)
        else:
            key = key[:, self.keys]
        return query, key, value

    def compute_heads(
        self,
        query: AllQueries | None,
        key: AllKeys | None,
        value: AllValues,
        inputs: AttentionInputs,
    ) -> Outputs:
        """Compute the outputs of these heads from the queries, keys and values of all heads."""
        relative = self.relative
        if relative is not None and inputs.group is not None:
            # A process has a part of the grid, which is not periodic even if the grid is. The
            # frequencies must be those of the whole grid.
            relative = relative.adapt_to_positions(inputs.all_positions)
        return unchecked_attention(
            *self.select_heads(query, key, value, inputs.tokens.shape[1]),
            kernel=self.kernel,
            relative=relative,
            positions=inputs.positions,
            key_mask=inputs.key_mask,
            query_mask=inputs.query_mask,
            is_causal=self.is_causal,
            backend=self.backend,
            group=inputs.group,
            sequence_lengths=inputs.sequence_lengths,
        )

    def estimate_costs(
        self,
        grid: Grid | None,
        *,
        num_prefix_tokens: int = 0,
        context_grid: Grid | None = None,
        batch: int = 1,
    ) -> dict[str, Cost]:
        """Estimate the cost of each algorithm (backend) that can compute these heads on a grid.

        A cost consists of the number of multiply-adds and the number of bytes moved. Since all
        backends have the same result, a layer can choose the fastest one from these costs.

        Args:
            grid: Grid of the queries. May be None without a relative kernel; the costs are then
                those of one token.
            num_prefix_tokens: Number of first tokens without a position.
            context_grid: Grid of the keys. By default that of the queries.
            batch: Number of samples.
        """
        check_sizes({"num_prefix_tokens": num_prefix_tokens}, 0)
        check_sizes({"batch": batch})
        if self.relative is not None and grid is None:
            raise wrong_value("grid", None, "a teka.Grid for a layer with a relative kernel")
        queries = None if grid is None else as_grid("grid", grid)
        keys = None if context_grid is None else Positions(as_grid("context_grid", context_grid))
        positions = Positions(queries, None, keys, num_prefix_tokens)
        num_queries = num_prefix_tokens + (positions.num_queries_with_position or 1)
        num_keys = num_prefix_tokens + (positions.key_positions.num_queries_with_position or 1)
        return self.estimate_costs_at(positions, num_queries, num_keys, batch=batch)

    def estimate_costs_at(
        self, positions: Positions, num_queries: int, num_keys: int, *, batch: int
    ) -> dict[str, Cost]:
        """Estimate the cost of each algorithm (backend) for queries and keys at given positions."""
        plan = make_attention_plan(
            self.kernel,
            self.relative,
            positions,
            heads=self.num_heads,
            dim=self.dim,
            is_causal=self.is_causal,
        )
        return plan.estimate_costs(
            heads=self.num_heads,
            num_queries=num_queries,
            num_keys=num_keys,
            dim=self.dim,
            dim_value=self.dim_value,
            batch=batch,
        )


def join_kernel_names(kernel: ContentKernel, relative: RelativeKernel | None) -> str:
    """Return the names of a content kernel and a relative kernel, such as "relu × rotary"."""
    return kernel.name if relative is None else f"{kernel.name} × {relative.name}"


def count_position_heads(
    position_heads: int | None, relative: str | RelativeModule | None, heads: int
) -> int:
    """Return the number of heads that attend by position alone, without queries and keys.

    If `position_heads` is None, this is half of the heads for relative kernels such as "clipped",
    and 0 for most others.

    Raises:
        ValueError: There are too few heads, or the relative kernel cannot act in separate heads.
    """
    kind = find_relative_kernel_class(relative)
    check_sizes({"position_heads": position_heads}, 0, or_none=True)
    if position_heads is None:
        if kind is None or not kind.has_position_heads:
            return 0
        if heads < 2:
            expected = f"at least 2 with relative={relative!r}, which takes half of them"
            raise wrong_value("heads", heads, expected)
        return heads // 2
    if kind is None and position_heads != 0:
        raise wrong_value("position_heads", position_heads, "None or 0 without a relative kernel")
    is_inside = kind is not None and (kind.rotates_features or kind.appends_features)
    if is_inside and position_heads != 0:
        expected = f"None or 0 with relative={relative!r}, which acts inside the content kernel"
        raise wrong_value("position_heads", position_heads, expected)
    if position_heads >= heads:
        hint = "With kernel='constant', all heads attend by position alone."
        raise wrong_value("position_heads", position_heads, f"at most {heads - 1}", hint)
    return position_heads


def make_kernels(
    options: AttentionOptions, heads: int, dim_head: int, position_heads: int = 0
) -> tuple[AnyContentKernel, RelativeModule | None]:
    """Create the content kernel and the relative kernel that the options of a layer describe.

    The content kernel is a similarity of query and key. The relative kernel is a weight that
    depends on the offset between their positions. It is None for `relative=None`.

    Raises:
        ValueError: The kernels do not fit each other, or an option belongs to another kernel.
    """
    kernel = _make_content_kernel(options, heads - position_heads, dim_head)
    current = kernel if isinstance(kernel, ContentKernel) else kernel()
    features = current.features if options.relative == "rotary" else None
    num_features = dim_head if features is None else features.num_features(dim_head)
    relative = make_relative_kernel(options, position_heads or heads, dim_head, num_features)
    if (
        current.normalizes_by_count
        and relative is not None
        and relative.kernel_class.rotates_features
    ):
        hint = f"kernel={current.name!r} divides by the number of keys."
        raise wrong_value("relative", options.relative, "a kernel that does not rotate", hint)
    if options.rotary_normalizer is not None and features is None:
        expected = f"None with kernel={current.name!r}, whose denominator is the sum of its weights"
        raise wrong_value("rotary_normalizer", options.rotary_normalizer, expected)
    return kernel, relative


def _make_content_kernel(options: AttentionOptions, heads: int, dim_head: int) -> AnyContentKernel:
    kernel, relative = options.kernel, options.relative
    is_random = isinstance(kernel, str) and kernel in RANDOM_KERNELS
    kind = find_relative_kernel_class(relative)
    is_for_positions = kind is not None and issubclass(kind, ClippedDistanceFeatures)
    if options.num_features is not None and not is_random and not is_for_positions:
        expected = f"None with kernel={kernel!r}, which has no random features"
        raise wrong_value("num_features", options.num_features, expected)
    if options.projection is not None and not is_random:
        expected = f"None with kernel={kernel!r}, which does not name a kernel of random features"
        raise wrong_value("projection", options.projection, expected)
    if isinstance(kernel, LearnedFeatures) and (kernel.dim, kernel.heads) != (dim_head, heads):
        expected = (
            f"a kernel with dim={dim_head} and heads={heads}, the heads that attend by content"
        )
        raise wrong_value("kernel", kernel, expected)
    if isinstance(kernel, ContentKernel | RandomFeatures | LearnedFeatures):
        return kernel
    if is_random:
        num_position_features = 0
        if isinstance(relative, RelativeModule):
            num_position_features = relative.num_position_features
        elif relative == "rotation_joint":
            num_position_features = 2 * (options.num_axes or DEFAULT_NUM_AXES) * NUM_FREQUENCIES
        return RandomFeatures(
            kernel,
            dim_head + num_position_features,
            num_features=options.num_features,
            projection=options.projection or "orthogonal",
        )
    check_name("kernel", kernel, KERNELS)
    if kernel in LEARNED_KERNELS:
        return LearnedFeatures(kernel, dim_head, heads)
    return DETERMINISTIC_KERNELS[kernel]()


def make_relative_kernel(
    options: AttentionOptions, heads: int, dim_head: int, num_features: int
) -> RelativeModule | None:
    """Create the relative kernel that the options of a layer select.

    A relative kernel is a weight that depends on the offset between query and key. Return None if
    the layer has no relative kernel.

    Args:
        options: Options of the layer.
        heads: Number of heads with the relative kernel.
        dim_head: Size of a head.
        num_features: Number of features that a rotary kernel rotates.

    Raises:
        ValueError: An option belongs to another relative kernel.
    """
    relative = options.relative
    kind = find_relative_kernel_class(relative)
    for argument, name in (("num_waves", "fourier"), ("rotary_normalizer", "rotary")):
        value = getattr(options, argument)
        if value is not None and relative != name:
            expected = f"None with relative={relative!r}, because it is an option of {name!r}"
            raise wrong_value(argument, value, expected)
    if kind is None:
        return None
    if isinstance(relative, RelativeModule):
        return relative
    if relative == "rotary" and num_features < 2:
        hint = "relative='rotary' rotates pairs of features."
        raise wrong_value("the number of features of kernel", num_features, "at least 2", hint)
    if options.rotary_normalizer is not None:
        check_name("rotary_normalizer", options.rotary_normalizer, ROTARY_NORMALIZERS)
    num_axes = options.num_axes
    if num_axes is None and kind.appends_features:
        num_axes = DEFAULT_NUM_AXES  # the sizes of content features depend on it
    return make_learned_relative_kernel(
        kind,
        num_axes=num_axes,
        heads=heads,
        dim_head=dim_head,
        num_features=options.num_features,
        num_waves=options.num_waves,
        normalizer=options.rotary_normalizer,
        num_pairs=num_features // 2,
    )
