"""The dense backend: every pair of tokens, O(L²) work. It is the truth for the others.

A separable kernel between many cells of two grids is worked on in tiles of the cache of a CPU; softmax by torch's fused
kernel.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd import Function
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from teka._compat import is_plain_eager
from teka.functional.backend import BYTES, Cost, Sums, checkpointed, transposed, with_ones
from teka.functional.backend.toeplitz import AxisForm, fold_into_heads, plain_axis_sums, runs_by_hand
from teka.functional.kernel.base import (
    Kernel,
    KeyFeatures,
    KeyMask,
    Keys,
    LogRelative,
    Outputs,
    Pairs,
    Queries,
    QueryFeatures,
    Values,
    pair_mask,
)
from teka.grid import Grid

# Numbers of the matrix of weights that are held at once: 32 MiB in float32. A larger matrix is taken in rows, which are
# made again in the backward pass, so that memory is O(L).
MATRIX_ELEMENTS = 2**23
# Pairs of placed tokens from which a separable kernel is worked on in tiles of the cache. With fewer, and with masks or
# causality, the matrix is formed as it stands in the equation.
LEAST_TILED_PAIRS = 2**16
# Numbers of a tile of the matrix of weights: 512 KiB in float32, so that the three tiles that are worked on at a time
# stay in the second-level cache of a core. A tile has no fewer rows than a matrix product wants.
TILE_ELEMENTS = 2**17
LEAST_ROWS = 64


def dense_cost(num_queries: int, num_keys: int, dense_size: int, dim_value: int, *, passes: int) -> Cost:
    """The weights, their product with the values, and some passes over the L × L matrix, read and written."""
    pairs = num_queries * num_keys
    return Cost(pairs * (dense_size + dim_value + 1), pairs * passes * 2 * BYTES)


def matrix_attention(
    query: Queries,
    key: Keys,
    value: Values,
    kernel: Kernel,
    log_rows: Callable[[Queries, slice], LogRelative] | None,
    *,
    scale: float,
    key_mask: KeyMask | None,
    is_causal: bool,
) -> Outputs:
    """Attention from the matrix of weights κ(q_i, k_j) · c(x_i − x_j; q_i), some rows at a time.

    `log_rows` gives log c of some rows of the matrix, from all queries; None is for c = 1.
    """
    left, right, log_scale = kernel.dense_vectors(query, key, scale=scale, key_mask=key_mask, is_causal=is_causal)
    keep = pair_mask(key_mask, query.shape[2], key.shape[2], is_causal=is_causal, like=query)
    empty = None
    if is_causal and key_mask is not None and keep is not None:
        # A query all of whose keys are dropped: it is given every key here, and 0 in the end.
        empty = without_keys(keep)
        keep = keep | empty
    features = kernel.features
    if features is not None:
        # A column of ones sums the weights in the same product: one pass fewer over the matrix.
        value = with_ones(value)

    def attend(rows: slice, query: Tensor, left: Tensor, right: Tensor, value: Tensor) -> Tensor:
        log_relative = None if log_rows is None else log_rows(query, rows)
        part = keep if keep is None or keep.shape[2] == 1 else keep[:, :, rows]
        products = left[:, :, rows] @ right.transpose(-2, -1)
        return kernel.dense_weights(products, log_relative=log_relative, log_scale=log_scale, keep=part) @ value

    num_queries = query.shape[2]
    tile = max(1, MATRIX_ELEMENTS // max(1, query.shape[0] * query.shape[1] * key.shape[2]))
    if tile >= num_queries:
        output = attend(slice(0, num_queries), query, left, right, value)
    else:
        tiles = []
        for start in range(0, num_queries, tile):
            arguments = (slice(start, min(start + tile, num_queries)), query, left, right, value)
            tiles.append(checkpointed(attend, *arguments))
        output = torch.cat(tiles, dim=2)
    if features is not None:
        total = output[..., -1] if empty is None else output[..., -1].masked_fill(empty[..., 0], 1.0)
        output = Sums(output[..., :-1], total).divide(nonnegative=features.nonnegative)
    return output if empty is None else output.masked_fill(empty, 0.0)


def fused_softmax(
    query: Queries, key: Keys, value: Values, *, scale: float, key_mask: KeyMask | None, is_causal: bool = False
) -> Outputs:
    """Softmax attention by torch's fused kernel, which holds no L × L matrix.

    The kernel wants values of the size of the keys; narrower ones are padded. It has first derivatives only: where a
    transform of torch.func or forward-mode differentiation is at work, torch's unfused formula is taken.
    """
    if not torch.compiler.is_compiling() and not is_plain_eager(query, key, value):
        with sdpa_kernel(SDPBackend.MATH):
            return _fused_softmax(query, key, value, scale=scale, key_mask=key_mask, is_causal=is_causal)
    return _fused_softmax(query, key, value, scale=scale, key_mask=key_mask, is_causal=is_causal)


def _fused_softmax(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, key_mask: Tensor | None, is_causal: bool
) -> Tensor:
    size = value.shape[-1]
    if query.shape[-1] > size:
        value = pad(value, (0, query.shape[-1] - size))
    if key_mask is None:
        output = scaled_dot_product_attention(query, key, value, is_causal=is_causal, scale=scale)
    else:
        keep = pair_mask(key_mask, query.shape[2], key.shape[2], is_causal=is_causal, like=query)
        assert keep is not None
        empty = without_keys(keep)
        output = scaled_dot_product_attention(query, key, value, attn_mask=keep | empty, scale=scale)
        output = output.masked_fill(empty, 0.0) if is_causal else output
    return output[..., :size]


def without_keys(keep: Bool[Tensor, "batch 1 queries keys"]) -> Bool[Tensor, "batch 1 queries 1"]:
    """The queries that keep no key."""
    # A sum: for `any` Inductor of PyTorch 2.6 writes C++ that does not compile.
    return keep.sum(dim=-1, keepdim=True) == 0


def products_with_prefix(left: Tensor, right: Tensor, placed: Tensor, first: int) -> Pairs:
    """Inner products of all pairs: those given of placed tokens, and of vectors where one of the two is before them."""
    rows = torch.cat([left[:, :, first:] @ right[:, :, :first].transpose(-2, -1), placed], dim=-1)
    return torch.cat([left[:, :, :first] @ right.transpose(-2, -1), rows], dim=2)


def tiles_fit(query_grid: Grid, key_grid: Grid, query: Queries) -> bool:
    """Whether the pairs of two grids are many, and worked on in a CPU's cache."""
    return runs_by_hand(query) and query_grid.num_tokens * key_grid.num_tokens >= LEAST_TILED_PAIRS


