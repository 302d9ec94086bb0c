"""Sums over a grid with a separable kernel, and all their gradients: one axis after another, in the cache of a core."""

from collections.abc import Sequence
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor

from teka.functional.backends import transposed
from teka.functional.shapes import (
    Gradients,
    KeyChannels,
    KeyFeatures,
    Matrices,
    QueryChannels,
    QueryFeatures,
)

# Numbers of φ ⊗ [v, 1] that are worked on at a time: 3/4 MiB in float32, which the second-level cache of a core holds.
CACHED_ELEMENTS = 3 * 2**16
# Features in a chunk up to which their maps are added one by one, with no further buffer; more are small maps.
FEW_MAPS = 8


def axis_sums(
    query_features: QueryFeatures, key_features: KeyFeatures, value: KeyChannels, matrices: Matrices
) -> QueryChannels:
    """Σ_j φ(q_i)ᵀφ(k_j) Π_axis C_axis[i, j] v_j: L · m · channels · Σ sides multiply-adds, in buffers of fixed size."""
    batch, heads, num_queries, num_features = query_features.shape
    num_channels = value.shape[-1]
    workspace = Workspace(matrices, num_features, num_channels, keep=False)
    output = value.new_empty(batch, heads, num_queries, num_channels)
    for head in range(heads):
        own = [matrix[head] for matrix in matrices]
        for sample in range(batch):
            query, key, values = (
                transposed(tensor[sample, head]) for tensor in (query_features, key_features, value)
            )
            total = torch.zeros_like(output[0, 0].T, memory_format=torch.contiguous_format)
            features = [one.split(workspace.features) for one in (query, key)]
            channels = [one.split(workspace.channels) for one in (values, total)]
            for part, part_sum in zip(*channels, strict=True):
                for weight, feature in zip(*features, strict=True):
                    maps = workspace.maps(len(feature), len(part))
                    torch.mul(feature[:, None], part, out=maps.keys)
                    maps.push(own)
                    _add_weighted(part_sum, maps.queries, weight)
            output[sample, head] = total.T
    return output


def axis_sums_gradients(
    gradient: QueryChannels, tensors: Sequence[Tensor], needs: Sequence[bool]
) -> Gradients:
    """Gradients of `axis_sums` of φ(q), φ(k), v and the matrices: six products where two axes take two forward.

    The matrices' transposes take φ(q_i) ⊗ g_i to the keys' grid, where its contractions with v and φ(k) are the
    gradients of φ(k) and v. Those of φ(q) and of the matrices need the maps again.
    """
    given, matrices = tensors[:3], tensors[3:]
    batch, heads, _, num_features = given[0].shape
    workspace = Workspace(matrices, num_features, given[2].shape[-1], keep=True)
    of_query, of_key, of_value = (
        torch.empty_like(one, memory_format=torch.contiguous_format) for one in given
    )
    of_matrices = [torch.zeros_like(matrix) for matrix in matrices]
    needs_query, needs_key, needs_value, needs_matrices = *needs[:3], any(needs[3:])
    for head in range(heads):
        own = [matrix[head] for matrix in matrices]
        sums = workspace.matrix_sums() if needs_matrices else None
        for sample in range(batch):
            query, key, values, arrived = (
                transposed(tensor[sample, head]) for tensor in (*given, gradient)
            )
            query_sum, key_sum, value_sum = (torch.zeros_like(one) for one in (query, key, values))
            features = [one.split(workspace.features) for one in (query, key, query_sum, key_sum)]
            channels = [one.split(workspace.channels) for one in (values, arrived, value_sum)]
            for part, part_arrived, part_sum in zip(*channels, strict=True):
                for left, right, left_sum, right_sum in zip(*features, strict=True):
                    maps = workspace.maps(len(left), len(part))
                    if needs_query or needs_matrices:
                        torch.mul(right[:, None], part, out=maps.keys)
                        maps.push(own)
                    if needs_query:
                        left_sum += maps.queries.mul_(part_arrived).sum(dim=1)
                    torch.mul(left[:, None], part_arrived, out=maps.queries)
                    maps.pull(own, sums)
                    if needs_value:
                        _add_weighted(part_sum, maps.keys, right)
                    if needs_key:
                        right_sum += maps.keys.mul_(part).sum(dim=1)
            of_query[sample, head], of_key[sample, head], of_value[sample, head] = (
                query_sum.T,
                key_sum.T,
                value_sum.T,
            )
        if sums is not None:
            for axis, total in zip(workspace.axes, sums, strict=True):
                of_matrices[axis][head] = total.sum(dim=0)
    return [
        one if need else None
        for one, need in zip((of_query, of_key, of_value, *of_matrices), needs, strict=True)
    ]


