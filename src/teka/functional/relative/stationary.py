"""Base classes of attention weights that depend only on the offset between query and key."""

import math
from abc import abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from teka.functional.backends.attention_sums import LinearAttentionInputs, WeightedSums
from teka.functional.backends.costs import AttentionSizes, Cost, fft_cost, separable_cost
from teka.functional.backends.fft import fft_attention_sums, have_same_spacing
from teka.functional.backends.separable import separable_attention_sums
from teka.functional.positions import Positions
from teka.functional.relative.relative_kernel import OffsetIndex, PositiveRelativeKernel
from teka.functional.shapes import (
    AxisMatrix,
    AxisOffsets,
    LogRelative,
    LogRelativePerHead,
    LogRelativeRows,
    Offsets,
    OffsetVectors,
    PairFunction,
    Queries,
)
from teka.precision import to_float64, widest_dtype


class StationaryRelativeKernel(PositiveRelativeKernel):
    """Base class of attention weights that depend on the offset, but not on the query itself.

    They are called stationary because a shift of all positions does not change them. Linear
    attention on a regular grid is therefore a convolution.
    """

    @abstractmethod
    def log_weight_at(self, offsets: OffsetVectors) -> LogRelativePerHead:
        """Return the log of the position-dependent weight for each head and each offset."""

    def log_weights(self, query: Queries, offsets: Offsets, *, scale: float) -> LogRelative:
        log_relative = self.log_weight_at(offsets)
        return log_relative.transpose(0, 1) if log_relative.ndim == 4 else log_relative[None]

    def make_flex_attention_lookup(
        self, query: Queries, offsets: OffsetVectors, index: OffsetIndex, *, scale: float
    ) -> PairFunction:
        table = pad(self.log_weight_at(offsets), (0, 1))
        return lambda b, h, i, j: table[h, index(i, j)]

    def estimate_costs(self, sizes: AttentionSizes, positions: Positions) -> dict[str, Cost]:
        grids = positions.grids
        # A compiled graph cannot read which rows to compute again.
        if grids is None or sizes.is_causal or torch.compiler.is_compiling():
            return {}
        if not have_same_spacing(*grids):
            return {}
        return {"fft": fft_cost(*grids, sizes.num_features, sizes.dim_value)}

    def weighted_sums(
        self, backend: str, tokens: LinearAttentionInputs, positions: Positions
    ) -> WeightedSums:
        assert positions.grids is not None
        wide = to_float64(tokens.value.new_empty(0))
        return fft_attention_sums(
            tokens,
            positions.grids,
            self.log_weight_at,
            lambda rows: self.log_weight_at(positions.pairwise_offsets(wide, rows)),
        )