class TileForm(Function):
    """φ(q), φ(k), v, log C_1, …, log C_n → Σ_j φ(q_i)ᵀφ(k_j) Π_axis C_axis[i, j] [v_j, 1].

    It keeps nothing but its inputs: its backward pass makes the tiles again. Where the gradient is itself to be
    differentiated, it is taken of `plain_axis_sums`. A dimension that vmap adds joins the heads, which have matrices of
    their own.
    """

    @staticmethod
    def forward(query_features: Tensor, key_features: Tensor, value: Tensor, *log_matrices: Tensor) -> Tensor:
        """The sums."""
        return tile_sums(query_features, key_features, value, [torch.exp(matrix) for matrix in log_matrices])

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # noqa: D102  # as torch has it
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, *grad_outputs):  # noqa: D102  # as torch has it
        (gradient,) = grad_outputs
        inputs = query_features, key_features, value, *log_matrices = ctx.saved_tensors
        if torch.is_grad_enabled():
            gradients = torch.func.vjp(_plain_tile_sums, *inputs)[1](gradient)
            return tuple(one if needed else None for one, needed in zip(gradients, ctx.needs_input_grad, strict=True))
        matrices = [torch.exp(matrix) for matrix in log_matrices]
        return tuple(tile_sums_gradients(gradient, query_features, key_features, value, matrices, ctx.needs_input_grad))

    @staticmethod
    def jvp(ctx, *tangents):  # noqa: D102  # as torch has it
        query_features, key_features, value, *log_matrices = ctx.saved_tensors
        inputs = [query_features, key_features, with_ones(value), *(torch.exp(matrix) for matrix in log_matrices)]
        of_value = None if tangents[2] is None else torch.cat([tangents[2], torch.zeros_like(value[..., :1])], dim=-1)
        of_matrices = [
            None if tangent is None else tangent * matrix
            for tangent, matrix in zip(tangents[3:], inputs[3:], strict=True)
        ]
        return AxisForm.jvp_of(inputs, (*tangents[:2], of_value, *of_matrices))

    @staticmethod
    def vmap(info, in_dims: Sequence[int | None], *inputs: Tensor):  # noqa: D102  # as torch has it
        return TileForm.apply(*fold_into_heads(info.batch_size, in_dims, inputs)).unflatten(1, (info.batch_size, -1)), 1


