"""The dense backend: every pair of tokens, O(L²) work; the truth for the others, in tiles of a CPU's cache or fused."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from teka._compat import has_numbers, is_dynamic, is_transformed
from teka.functional.backends import BYTES, Cost, WeightedSums, checkpointed, transposed, with_ones
from teka.functional.backends.custom_ops import MAPS
from teka.functional.backends.toeplitz import AxisForm, plain_axis_sums, runs_by_hand
from teka.functional.kernels.base import Pairwise, apply_log_factor, without_keys
from teka.functional.shapes import (
    Gradients,
    KeyFeatures,
    Matrices,
    Outputs,
    Queries,
    QueryFeatures,
    Values,
)
from teka.grid import Grid

# Numbers of the matrix of weights that are held at once: 32 MiB in float32. Of a larger one rows are made again.
MATRIX_ELEMENTS = 2**23
# Pairs of placed tokens from which a separable kernel, without mask or causality, is worked on in tiles of the cache.
LEAST_TILED_PAIRS = 2**16
# Numbers of a tile of the matrix of weights: 512 KiB in float32, of which the second-level cache of a core holds three.
TILE_ELEMENTS = 2**17
# Rounding errors of float64 scores up to this are far below 1.
LARGEST_SCORE = 1e12
LEAST_ROWS = 64  # of a tile, as matrix products want


def dense_cost(
    num_queries: int, num_keys: int, dense_size: int, dim_value: int, *, passes: int
) -> Cost:
    """The weights, their product with the values, and some passes over the L × L matrix, read and written."""
    pairs = num_queries * num_keys
    return Cost(pairs * (dense_size + dim_value + 1), pairs * passes * 2 * BYTES)


def matrix_attention(
    pairs: Pairwise, log_rows: Callable[[Queries, slice], Tensor] | None
) -> Outputs:
    """From the matrix of weights κ(q_i, k_j) c(x_i − x_j; q_i), some rows at a time; `log_rows` is None for c = 1."""
    query, value, kernel = pairs.query, pairs.value, pairs.kernel
    left, right, log_scale = pairs.vectors()
    keep, empty = pairs.keep(), None
    if keep is not None and (pairs.within is not None or pairs.key_mask is not None):
        # A query all of whose keys are dropped: it is given every key here, and 0 in the end.
        empty = without_keys(keep)
        keep = keep | empty
    features = kernel.features
    if features is not None and not kernel.counts_keys:
        # A column of ones sums the weights in the same product: one pass fewer over the matrix.
        value = with_ones(value)

    def attend(rows: slice, query: Tensor, left: Tensor, right: Tensor, value: Tensor) -> Tensor:
        log_relative = None if log_rows is None else log_rows(query, rows)
        part = keep if keep is None or keep.shape[2] == 1 else keep[:, :, rows]
        products = left[:, :, rows] @ right.transpose(-2, -1)
        factors = {"log_relative": log_relative, "log_scale": log_scale, "keep": part}
        mixed = kernel.dense_weights(products, **factors) @ value
        if not kernel.counts_keys:
            return mixed
        shares = apply_log_factor(torch.ones_like(products), *factors.values())
        return torch.cat([mixed, shares.sum(dim=-1, keepdim=True)], dim=-1)

    batch, heads, num_queries, _ = query.shape
    # A graph of any size has all rows at once.
    is_whole = is_dynamic(batch, num_queries, value.shape[2])
    tile = (
        num_queries
        if is_whole
        else max(1, MATRIX_ELEMENTS // max(1, batch * heads * value.shape[2]))
    )
    if is_whole or tile >= num_queries:
        output = attend(slice(0, num_queries), query, left, right, value)
    else:
        parts = [
            slice(start, min(start + tile, num_queries)) for start in range(0, num_queries, tile)
        ]
        output = torch.cat(
            [checkpointed(attend, rows, query, left, right, value) for rows in parts], dim=2
        )
    if features is not None or kernel.counts_keys:
        nonnegative = kernel.counts_keys or (features is not None and features.nonnegative)
        output = WeightedSums.of_channels(output).divide(nonnegative=nonnegative)
    return output if empty is None else output.masked_fill(empty, 0.0)


def fused_softmax(pairs: Pairwise) -> Outputs:
    """Softmax attention by torch's fused kernel, which holds no L × L matrix; under transforms, unfused."""
    query, key, value, mask, empty = pairs.query, pairs.key, pairs.value, None, None
    size = value.shape[-1]
    if query.shape[-1] > size:
        value = pad(value, (0, query.shape[-1] - size))
    if pairs.key_mask is not None:
        keep = pairs.keep()
        assert keep is not None
        empty = without_keys(keep)
        mask = keep | empty
    is_fused = not is_transformed(query, key, value) and not _loses_digits(query, key, pairs.scale)
    options = {
        "attn_mask": mask,
        "is_causal": pairs.is_causal and mask is None,
        "scale": pairs.scale,
    }
    with nullcontext() if is_fused else sdpa_kernel(SDPBackend.MATH):
        output = scaled_dot_product_attention(query, key, value, **options)
    return output[..., :size] if empty is None else output[..., :size].masked_fill(empty, 0.0)


