"""Products of the axes' matrices with maps on a grid, one axis after another, in buffers that stay within the cache."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

# Numbers of φ ⊗ [v, 1] that are worked on at a time: 3/4 MiB in float32, so that what a product reads and writes stays
# in the second-level cache of a core; a pass over it then costs a tenth of the product.
CACHED_ELEMENTS = 3 * 2**16


class AxisProduct:
    """The product with the matrix of one axis: the axes after it are already the queries', those before it the keys'.

    Args:
        axis: The axis.
        matrices: The matrices of all axes, shape (…, query side, key side).
    """

    def __init__(self, axis: int, matrices: Sequence[Tensor]) -> None:
        query_sides, key_sides = ([matrix.shape[place] for matrix in matrices] for place in (-2, -1))
        self.axis = axis
        self.query_side, self.key_side = query_sides[axis], key_sides[axis]
        self.before, self.after = math.prod(key_sides[:axis]), math.prod(query_sides[axis + 1 :])

    @property
    def key_cells(self) -> int:
        """Cells of a map before the product."""
        return self.before * self.key_side * self.after

    @property
    def query_cells(self) -> int:
        """Cells of a map after the product."""
        return self.before * self.query_side * self.after

    def view_keys(self, maps: Tensor) -> Float[Tensor, "rows key_side after"]:
        """Maps before the product, as many small matrices."""
        return maps.view(-1, self.key_side, self.after)

    def view_queries(self, maps: Tensor) -> Float[Tensor, "rows query_side after"]:
        """Maps after the product, as many small matrices."""
        return maps.view(-1, self.query_side, self.after)


def axis_products(matrices: Sequence[Tensor]) -> list[AxisProduct]:
    """A product for every axis, the last axis first: there it is one product from the right over all maps together."""
    return [AxisProduct(axis, matrices) for axis in reversed(range(len(matrices)))]


def multiply(matrix: Float[Tensor, "rows columns"], maps: Tensor, out: Tensor) -> None:
    """The matrix times every one of the maps, shapes (R, columns, A) and (R, rows, A)."""
    if maps.shape[-1] == 1:
        torch.mm(maps[..., 0], matrix.T, out=out[..., 0])
    else:
        torch.bmm(matrix.expand(len(maps), *matrix.shape), maps, out=out)


class Maps:
    """Maps of some features and channels before, between and after the products, in buffers.

    They are kept as (features, channels, cells): every product is then one over whole matrices as they lie in memory,
    and every pass over numbers runs along the cells.

    Args:
        products: The products.
        buffers: Memory for the places before, between and after them, taken in turn: as many as places if all are to be
            kept, or two if only the last is.
        num_features: Features.
        num_channels: Channels.
    """

    def __init__(
        self, products: Sequence[AxisProduct], buffers: Sequence[Tensor], num_features: int, num_channels: int
    ) -> None:
        self.products = products
        shape = (num_features, num_channels)
        cells = [products[0].key_cells, *(product.query_cells for product in products)]
        at = [
            buffers[place % len(buffers)][: math.prod(shape) * size].view(*shape, size)
            for place, size in enumerate(cells)
        ]
        self.keys: Float[Tensor, "features channels keys"] = at[0]
        self.queries: Float[Tensor, "features channels queries"] = at[-1]
        self._ins = [product.view_keys(maps) for product, maps in zip(products, at[:-1], strict=True)]
        self._outs = [product.view_queries(maps) for product, maps in zip(products, at[1:], strict=True)]

    def push(self, matrices: Sequence[Float[Tensor, "_ _"]]) -> None:
        """From the keys' grid to the queries'."""
        for place, product in enumerate(self.products):
            multiply(matrices[product.axis], self._ins[place], self._outs[place])

    def pull(self, matrices: Sequence[Float[Tensor, "_ _"]], sums: "MatrixSums | None") -> None:
        """The adjoint of `push`, from the queries' grid, where the gradient was written, to the keys'.

        At every place the gradient takes the place of the map, once the two have given the gradient of the matrix.
        """
        for place in reversed(range(len(self.products))):
            if sums is not None:
                sums.add(place, self._outs[place], self._ins[place])
            multiply(matrices[self.products[place].axis].T, self._outs[place], self._ins[place])


class Workspace:
    """Buffers that every chunk of features and channels uses anew.

    Args:
        matrices: The matrices of all axes.
        num_features: Features m.
        num_channels: Channels of [v, 1].
        keep: Whether maps between the products are kept, for `Maps.pull`.
    """

    def __init__(
        self, matrices: Sequence[Float[Tensor, "heads _ _"]], num_features: int, num_channels: int, *, keep: bool
    ) -> None:
        self.products = axis_products(matrices)
        cells = max(self.products[0].key_cells, *(product.query_cells for product in self.products))
        self.channels = _equal_part(num_channels, CACHED_ELEMENTS // cells)
        self.features = _equal_part(num_features, CACHED_ELEMENTS // (cells * self.channels))
        size = self.features * self.channels * cells
        num_buffers = len(self.products) + 1 if keep else 2
        self._buffers = [matrices[0].new_empty(size) for _ in range(num_buffers)]
        self._maps: dict[tuple[int, int], Maps] = {}

    def maps(self, num_features: int, num_channels: int) -> Maps:
        """Maps for a chunk of this size."""
        sizes = (num_features, num_channels)
        if sizes not in self._maps:
            self._maps[sizes] = Maps(self.products, self._buffers, *sizes)
        return self._maps[sizes]


class MatrixSums:
    """Gradients of the matrices of one head, summed over chunks and samples.

    Args:
        workspace: The buffers whose maps enter.
        like: A tensor of the dtype.
    """

    def __init__(self, workspace: Workspace, like: Tensor) -> None:
        num_maps = workspace.features * workspace.channels
        self._sums = [
            like.new_zeros(1 if product.after == 1 else num_maps * product.before, product.query_side, product.key_side)
            for product in workspace.products
        ]

    def add(self, place: int, gradient: Float[Tensor, "rows _ after"], maps: Float[Tensor, "rows _ after"]) -> None:
        """Add the products of the gradient after and the maps before one multiplication."""
        total = self._sums[place]
        if maps.shape[-1] == 1:
            total[0].addmm_(gradient[..., 0].T, maps[..., 0])
        else:
            # One product a map, added up in the end: one product over all maps would have to turn them round first.
            total[: len(maps)].baddbmm_(gradient, maps.mT)

    def totals(self) -> list[Float[Tensor, "query_side key_side"]]:
        """The gradients, in the order of the products."""
        return [total.sum(dim=0) for total in self._sums]


def _equal_part(number: int, largest: int) -> int:
    """The size of parts of about equal size that are no larger than `largest`, and at least 1."""
    num_parts = -(-number // max(1, min(number, largest)))
    return -(-number // num_parts)