def _plain_tile_sums(query_features: Tensor, key_features: Tensor, value: Tensor, *log_matrices: Tensor) -> Tensor:
    """The same sums by torch's differentiable operations."""
    matrices = [torch.exp(matrix) for matrix in log_matrices]
    return plain_axis_sums(query_features, key_features, with_ones(value), *matrices)


def tile_sums(
    query_features: QueryFeatures,
    key_features: KeyFeatures,
    value: Values,
    matrices: Sequence[Float[Tensor, "heads _ _"]],
) -> Float[Tensor, "batch heads queries channels"]:
    """Σ_j φ(q_i)ᵀφ(k_j) c_ij [v_j, 1] with c_ij = Π_axis C_axis[i, j], from L² (m + d) multiply-adds.

    c is a product of the axes' matrices: no exponential is taken of a pair.
    """
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
    gradient: Float[Tensor, "batch heads queries channels"],
    query_features: QueryFeatures,
    key_features: KeyFeatures,
    value: Values,
    matrices: Sequence[Float[Tensor, "heads _ _"]],
    needs: Sequence[bool],
) -> list[Tensor | None]:
    """Gradients of `tile_sums` for φ(q), φ(k), v and the logarithms of the matrices as far as they are needed.

    With P = φ(q)φ(k)ᵀ and W = P ∘ c, the gradient of W is D = g [v, 1]ᵀ, that of P is D ∘ c, and that of log c is
    D ∘ W, which is summed over the other axes. P is made again: five products where the forward pass takes two.
    """
    batch, heads = query_features.shape[:2]
    given = (query_features, key_features, value)
    of_query, of_key, of_value = (torch.empty_like(one, memory_format=torch.contiguous_format) for one in given)
    of_logs = [torch.zeros_like(matrix) for matrix in matrices]
    tiles = Tiles(matrices, value)
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
                if needs[0]:
                    torch.mm(of_products, keys[sample], out=of_query[sample, head, rows])
                if needs[1]:
                    key_sums[sample].addmm_(queries_first[sample][:, rows], of_products)
                if any(needs[3:]):
                    tiles.add_to_axes(of_logs, head, rows, of_products.mul_(products))
                if needs[2]:
                    value_sums[sample].addmm_(of_numerator_first[sample][:, rows], products.mul_(factor))
        for sample in range(batch):
            of_key[sample, head], of_value[sample, head] = key_sums[sample].T, value_sums[sample].T
    return [one if need else None for one, need in zip((of_query, of_key, of_value, *of_logs), needs, strict=True)]


class Tiles:
    """Rows of the matrix of all pairs, some at a time, in buffers that every tile uses anew."""

    def __init__(self, matrices: Sequence[Float[Tensor, "heads _ _"]], value: Values) -> None:
        self._matrices, self._num_keys = matrices, value.shape[2]
        query_sides = [matrix.shape[-2] for matrix in matrices]
        self._num_queries = math.prod(query_sides)
        self._rows = min(self._num_queries, max(LEAST_ROWS, TILE_ELEMENTS // self._num_keys))
        self._buffers = [value.new_empty(self._rows * self._num_keys) for _ in range(3)]
        self._cells = torch.unravel_index(torch.arange(self._num_queries), query_sides)

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