def _loses_digits(query: Tensor, key: Tensor, scale: float) -> bool:
    """Return True if float64 scores may be so large that the fused backward pass, which makes them again, overflows."""
    if query.dtype != torch.float64 or not query.is_cpu or not has_numbers(query):
        return False
    return bool(
        scale * torch.linalg.vector_norm(query.detach()) * torch.linalg.vector_norm(key.detach())
        > LARGEST_SCORE
    )


def products_with_prefix(left: Tensor, right: Tensor, placed: Tensor, first: int) -> Tensor:
    """Inner products of all pairs: those given of placed tokens, and of vectors where one of the two is before them."""
    rows = torch.cat([left[:, :, first:] @ right[:, :, :first].transpose(-2, -1), placed], dim=-1)
    return torch.cat([left[:, :, :first] @ right.transpose(-2, -1), rows], dim=2)


def tiles_fit(query_grid: Grid, key_grid: Grid, query: Queries) -> bool:
    """Whether the pairs of two grids are many, and worked on in a CPU's cache."""
    return runs_by_hand(query) and query_grid.num_tokens * key_grid.num_tokens >= LEAST_TILED_PAIRS


class TileForm(AxisForm):
    """φ(q), φ(k), v, log C_1, …, log C_n → Σ_j φ(q_i)ᵀφ(k_j) Π_axis C_axis[i, j] [v_j, 1], in tiles."""

    @staticmethod
    def plain(
        query_features: Tensor, key_features: Tensor, value: Tensor, *log_matrices: Tensor
    ) -> Tensor:
        """The same sums by torch's differentiable operations."""
        matrices = [torch.exp(matrix) for matrix in log_matrices]
        return plain_axis_sums(query_features, key_features, with_ones(value), *matrices)

    def value(self, *tensors: Tensor) -> Tensor:
        query_features, key_features, value, *log_matrices = tensors
        return tile_sums(
            query_features, key_features, value, [torch.exp(matrix) for matrix in log_matrices]
        )

    def new_outputs(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensors[2].new_empty(*tensors[0].shape[:3], tensors[2].shape[-1] + 1)]

    def output_gradients(
        self,
        gradient: Tensor,
        tensors: Sequence[Tensor],
        outputs: Sequence[Tensor],
        needs: Sequence[bool],
    ) -> Gradients:
        return tile_sums_gradients(
            gradient, tensors[:3], [torch.exp(matrix) for matrix in tensors[3:]], needs
        )

    def tangent(self, tensors: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> Tensor:
        """That of the sums as a form of the matrices, of which it is linear, and of values with ones."""
        matrices = [torch.exp(matrix) for matrix in tensors[3:]]
        *of_features, of_value = tangents[:3]
        of_value = None if of_value is None else pad(of_value, (0, 1))
        of_logs = zip(tangents[3:], matrices, strict=True)
        of_matrices = [None if tangent is None else tangent * matrix for tangent, matrix in of_logs]
        inputs = (*tensors[:2], with_ones(tensors[2]), *matrices)
        return AxisForm().tangent(inputs, (*of_features, of_value, *of_matrices))


MAPS[TileForm.__name__] = TileForm()


def tile_sums(
    query_features: QueryFeatures, key_features: KeyFeatures, value: Values, matrices: Matrices
) -> Float[Tensor, "batch heads queries channels"]:
    """Σ_j φ(q_i)ᵀφ(k_j) c_ij [v_j, 1], c_ij = Π_axis C_axis[i, j], from L² (m + d) multiply-adds and no exponential."""
    batch, heads, num_queries, _ = query_features.shape
    output = value.new_empty(batch, heads, num_queries, value.shape[-1] + 1)
    tiles = Tiles(matrices, value)
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
    gradient: Tensor, given: Sequence[Tensor], matrices: Matrices, needs: Sequence[bool]
) -> Gradients:
    """Gradients of `tile_sums`, of W = P ∘ c with P = φ(q)φ(k)ᵀ: D = g [v, 1]ᵀ of W, D ∘ c of P, and D ∘ W of log c."""
    query_features, key_features, value = given
    batch, heads = query_features.shape[:2]
    of_query, of_key, of_value = (
        torch.empty_like(one, memory_format=torch.contiguous_format) for one in given
    )
    of_logs = [torch.zeros_like(matrix) for matrix in matrices]
    tiles = Tiles(matrices, value)
    for head in range(heads):
        queries, keys = query_features[:, head].contiguous(), key_features[:, head].contiguous()
        of_numerator, of_denominator = (
            gradient[:, head, :, :-1].contiguous(),
            gradient[:, head, :, -1:],
        )
        queries_first, keys_first, values_first, of_numerator_first = (
            [transposed(one) for one in each]
            for each in (queries, keys, value[:, head], of_numerator)
        )
        key_sums, value_sums = (
            [torch.zeros_like(one) for one in each] for each in (keys_first, values_first)
        )
        for rows, factor in tiles.factors(head):
            products, of_products = tiles.tile(0, rows), tiles.tile(1, rows)
            for sample in range(batch):
                torch.mm(queries[sample, rows], keys_first[sample], out=products)
                torch.mm(of_numerator[sample, rows], values_first[sample], out=of_products)
                of_products.add_(of_denominator[sample, rows]).mul_(factor)
                if needs[0]:
                    torch.mm(of_products, keys[sample], out=of_query[sample, head, rows])
                if needs[1]:
                    key_sums[sample].addmm_(queries_first[sample][:, rows], of_products)
                if any(needs[3:]):
                    tiles.add_to_axes(of_logs, head, rows, of_products.mul_(products))
                if needs[2]:
                    value_sums[sample].addmm_(
                        of_numerator_first[sample][:, rows], products.mul_(factor)
                    )
        for sample in range(batch):
            of_key[sample, head], of_value[sample, head] = key_sums[sample].T, value_sums[sample].T
    return [
        one if need else None
        for one, need in zip((of_query, of_key, of_value, *of_logs), needs, strict=True)
    ]