def _add_weighted(
    total: Tensor, maps: Float[Tensor, "features channels cells"], weights: Tensor
) -> None:
    """Add the maps, each times the weight of its feature and cell."""
    if len(maps) > FEW_MAPS:
        total.add_((maps * weights[:, None]).sum(dim=0))
        return
    for one, weight in zip(maps.unbind(), weights[:, None].unbind(), strict=True):
        total.addcmul_(one, weight)


class Maps:
    """Maps (features, channels, cells) around every product with an axis' matrix: a buffer each, or two by turns."""

    def __init__(
        self,
        axes: Sequence[int],
        sides: tuple[list[int], list[int]],
        buffers: Sequence[Tensor],
        sizes: tuple[int, int],
    ) -> None:
        self.axes, num_maps = axes, prod(sizes)
        places = [buffers[place % len(buffers)] for place in range(len(axes) + 1)]
        self.ins, self.outs = [], []
        for place, axis in enumerate(axes):
            # The axes after this one are already the queries', those before it still the keys'.
            before, after = prod(sides[1][:axis]), prod(sides[0][axis + 1 :])
            for views, further in ((self.ins, 0), (self.outs, 1)):
                side = sides[1 - further][axis]
                views.append(
                    places[place + further][: num_maps * before * side * after].view(
                        -1, side, after
                    )
                )
        shape = (*sizes, -1)
        self.keys: Float[Tensor, "features channels keys"] = self.ins[0].view(shape)
        self.queries: Float[Tensor, "features channels queries"] = self.outs[-1].view(shape)

    def push(self, matrices: Sequence[Float[Tensor, "_ _"]]) -> None:
        """From the keys' grid to the queries'."""
        for axis, maps, out in zip(self.axes, self.ins, self.outs, strict=True):
            _multiply(matrices[axis], maps, out)

    def pull(self, matrices: Sequence[Float[Tensor, "_ _"]], sums: Sequence[Tensor] | None) -> None:
        """The adjoint of `push`: each gradient takes its map's place, once the two have added to that of the matrix."""
        for place in reversed(range(len(self.axes))):
            maps, gradient = self.ins[place], self.outs[place]
            if sums is not None and maps.shape[-1] == 1:
                sums[place][0].addmm_(gradient[..., 0].T, maps[..., 0])
            elif sums is not None:
                # One product a map, added up in the end: one over all maps would have to turn them round first.
                sums[place][: len(maps)].baddbmm_(gradient, maps.mT)
            _multiply(matrices[self.axes[place]].T, gradient, maps)


def _multiply(matrix: Float[Tensor, "rows columns"], maps: Tensor, out: Tensor) -> None:
    """The matrix times every one of the maps, shapes (R, columns, A) and (R, rows, A)."""
    if maps.shape[-1] == 1:
        torch.mm(maps[..., 0], matrix.T, out=out[..., 0])
    else:
        torch.bmm(matrix.expand(len(maps), *matrix.shape), maps, out=out)


class Workspace:
    """Buffers for every chunk. The last axis comes first: there one product from the right serves all maps together."""

    def __init__(
        self, matrices: Matrices, num_features: int, num_channels: int, *, keep: bool
    ) -> None:
        query_sides, key_sides = (
            [matrix.shape[place] for matrix in matrices] for place in (-2, -1)
        )
        self.axes, self._sides = list(reversed(range(len(matrices)))), (query_sides, key_sides)
        cells = max(
            prod(key_sides),
            *(prod(key_sides[:axis]) * prod(query_sides[axis:]) for axis in self.axes),
        )
        self.channels = _equal_part(num_channels, CACHED_ELEMENTS // cells)
        self.features = _equal_part(num_features, CACHED_ELEMENTS // (cells * self.channels))
        size = self.features * self.channels * cells
        self._buffers = [
            matrices[0].new_empty(size) for _ in range(len(matrices) + 1 if keep else 2)
        ]
        self._maps: dict[tuple[int, int], Maps] = {}

    def maps(self, num_features: int, num_channels: int) -> Maps:
        """Maps for a chunk of this size."""
        sizes = (num_features, num_channels)
        if sizes not in self._maps:
            self._maps[sizes] = Maps(self.axes, self._sides, self._buffers, sizes)
        return self._maps[sizes]

    def matrix_sums(self) -> list[Tensor]:
        """For the gradients of the matrices of one head, in the order of the products, to be summed over their rows."""
        num_maps, (query_sides, key_sides) = self.features * self.channels, self._sides
        shapes = [
            (num_maps * prod(key_sides[:axis]), query_sides[axis], key_sides[axis])
            for axis in self.axes
        ]
        shapes[0] = (1, *shapes[0][1:])
        return [self._buffers[0].new_zeros(shape) for shape in shapes]


def _equal_part(number: int, largest: int) -> int:
    """The size of parts of about equal size that are no larger than `largest`, and at least 1."""
    num_parts = -(-number // max(1, min(number, largest)))
    return -(-number // num_parts)
