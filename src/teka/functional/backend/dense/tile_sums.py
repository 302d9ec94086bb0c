"""Sums over all pairs of two grids with a separable kernel, and all their gradients, some rows at a time."""

import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from teka.functional.backend.transposed import transposed
from teka.functional.backend.wanted import Wanted

# Numbers of a tile of the matrix of weights: 512 KiB in float32, so that the three tiles that are worked on at a time
# stay in the second-level cache of a core. A tile has no fewer rows than a matrix product wants.
TILE_ELEMENTS = 2**17
LEAST_ROWS = 64


def tile_sums(
    query_features: Float[Tensor, "batch heads queries features"],
    key_features: Float[Tensor, "batch heads keys features"],
    value: Float[Tensor, "batch heads keys dim_value"],
    matrices: Sequence[Float[Tensor, "heads _ _"]],
) -> Float[Tensor, "batch heads queries channels"]:
    """Σ_j φ(q_i)ᵀφ(k_j) c_ij [v_j, 1] with c_ij = Π_axis C_axis[i, j], from L² (m + d) multiply-adds.

    c is a product of the axes' matrices: no exponential is taken of a pair.
    """
    batch, heads, num_queries, _ = query_features.shape
    output = value.new_empty(batch, heads, num_queries, value.shape[-1] + 1)
    tiles = Tiles(matrices, value.shape[2], value)
    for head in range(heads):
        keys_first = [transposed(one) for one in key_features[:, head]]
        queries, values = query_features[:, head].contiguous(), value[:, head].contiguous()
        for rows, factor in tiles.factors(head):
            weights = tiles.tile(0, rows)
            for sample in range(batch):
                torch.mm(queries[sample, rows], keys_first[sample], out=weights)
                weights.mul_(factor)
                torch.mm(weights, values[sample], out=output[sample, head, rows, :-1])
                torch.sum(weights, dim=-1, out=output[sample, head, rows, -1])
    return output


def tile_sums_gradients(
    gradient: Float[Tensor, "batch heads queries channels"],
    query_features: Float[Tensor, "batch heads queries features"],
    key_features: Float[Tensor, "batch heads keys features"],
    value: Float[Tensor, "batch heads keys dim_value"],
    matrices: Sequence[Float[Tensor, "heads _ _"]],
    wanted: Wanted,
) -> list[Tensor | None]:
    """Gradients of `tile_sums` for φ(q), φ(k), v and the logarithms of the matrices, from that of its output.

    With P = φ(q)φ(k)ᵀ and W = P ∘ c, the gradient of W is D = g [v, 1]ᵀ, that of P is D ∘ c, and that of log c is
    D ∘ W, which is summed over the other axes. P is made again: five products where the forward pass takes two.
    """
    batch, heads = query_features.shape[:2]
    given = (query_features, key_features, value)
    of_query, of_key, of_value = (torch.empty_like(one, memory_format=torch.contiguous_format) for one in given)
    of_logs = [torch.zeros_like(matrix) for matrix in matrices]
    tiles = Tiles(matrices, value.shape[2], value)
    for head in range(heads):
        queries, keys = query_features[:, head].contiguous(), key_features[:, head].contiguous()
        of_numerator, of_denominator = gradient[:, head, :, :-1].contiguous(), gradient[:, head, :, -1:]
        queries_first, keys_first, values_first, of_numerator_first = (
            [transposed(one) for one in given] for given in (queries, keys, value[:, head], of_numerator)
        )
        key_sums, value_sums = ([torch.zeros_like(one) for one in given] for given in (keys_first, values_first))
        for rows, factor in tiles.factors(head):
            products, of_products = tiles.tile(0, rows), tiles.tile(1, rows)
            for sample in range(batch):
                torch.mm(queries[sample, rows], keys_first[sample], out=products)
                torch.mm(of_numerator[sample, rows], values_first[sample], out=of_products)
                of_products.add_(of_denominator[sample, rows]).mul_(factor)
                if wanted.query_features:
                    torch.mm(of_products, keys[sample], out=of_query[sample, head, rows])
                if wanted.key_features:
                    key_sums[sample].addmm_(queries_first[sample][:, rows], of_products)
                if wanted.matrices:
                    tiles.add_to_axes(of_logs, head, rows, of_products.mul_(products))
                if wanted.value:
                    value_sums[sample].addmm_(of_numerator_first[sample][:, rows], products.mul_(factor))
        for sample in range(batch):
            of_key[sample, head], of_value[sample, head] = key_sums[sample].T, value_sums[sample].T
    asked = (wanted.query_features, wanted.key_features, wanted.value, *[wanted.matrices] * len(matrices))
    return [one if ask else None for one, ask in zip((of_query, of_key, of_value, *of_logs), asked, strict=True)]


class Tiles:
    """Rows of the matrix of all pairs, some at a time, in buffers that every tile uses anew.

    Args:
        matrices: The axes' matrices.
        num_keys: Number of keys.
        like: A tensor of the dtype.
    """

    def __init__(self, matrices: Sequence[Float[Tensor, "heads _ _"]], num_keys: int, like: Tensor) -> None:
        self._matrices, self._num_keys = matrices, num_keys
        query_sides = [matrix.shape[-2] for matrix in matrices]
        self._num_queries = math.prod(query_sides)
        self._rows = min(self._num_queries, max(LEAST_ROWS, TILE_ELEMENTS // num_keys))
        self._buffers = [like.new_empty(self._rows * num_keys) for _ in range(3)]
        cells = torch.arange(self._num_queries)
        self._cells = []
        for side in reversed(query_sides):
            self._cells.insert(0, cells % side)
            cells = torch.div(cells, side, rounding_mode="floor")

    def tile(self, place: int, rows: slice) -> Float[Tensor, "rows keys"]:
        """A buffer for some rows."""
        return self._buffers[place][: (rows.stop - rows.start) * self._num_keys].view(-1, self._num_keys)

    def factors(self, head: int) -> Iterator[tuple[slice, Float[Tensor, "rows keys"]]]:
        """c for all rows of a head, tile by tile."""
        for start in range(0, self._num_queries, self._rows):
            rows = slice(start, min(start + self._rows, self._num_queries))
            parts = [matrix[head][cells[rows]] for matrix, cells in zip(self._matrices, self._cells, strict=True)]
            factor = parts[0]
            for part in parts[1:-1]:
                factor = (factor[:, :, None] * part[:, None]).flatten(1)
            if len(parts) > 1:
                tile = self.tile(2, rows)
                torch.mul(factor[:, :, None], parts[-1][:, None], out=tile.unflatten(1, (factor.shape[1], -1)))
                factor = tile
            yield rows, factor

    def add_to_axes(
        self, totals: Sequence[Float[Tensor, "heads _ _"]], head: int, rows: slice, tile: Float[Tensor, "rows keys"]
    ) -> None:
        """Add a tile, summed over the keys' other axes, to the rows of a tensor for every axis."""
        key_sides = [matrix.shape[-1] for matrix in self._matrices]
        for axis, side in enumerate(key_sides):
            # One row of keys an axis: (rows, axes before, side, axes after).
            parted = tile.view(len(tile), math.prod(key_sides[:axis]), side, -1)
            totals[axis][head].index_add_(0, self._cells[axis][rows], parted.sum(dim=(1, 3)))
