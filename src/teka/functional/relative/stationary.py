"""Relative kernels of the offset alone: by transforms, or where c is a product over axes by a small matrix for each."""

import math
from abc import abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from teka.functional.backends import Cost, FeatureInputs, WeightedSums
from teka.functional.backends.fft import fft, fft_cost, fft_fits
from teka.functional.backends.flex import offset_numbers
from teka.functional.backends.linear import Sizes
from teka.functional.backends.separable import separable_cost, separable_sums
from teka.functional.positions import Positions
from teka.functional.relative.base import FactorRelative
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


class StationaryRelative(FactorRelative):
    """A relative kernel of the offset alone for each head, which does not look at the query."""

    @abstractmethod
    def log_at(self, offsets: OffsetVectors) -> LogRelativePerHead:
        """log c at offsets, for every head."""

    def log_kernel(self, query: Queries, offsets: Offsets, *, scale: float) -> LogRelative:
        log_relative = self.log_at(offsets)
        return log_relative.transpose(0, 1) if log_relative.ndim == 4 else log_relative[None]

    def pair_term(
        self, query: Queries, positions: Positions, *, scale: float
    ) -> PairFunction | None:
        """From a table over the offsets of the lattice on which the cells of both grids lie."""
        numbers = offset_numbers(positions, query)
        if numbers is None:
            return None
        offsets, query_code, key_code = numbers
        last, table = len(offsets), pad(self.log_at(offsets), (0, 1))
        return lambda b, h, i, j: table[h, torch.clamp_max(query_code[i] - key_code[j], last)]

    def costs(self, sizes: Sizes, positions: Positions) -> dict[str, Cost]:
        """Of the transform, between grids of one spacing."""
        # Which rows to compute again is read from the numbers, which a compiled graph cannot do.
        grids = positions.grids
        if (
            sizes.is_causal
            or grids is None
            or not fft_fits(*grids)
            or torch.compiler.is_compiling()
        ):
            return {}
        return {"fft": fft_cost(*grids, sizes.num_features, sizes.dim_value)}

    def sums(self, backend: str, tokens: FeatureInputs, positions: Positions) -> WeightedSums:
        assert positions.grids is not None
        wide = to_float64(tokens.value.new_empty(0))
        return fft(
            tokens,
            positions.grids,
            self.log_at,
            lambda rows: self.log_at(positions.offsets_like(wide, rows)),
        )


class SeparableRelative(StationaryRelative):
    """A stationary kernel whose log is a sum over axes, so that c is a product."""

    @abstractmethod
    def axis_log_kernel(self, axis: int, offsets: AxisOffsets) -> LogRelativePerHead:
        """One axis' term of log c, at offsets along that axis."""

    def log_at(self, offsets: OffsetVectors) -> LogRelativePerHead:
        terms = [
            self.axis_log_kernel(axis, offsets[..., axis]) for axis in range(offsets.shape[-1])
        ]
        return sum(terms[1:], terms[0])

    def axis_log_matrix(self, axis: int, positions: Positions, like: Tensor) -> AxisMatrix:
        """log c_axis of every pair of rows, of as many sines as there are offsets where both grids have one spacing."""
        assert positions.grids is not None
        query, key = positions.grids
        if query.spacing[axis] != key.spacing[axis]:
            return self.axis_log_kernel(axis, positions.axis_offsets_like(axis, like))
        side = key.shape[axis]
        steps = torch.arange(
            1 - side, query.shape[axis], dtype=widest_dtype(like.device), device=like.device
        )
        offsets = query.wrap_axis(
            axis, steps * query.spacing[axis] + (query.origin[axis] - key.origin[axis])
        )
        # Entry (i, j) is that of step i − j.
        return self.axis_log_kernel(axis, offsets.to(like)).unfold(-1, side, 1).flip(-1)

    def axis_log_matrices(
        self, positions: Positions, like: Tensor
    ) -> tuple[list[AxisMatrix], Float[Tensor, "1 heads queries"]]:
        """log c_axis for every axis less the largest entry of each row, and what was taken off each query in all."""
        matrices, log_peak = [], torch.zeros((), dtype=like.dtype, device=like.device)
        for axis in range(positions.num_axes):
            log_matrix = self.axis_log_matrix(axis, positions, like)
            row_peak = log_matrix.detach().amax(dim=-1)
            log_matrix = log_matrix - row_peak[..., None]
            # Numbers below the smallest normal one have lost their digits, and a CPU multiplies them many times slower.
            matrices.append(
                log_matrix.masked_fill(
                    log_matrix < math.log(torch.finfo(like.dtype).tiny), -math.inf
                )
            )
            log_peak = log_peak[..., None] + row_peak.reshape(-1, *[1] * axis, log_matrix.shape[-2])
        return matrices, log_peak.flatten(1)[None]

    def log_placed_rows(
        self, query: Queries, positions: Positions, rows: slice, *, scale: float
    ) -> LogRelativeRows:
        """log c of some rows from one small matrix an axis, so that sines are not taken of every pair."""
        if positions.grids is None:
            return super().log_placed_rows(query, positions, rows, scale=scale)
        shape = positions.grids[0].shape
        cells = torch.arange(rows.start, rows.stop, device=query.device)
        log_relative = torch.zeros((), dtype=query.dtype, device=query.device)
        for axis in reversed(range(len(shape))):
            part = self.axis_log_matrix(axis, positions, query)[:, cells % shape[axis]]
            cells = torch.div(cells, shape[axis], rounding_mode="floor")
            # Keys in row-major order: each earlier axis stands before those that are done.
            log_relative = (
                (part[..., None] + log_relative[..., None, :]).flatten(-2)
                if log_relative.ndim
                else part
            )
        return log_relative[None]

    def costs(self, sizes: Sizes, positions: Positions) -> dict[str, Cost]:
        if sizes.is_causal or positions.grids is None:
            return {}
        cost = separable_cost(*positions.grids, sizes.num_features, sizes.dim_value)
        return {"toeplitz": cost, **super().costs(sizes, positions)}

    def sums(self, backend: str, tokens: FeatureInputs, positions: Positions) -> WeightedSums:
        if backend == "fft":
            return super().sums(backend, tokens, positions)
        matrices = self.axis_log_matrices(positions, tokens.value)
        return separable_sums(
            tokens, *matrices, lambda rows: self.log_at(positions.offsets_like(tokens.value, rows))
        )
