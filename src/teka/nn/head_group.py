"""Which heads of an attention layer are computed together."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from teka.checks import check_sizes
from teka.errors import wrong_value
from teka.functional.kernel import Constant, Kernel
from teka.functional.relative import Relative
from teka.nn.relative import RelativeModule, relative_class


@dataclass(frozen=True)
class HeadGroup:
    """Heads of a layer that one call of `teka.functional.attention` computes.

    Args:
        kernel: Their content kernel, with the present parameters.
        relative: Their relative kernel, with the present parameters, or None.
        heads: Which they are.
        backend: The backend asked for.
        queries: Which of the layer's queries are theirs, or None if they look at none.
        keys: Which of the layer's keys are theirs, or None if they look at none.
    """

    kernel: Kernel
    relative: Relative | None
    heads: slice
    backend: str
    queries: slice | None
    keys: slice | None

    @property
    def name(self) -> str:
        """The kernels, "kernel × relative kernel"."""
        return pair_name(self.kernel, self.relative)

    @property
    def bound(self) -> float | None:
        """C with |out| ≤ C · max |v| whatever the tokens are, or None where nothing promises one."""
        return self.kernel.bound if self.relative is None else self.relative.bound_with(self.kernel)

    def part_of(
        self,
        query: Float[Tensor, "batch query_heads queries dim_head"] | None,
        key: Float[Tensor, "batch key_heads keys dim_head"] | None,
        value: Float[Tensor, "batch heads keys dim_value"],
        num_queries: int,
    ) -> tuple[
        Float[Tensor, "batch group_heads queries dim_head"],
        Float[Tensor, "batch group_heads keys dim_head"],
        Float[Tensor, "batch group_heads keys dim_value"],
    ]:
        """Queries, keys and values of these heads, out of what `Attention.project` gave.

        Where a head has no queries there are zeros, and where it has no keys the values or zeros: neither is looked at.

        Args:
            query: Queries of the layer.
            key: Keys of the layer.
            value: Values of the layer.
            num_queries: Number of tokens that attend.
        """
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
        return query, value if value.shape[-1] == width else nothing.expand(*value.shape[:3], width), value


def pair_name(kernel: Kernel, relative: Relative | None) -> str:
    """The name of a content kernel, or "kernel × relative kernel".

    Args:
        kernel: The content kernel.
        relative: The relative kernel, or None.
    """
    return kernel.name if relative is None else f"{kernel.name} × {relative.name}"


def count_position_heads(position_heads: int | None, relative: str | RelativeModule | None, heads: int) -> int:
    """How many of the heads attend by position alone.

    Args:
        position_heads: How many were asked for; None for the relative kernel's habit, half of the heads or none.
        relative: The relative kernel, a name, a module or None.
        heads: Number of heads.

    Raises:
        ValueError: A number that cannot be, or an unknown relative kernel.
    """
    kind = relative_class(relative)
    check_sizes({"position_heads": position_heads}, 0, or_none=True)
    if position_heads is None:
        if kind is None or not kind.has_own_heads:
            return 0
        if heads < 2:
            raise wrong_value("heads", heads, f"at least 2 with relative={relative!r}, which takes half of them")
        return heads // 2
    if kind is None and position_heads != 0:
        raise wrong_value("position_heads", position_heads, "None or 0 without a relative kernel")
    if kind is not None and kind.needs_content and position_heads != 0:
        expected = f"None or 0 with relative={relative!r}, which acts inside the content kernel"
        raise wrong_value("position_heads", position_heads, expected)
    if position_heads >= heads:
        expected = f"0 to {heads - 1}, fewer than heads = {heads}; kernel='constant' leaves content out of all heads"
        raise wrong_value("position_heads", position_heads, expected)
    return position_heads


def make_head_groups(
    kernel: Kernel, relative: Relative | None, *, heads: int, position_heads: int, uses_query: bool, backend: str
) -> tuple[HeadGroup, ...]:
    """The heads of a layer by what computes them, the ones with the relative kernel last.

    Args:
        kernel: Content kernel.
        relative: Relative kernel.
        heads: Number of heads.
        position_heads: How many of them, the last, attend by position alone and the others by content alone; with 0
            both kernels act in every head.
        uses_query: Whether the relative kernel looks at the query.
        backend: The backend asked for, of the heads with the relative kernel.
    """
    content = slice(0, heads - position_heads)
    keys = content if kernel.uses_content else None
    if position_heads == 0:
        return (HeadGroup(kernel, relative, content, backend, content if uses_query else keys, keys),)
    # What computes the relative kernel may not compute the others.
    plain = backend if backend in ("dense", "linear") else "auto"
    own = slice(-position_heads, None) if uses_query else None
    return (
        HeadGroup(kernel, None, content, plain, keys, keys),
        HeadGroup(Constant(), relative, slice(content.stop, heads), backend, own, None),
    )