class SeparableRelativeKernel(StationaryRelativeKernel):
    """Base class of position-dependent attention weights that are a product over the axes.

    Each factor depends on the offset of query and key along one axis alone. Attention on an image
    can therefore be computed one axis at a time.
    """

    @abstractmethod
    def axis_log_weights(self, axis: int, offsets: AxisOffsets) -> LogRelativePerHead:
        """Return the log of the factor that one axis contributes to the weight, for each head."""

    def log_weight_at(self, offsets: OffsetVectors) -> LogRelativePerHead:
        terms = [
            self.axis_log_weights(axis, offsets[..., axis]) for axis in range(offsets.shape[-1])
        ]
        return sum(terms[1:], terms[0])

    def make_axis_log_weight_matrix(
        self, axis: int, positions: Positions, like: Tensor
    ) -> AxisMatrix:
        """Return the log weights of all pairs of a query and a key coordinate along one axis.

        On an image, axis 0 has one coordinate for each row of pixels. The result has one matrix of
        query and key coordinates for each head, with the dtype and the device of `like`. If both
        grids have the same spacing, the weight is computed only once for each offset.
        """
        assert positions.grids is not None
        query, key = positions.grids
        if query.spacing[axis] != key.spacing[axis]:
            return self.axis_log_weights(axis, positions.pairwise_axis_offsets(axis, like))
        side = key.shape[axis]
        steps = torch.arange(
            1 - side, query.shape[axis], dtype=widest_dtype(like.device), device=like.device
        )
        first_offset = query.origin[axis] - key.origin[axis]
        offsets = query.wrap_axis(axis, steps * query.spacing[axis] + first_offset)
        # Entry (i, j) is that of step i − j. A graph with `unfold` would accept only one length.
        rows = torch.arange(side - 1, len(steps), device=like.device)
        entries = rows[:, None] - torch.arange(side, device=like.device)
        return look_up_entries(self.axis_log_weights(axis, offsets.to(like)), entries)

    def make_log_weight_matrices(
        self, positions: Positions, like: Tensor
    ) -> tuple[list[AxisMatrix], Float[Tensor, "1 heads queries"]]:
        """Return one matrix for each axis of the grid, with the logs of position-dependent weights.

        On an image, the first matrix has an entry for each pair of rows, and the second for each
        pair of columns. The log weight of a query and a key is the sum of their entries. To avoid
        overflow, the maximum of each matrix row is subtracted from it. The second result contains
        the sum of the subtracted maxima for each query. All results have the dtype and the device
        of `like`.
        """
        matrices = []
        log_peak = torch.zeros((), dtype=like.dtype, device=like.device)
        for axis in range(positions.num_axes):
            log_matrix = self.make_axis_log_weight_matrix(axis, positions, like)
            row_peak = log_matrix.detach().amax(dim=-1)
            log_matrix = log_matrix - row_peak[..., None]
            # Drop subnormal numbers, which have lost digits and are many times slower on a CPU.
            is_subnormal = log_matrix < math.log(torch.finfo(like.dtype).tiny)
            matrices.append(log_matrix.masked_fill(is_subnormal, -math.inf))
            log_peak = log_peak[..., None] + row_peak.reshape(-1, *[1] * axis, log_matrix.shape[-2])
        return matrices, log_peak.flatten(1)[None]

    def log_weight_rows_without_prefix(
        self, query: Queries, positions: Positions, rows: slice, *, scale: float
    ) -> LogRelativeRows:
        if positions.grids is None:
            return super().log_weight_rows_without_prefix(query, positions, rows, scale=scale)
        # One small matrix for each axis, so that the kernel is not evaluated for every pair.
        shape = positions.grids[0].shape
        cells = torch.arange(rows.start, rows.stop, device=query.device)
        log_relative = None
        for axis in reversed(range(len(shape))):
            axis_rows = self.make_axis_log_weight_matrix(axis, positions, query)[
                :, cells % shape[axis]
            ]
            cells = torch.div(cells, shape[axis], rounding_mode="floor")
            if log_relative is None:
                log_relative = axis_rows
            else:
                # Keys are in row-major order, so that an earlier axis comes first.
                log_relative = (axis_rows[..., None] + log_relative[..., None, :]).flatten(-2)
        assert log_relative is not None
        return log_relative[None]

    def estimate_costs(self, sizes: AttentionSizes, positions: Positions) -> dict[str, Cost]:
        if sizes.is_causal or positions.grids is None:
            return {}
        cost = separable_cost(*positions.grids, sizes.num_features, sizes.dim_value)
        return {"toeplitz": cost, **super().estimate_costs(sizes, positions)}

    def weighted_sums(
        self, backend: str, tokens: LinearAttentionInputs, positions: Positions
    ) -> WeightedSums:
        if backend == "fft":
            return super().weighted_sums(backend, tokens, positions)
        matrices = self.make_log_weight_matrices(positions, tokens.value)
        return separable_attention_sums(
            tokens,
            *matrices,
            lambda rows: self.log_weight_at(positions.pairwise_offsets(tokens.value, rows)),
        )


def broadcast_per_head(
    parameter: Float[Tensor, "heads"], offsets: AxisOffsets
) -> Float[Tensor, "heads *ones"]:
    """Reshape a parameter with one value per head, so that it broadcasts with offsets."""
    return parameter.to(offsets).reshape(-1, *(1,) * offsets.ndim)


def look_up_entries(
    table: Float[Tensor, "heads entries"], entries: Int[Tensor, "*pairs"]
) -> LogRelativePerHead:
    """Look up entries by index in the table of each head."""
    return table.index_select(1, entries.flatten()).reshape(len(table), *entries.shape)