class Tiles:
    """Rows of the matrix of all pairs, some at a time, in buffers that every tile uses anew."""

    def __init__(self, matrices: Matrices, value: Values) -> None:
        self._matrices, self._num_keys = matrices, value.shape[2]
        query_sides = [matrix.shape[-2] for matrix in matrices]
        self._num_queries = math.prod(query_sides)
        self._rows = min(self._num_queries, max(LEAST_ROWS, TILE_ELEMENTS // self._num_keys))
        self._buffers = [value.new_empty(self._rows * self._num_keys) for _ in range(3)]
        self._cells = torch.unravel_index(
            torch.arange(self._num_queries, device=value.device), query_sides
        )

    def tile(self, place: int, rows: slice) -> Float[Tensor, "rows keys"]:
        """A buffer for some rows."""
        return self._buffers[place][: (rows.stop - rows.start) * self._num_keys].view(
            -1, self._num_keys
        )

    def factors(self, head: int) -> Iterator[tuple[slice, Float[Tensor, "rows keys"]]]:
        """c for all rows of a head, tile by tile."""
        for start in range(0, self._num_queries, self._rows):
            rows = slice(start, min(start + self._rows, self._num_queries))
            parts = [
                matrix[head][cells[rows]]
                for matrix, cells in zip(self._matrices, self._cells, strict=True)
            ]
            factor = parts[0]
            for part in parts[1:-1]:
                factor = (factor[:, :, None] * part[:, None]).flatten(1)
            if len(parts) > 1:
                tile = self.tile(2, rows)
                torch.mul(
                    factor[:, :, None],
                    parts[-1][:, None],
                    out=tile.unflatten(1, (factor.shape[1], -1)),
                )
                factor = tile
            yield rows, factor

    def add_to_axes(
        self, totals: Matrices, head: int, rows: slice, tile: Float[Tensor, "rows keys"]
    ) -> None:
        """Add a tile, summed over the keys' other axes, to the rows of a tensor for every axis."""
        key_sides = [matrix.shape[-1] for matrix in self._matrices]
        for axis, side in enumerate(key_sides):
            # One row of keys an axis: (rows, axes before, side, axes after).
            parted = tile.view(len(tile), math.prod(key_sides[:axis]), side, -1)
            totals[axis][head].index_add_(0, self._cells[axis][rows], parted.sum(dim=(1, 3)))
