"""The heads of a layer: which are computed together, from tokens to heads and back."""

from dataclasses import dataclass

from teka._compat import replace
from teka.checks import check_name, check_sizes
from teka.errors import wrong_value
from teka.functional import KERNELS, ClippedFeatures, Kernel, Relative
from teka.functional.backends import Cost
from teka.functional.dispatch import Workload, backend_costs
from teka.functional.kernels import DETERMINISTIC_KERNELS, LEARNED_KERNELS, RANDOM_KERNELS
from teka.functional.plan import Plan
from teka.functional.positions import Positions, make_positions
from teka.functional.relative.rotary import ROTARY_NORMALIZERS
from teka.functional.relative.rotation import NUM_FREQUENCIES
from teka.functional.shapes import Keys, Outputs, Queries, Values
from teka.grid import Grid
from teka.nn.features import ContentKernel, LearnedFeatures, RandomFeatures
from teka.nn.inputs import AllKeys, AllQueries, AllValues, AttentionInputs
from teka.nn.options import AttentionOptions
from teka.nn.relative import RelativeModule, from_known_options, relative_class


@dataclass(frozen=True)
class HeadGroup:
    """Heads of a layer that one plan computes."""

    kernel: Kernel  # their content kernel, with the present parameters
    relative: Relative | None  # their relative kernel, with the present parameters, or None
    heads: slice  # which they are
    backend: str  # the backend asked for
    queries: slice | None  # which of the layer's queries are theirs, or None if they look at none
    keys: slice | None  # which of the layer's keys are theirs, or None if they look at none
    dim: int  # size of a query and a key
    dim_value: int  # size of a value
    is_causal: bool  # whether no query sees a later key

    @property
    def num_heads(self) -> int:
        """How many they are."""
        return self.heads.stop - self.heads.start

    @property
    def name(self) -> str:
        """The kernels, "kernel × relative kernel"."""
        return pair_name(self.kernel, self.relative)

    @property
    def bound(self) -> float | None:
        """C with |out| ≤ C · max |v| whatever the tokens are, or None where nothing promises one."""
        return self.kernel.bound if self.relative is None else self.relative.bound_with(self.kernel)

    def part_of(
        self, query: AllQueries | None, key: AllKeys | None, value: AllValues, num_queries: int
    ) -> tuple[Queries, Keys, Values]:
        """Queries, keys and values of these heads, out of what `Attention.project` gave, or what stands in."""
        value = value[:, self.heads]
        other = value if key is None else key
        width = (other if query is None else query).shape[-1]
        nothing = value.new_zeros(1)
        if query is None or self.queries is None:
            query = nothing.expand(*value.shape[:2], num_queries, width)
        else:
            query = query[:, self.queries]
        if key is not None and self.keys is not None:
            return query, key[:, self.keys], value
        return (
            query,
            value if value.shape[-1] == width else nothing.expand(*value.shape[:3], width),
            value,
        )

    def attend(self, query: Queries, key: Keys, value: Values, scene: AttentionInputs) -> Outputs:
        """What these heads give of the tokens of a scene."""
        sizes = {"heads": query.shape[1], "dim": query.shape[-1]}
        masks = {"key_mask": scene.key_mask, "query_mask": scene.query_mask}
        if scene.group is None:
            plan = Plan.of_kernels(
                self.kernel, self.relative, scene.positions, **sizes, is_causal=self.is_causal
            )
            if scene.sequences is not None:
                return plan.attend_packed(query, key, value, scene.sequences, backend=self.backend)
            return plan.attend(query, key, value, backend=self.backend, **masks)
        # A part of a torus has the frequencies of the whole.
        relative = None if self.relative is None else self.relative.for_positions(scene.whole)
        plan = Plan.of_kernels(
            self.kernel, relative, scene.positions, **sizes, is_causal=self.is_causal
        )
        return replace(plan, backend="linear", group=scene.group).evaluate(
            query, key, value, **masks
        )

    def costs(
        self,
        grid: Grid | None,
        *,
        num_prefix_tokens: int = 0,
        context_grid: Grid | None = None,
        batch: int = 1,
    ) -> dict[str, Cost]:
        """Cost of every backend that can compute these heads between the tokens of grids, by default of one."""
        check_sizes({"num_prefix_tokens": num_prefix_tokens}, 0)
        check_sizes({"batch": batch})
        key = None if context_grid is None else make_positions("context_", context_grid, None)
        positions = Positions(
            make_positions("", grid, None).grid, key=key, num_prefix_tokens=num_prefix_tokens
        )
        if self.relative is not None and grid is None:
            raise wrong_value("grid", None, "a teka.Grid for a layer with a relative kernel")
        lengths = (
            num_prefix_tokens + (one.num_placed or 1) for one in (positions, positions.of_keys)
        )
        return self.costs_at(positions, *lengths, batch=batch)

    def costs_at(
        self, positions: Positions, num_queries: int, num_keys: int, *, batch: int
    ) -> dict[str, Cost]:
        """The same for tokens at any places."""
        relative = self.relative
        if relative is not None:
            relative.check(
                heads=self.num_heads, dim=self.dim, num_axes=positions.num_axes, kernel=self.kernel
            )
            relative = relative.for_positions(positions)
        sizes = (
            num_queries,
            num_keys,
            self.dim,
            self.dim_value,
            self.is_causal,
            self.num_heads,
            batch,
        )
        return backend_costs(Workload(self.kernel, relative, positions, *sizes))


