"""Equivariance errors of all tensors of a model between shifted and unshifted images."""

import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from teka.audit.layers.trace import ModelTrace, ModuleCall, TracedTensor
from teka.audit.shifts import CheckedShift, CheckedShifts

# Sums of squares for each shift: error and number of cells in the interior, error and number of
# cells in the border, and squared norm.
NUM_SUMS = 5
# A layer breaks equivariance if its error is above this multiple of its noise.
NOISE_FACTOR = 10.0
NO_BORDER = ((0, 0), (0, 0))
Maps = Float[Tensor, "batch channels height width"]
Sums = Float[Tensor, "*of 5"]
Border = Sequence[tuple[int, int]]


def is_multiple(shift: CheckedShift, stride: Sequence[Fraction]) -> bool:
    """Return True if a shift in pixels is a whole number of cells along every axis."""
    cells = (Fraction(step) / side for step, side in zip(shift, stride, strict=True))
    return all(count.denominator == 1 for count in cells)


def candidate_moves(shift: CheckedShift, stride: Sequence[Fraction]) -> Iterator[tuple[int, ...]]:
    """Return the neighboring moves by whole cells. For a multiple of the stride, there is one."""
    cells = [Fraction(step) / cell for step, cell in zip(shift, stride, strict=True)]
    return itertools.product(*(sorted({math.floor(x), math.ceil(x)}) for x in cells))


def cells_within(grid: Sequence[int], border: Border, move: Sequence[int]) -> tuple[slice, ...]:
    """Return the cells of a grid that lie within a border before and after a move."""
    slices = []
    for (before, after), side, step in zip(border, grid, move, strict=True):
        first, last = max(before, before + step), min(side - after, side - after + step)
        slices.append(slice(first, max(first, last)))
    return tuple(slices)


class LayerErrors:
    """Errors of one tensor over all shifts, for `LayerFinding`.

    Errors are None or NaN if no cell can be compared.

    Args:
        tensor: The tensor.
        sums: Sums of squares at each shift.
        on_grid: Whether each shift is a whole number of cells.
        threshold: Largest error of an equivariant layer.
    """

    def __init__(
        self, tensor: TracedTensor, sums: Sums, on_grid: Bool[Tensor, " shifts"], threshold: float
    ) -> None:
        every, interior, border = _errors(sums)
        self.has_interior = not interior.isnan().all()
        # The interior decides, or all cells from inside if there is no interior.
        self.counted = interior if (sums[:, 1] > 0).any() else every
        self.tensor, self.threshold = tensor, threshold
        self.limit = max(threshold, NOISE_FACTOR * tensor.noise)
        self.interior, self.every = _largest(interior[on_grid]), _largest(every[on_grid])
        # Without an interior there is no border either.
        self.border = _largest(border[on_grid]) if (sums[:, 1] > 0).any() else None
        self.aliasing = _largest(self.counted[~on_grid])
        self._every = torch.where(on_grid, every, torch.nan)

    def added_to(self, before: "LayerErrors") -> float | None:
        """Return the increase of the error over another tensor, at multiples of both strides."""
        both = ~(self._every.isnan() | before._every.isnan())
        return float(self._every[both].max() - before._every[both].max()) if both.any() else None

    def exact_step(self, axis: int, shifts: CheckedShifts) -> int | None:
        """Return the smallest step along an axis whose multiples all have small errors.

        Args:
            axis: The axis.
            shifts: The shifts, in the order of the errors.

        Returns:
            Step in pixels, or None if there is none.
        """
        largest: dict[int, float] = {}
        for shift, error in zip(shifts, self.counted.tolist(), strict=True):
            step = abs(int(shift[axis]))
            if step == sum(map(abs, shift)) and not math.isnan(error):
                largest[step] = max(error, largest.get(step, 0.0))
        for step in sorted(largest):
            if all(largest[other] <= self.threshold for other in largest if other % step == 0):
                return step
        return None


def _errors(sums: Sums) -> tuple[Tensor, Tensor, Tensor]:
    """Return relative errors of all cells from inside, the interior and the border.

    An error is NaN if there are no cells.
    """
    interior, interior_cells, border, border_cells, size = sums.unbind(dim=-1)
    cells = interior_cells + border_cells
    norm = torch.where(size > 0, size / cells, torch.nan)
    every = ((interior + border) / cells / norm).sqrt()
    return every, (interior / interior_cells / norm).sqrt(), (border / border_cells / norm).sqrt()


def _of_best_move(sums: Float[Tensor, "moves images 5"]) -> Float[Tensor, "images 5"]:
    """Return the sums of the candidate move with the smallest error, for each image."""
    every, interior, _ = _errors(sums)
    order = (interior if (sums[..., 1] > 0).any() else every).nan_to_num(1e300)
    best = order.masked_fill(every.isnan(), math.inf).argmin(dim=0)
    return sums[best, torch.arange(len(best))]


def _largest(errors: Float[Tensor, " shifts"]) -> float | None:
    known = errors[~errors.isnan()]
    return float(known.max()) if len(known) else None


class ShiftErrors:
    """Comparison of a model's tensors for shifted images with those for unshifted images.

    Both are in the same batch, and only sums are kept. docs/audit_layers.md has the formula.

    Args:
        trace: Trace of a forward pass.
        shifts: The shifts.
        wraps: Whether the shifts are circular.
    """

    def __init__(self, trace: ModelTrace, shifts: CheckedShifts, wraps: bool) -> None:
        self.shifts = shifts
        self._trace = trace
        self._wraps = wraps
        self.failed: dict[int, str] = {}
        self._indices = {event.call: event.tensor for event in trace.events if event.is_new}
        self._sums = torch.zeros(len(trace.tensors), len(shifts), NUM_SUMS, dtype=torch.float64)
        self.chosen = range(0)  # indices of the shifts in a batch, after the unshifted images

    def see(self, call: ModuleCall, module: nn.Module, tensor: Tensor | None) -> None:
        """Compare a tensor at its first occurrence. The arguments are those of `CallTracer`."""
        index = self._indices.get(call)
        if index is None or index in self.failed:
            return
        known, blocks = self._trace.tensors[index], len(self.chosen) + 1
        if tensor is None or tuple(tensor.shape[1:]) != known.shape or len(tensor) % blocks:
            self.failed[index] = "its shape is not always the same"
            return
        maps = known.layout.arrange(tensor.detach())
        maps = maps.to(torch.promote_types(maps.dtype, torch.float32))
        if not known.layout.grid:
            maps = maps[:, :, None, None]
        unshifted, *shifted = maps.unflatten(0, (blocks, -1))
        square_norm = unshifted.square().sum(dim=1).double()
        for shift, moved in zip(self.chosen, shifted, strict=True):
            sums = self._compare(known, unshifted, square_norm, moved, self.shifts[shift])
            self._sums[index, shift] += sums
        if not self._sums[index].isfinite().all():
            self.failed[index] = "it holds NaN or infinity for moved images"

    def _compare(
        self,
        tensor: TracedTensor,
        unshifted: Maps,
        square_norm: Float[Tensor, "batch height width"],
        moved: Maps,
        shift: CheckedShift,
    ) -> Sums:
        """Return the sums over images for the best move of each image."""
        layout, grid = tensor.layout, unshifted.shape[2:]
        # A vector is one cell at the border that does not move.
        moves = candidate_moves(shift, layout.stride) if layout.grid else [(0, 0)]
        border = tensor.border or ((1, 0), (1, 0))
        # Cells wrap around the torus only if they fill the image exactly.
        sides = zip(layout.stride, layout.grid, self._trace.seen_size, strict=False)
        wraps = self._wraps and all(stride * cells == seen for stride, cells, seen in sides)
        sums = []
        for move in moves:
            expected = unshifted.roll(move, (2, 3))
            error = (moved - expected).square_().sum(dim=1).double()
            inside = cells_within(grid, NO_BORDER, (0, 0) if wraps or not layout.grid else move)
            interior = cells_within(grid, border, move)
            every, within = error[(..., *inside)], error[(..., *interior)]
            size = square_norm.roll(move, (1, 2))[(..., *inside)]
            num_interior, num_every = within[0].numel(), every[0].numel()
            total = within.sum(dim=(1, 2))
            columns = [
                total,
                torch.full_like(total, num_interior),
                (every.sum(dim=(1, 2)) - total).clamp(min=0),
                torch.full_like(total, num_every - num_interior),
                size.sum(dim=(1, 2)),
            ]
            sums.append(torch.stack(columns, dim=1).cpu())
        return _of_best_move(torch.stack(sums)).sum(dim=0)

    def measured(self, threshold: float) -> dict[int, LayerErrors]:
        """Return the errors of each tensor that could be compared, by its index."""
        errors = {}
        for index, tensor in enumerate(self._trace.tensors):
            stride = tensor.layout.stride
            on_grid = torch.tensor([is_multiple(shift, stride) for shift in self.shifts])
            if index not in self.failed:
                errors[index] = LayerErrors(tensor, self._sums[index], on_grid, threshold)
        return errors