def pair_name(kernel: Kernel, relative: Relative | None) -> str:
    """The name of a content kernel, or "kernel × relative kernel"."""
    return kernel.name if relative is None else f"{kernel.name} × {relative.name}"


def count_position_heads(
    position_heads: int | None, relative: str | RelativeModule | None, heads: int
) -> int:
    """How many of the heads attend by position alone; by default the relative kernel's habit, half of them or none."""
    kind = relative_class(relative)
    check_sizes({"position_heads": position_heads}, 0, or_none=True)
    if position_heads is None:
        if kind is None or not kind.has_position_heads:
            return 0
        if heads < 2:
            raise wrong_value(
                "heads", heads, f"at least 2 with relative={relative!r}, which takes half of them"
            )
        return heads // 2
    if kind is None and position_heads != 0:
        raise wrong_value("position_heads", position_heads, "None or 0 without a relative kernel")
    is_inside = kind is not None and (kind.rotates_features or kind.appends_features)
    if is_inside and position_heads != 0:
        expected = f"None or 0 with relative={relative!r}, which acts inside the content kernel"
        raise wrong_value("position_heads", position_heads, expected)
    if position_heads >= heads:
        expected = f"0 to {heads - 1}, fewer than heads = {heads}; kernel='constant' leaves content out of all heads"
        raise wrong_value("position_heads", position_heads, expected)
    return position_heads


def make_content_kernel(options: AttentionOptions, heads: int, dim_head: int) -> ContentKernel:
    """The content kernel of so many heads, or a new one of that name; a relative kernel may lengthen its vectors."""
    kernel, relative, num_features = options.kernel, options.relative, options.num_features
    random = isinstance(kernel, str) and kernel in RANDOM_KERNELS
    kind = relative_class(relative)
    for_positions = kind is not None and issubclass(kind, ClippedFeatures)
    if num_features is not None and not random and not for_positions:
        raise wrong_value(
            "num_features",
            num_features,
            f"None with kernel={kernel!r}, which has no random features",
        )
    if options.projection is not None and not random:
        expected = f"None with kernel={kernel!r}, which has no random features by name"
        raise wrong_value("projection", options.projection, expected)
    if isinstance(kernel, LearnedFeatures) and (kernel.dim, kernel.heads) != (dim_head, heads):
        expected = f"dim={dim_head} and heads={heads}, as many as attend by content"
        raise wrong_value("kernel", kernel, expected)
    if isinstance(kernel, Kernel | RandomFeatures | LearnedFeatures):
        return kernel
    if random:
        joint = 2 * options.num_axes * NUM_FREQUENCIES if relative == "rotation_joint" else 0
        joint = relative.num_position_features if isinstance(relative, RelativeModule) else joint
        draws = {"num_features": num_features, "projection": options.projection or "orthogonal"}
        return RandomFeatures(kernel, dim_head + joint, **draws)
    check_name("kernel", kernel, KERNELS)
    if kernel in LEARNED_KERNELS:
        return LearnedFeatures(kernel, dim_head, heads)
    return DETERMINISTIC_KERNELS[kernel]()


def make_relative_module(
    options: AttentionOptions, heads: int, dim_head: int, features: int
) -> RelativeModule | None:
    """Return the relative kernel of the options: the given module, or a new one of that name.

    Raises:
        ValueError: If an option belongs to another relative kernel.
    """
    relative, rotary_normalizer = options.relative, options.rotary_normalizer
    kind = relative_class(relative)
    for argument, name in (("num_waves", "fourier"), ("rotary_normalizer", "rotary")):
        value = getattr(options, argument)
        if value is not None and relative != name:
            expected = f"None with relative={relative!r}; {name!r} by name takes it"
            raise wrong_value(argument, value, expected)
    if kind is None:
        return None
    if isinstance(relative, RelativeModule):
        return relative
    if relative == "rotary" and features < 2:
        expected = "at least 2 with relative='rotary', which rotates pairs of them"
        raise wrong_value("the number of features of kernel", features, expected)
    if rotary_normalizer is not None:
        check_name("rotary_normalizer", rotary_normalizer, ROTARY_NORMALIZERS)
    return from_known_options(
        kind,
        num_axes=options.num_axes,
        heads=heads,
        dim_head=dim_head,
        num_features=options.num_features,
        num_waves=options.num_waves,
        normalizer=rotary_normalizer,
        num_pairs=features // 2,
    )


def make_kernels(
    options: AttentionOptions, heads: int, dim_head: int, position_heads: int = 0
) -> tuple[ContentKernel, RelativeModule | None]:
    """The content kernel and the relative kernel of so many heads, with their parameters; of what fits each other."""
    kernel = make_content_kernel(options, heads - position_heads, dim_head)
    present = kernel if isinstance(kernel, Kernel) else kernel()
    rotated = present.features if options.relative == "rotary" else None
    num_features = dim_head if rotated is None else rotated.num_features(dim_head)
    relative = make_relative_module(options, position_heads or heads, dim_head, num_features)
    if (
        present.normalizes_by_count
        and relative is not None
        and relative.kernel_class.rotates_features
    ):
        expected = f"one that does not rotate, or None, with kernel={present.name!r}, which counts keys by c"
        raise wrong_value("relative", options.relative, expected)
    if options.rotary_normalizer is not None and rotated is None:
        expected = f"None with kernel={present.name!r}, whose denominator is the sum of its weights"
        raise wrong_value("rotary_normalizer", options.rotary_normalizer, expected)
    return kernel, relative
