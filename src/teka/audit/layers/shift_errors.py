"""Equivariance errors of all tensors of a model between shifted and unshifted images."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from teka.audit.layers.layouts import Layout
from teka.audit.layers.trace import ModelTrace, ModuleCall, TracedTensor
from teka.audit.shifts import CheckedShift, CheckedShifts

# Sums of squares for each shift: error and number of cells in the interior, error and number of
# cells in the border, and squared norm.
SUMS = 5
# A layer breaks equivariance if its error is above this multiple of its noise.
NOISE_FACTOR = 10.0
WeightedSums = Float[Tensor, "*of 5"]
Border = Sequence[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class Moves:
    """Expected move of a layer's cells at each of several shifts.

    Args:
        source: For each cell, the cell whose content should have moved there.
        inside: 1 for cells whose content was inside the image, else 0.
        interior: 1 for cells that the edge cannot affect before and after the move, else 0.
    """

    source: Int[Tensor, "shifts cells"]
    inside: Float[Tensor, "shifts cells"]
    interior: Float[Tensor, "shifts cells"]


def is_multiple(shift: Sequence[int | float], stride: Sequence[Fraction]) -> bool:
    """Return True if a shift in pixels is a whole number of cells along every axis."""
    return all(
        (Fraction(step) / cell).denominator == 1 for step, cell in zip(shift, stride, strict=True)
    )


def plan_moves(
    layout: Layout, border: Border, shifts: Sequence[CheckedShift], wraps: bool
) -> tuple[Moves, ...]:
    """Return the possible moves of a layer's cells for each shift.

    A shift by whole cells has one move. Otherwise the candidates are the moves by the neighboring
    whole numbers of cells. Shifts with fewer candidates repeat their last one.

    Args:
        layout: Layout of the layer. A vector is treated as one cell that does not move.
        border: Cells that the edge affects, before and after along each axis.
        shifts: The shifts in pixels.
        wraps: Whether the shifts are circular.
    """
    if not layout.grid:
        one = torch.ones(len(shifts), 1, dtype=torch.float64)
        return (Moves(torch.zeros(len(shifts), 1, dtype=torch.long), one, torch.zeros_like(one)),)
    by_shift = []
    for shift in shifts:
        exact = [Fraction(step) / cell for step, cell in zip(shift, layout.stride, strict=True)]
        by_shift.append(
            list(
                itertools.product(
                    *(sorted({math.floor(cells), math.ceil(cells)}) for cells in exact)
                )
            )
        )
    cells = torch.arange(math.prod(layout.grid)).reshape(layout.grid)
    axes = tuple(range(cells.ndim))
    whole = [(0, 0)] * cells.ndim
    plans = []
    for number in range(max(map(len, by_shift))):
        chosen = [neighbors[min(number, len(neighbors) - 1)] for neighbors in by_shift]
        source = torch.stack([cells.roll(move, axes).flatten() for move in chosen])
        interior = torch.stack([_came_from(layout.grid, border, move) for move in chosen])
        inside = torch.ones_like(interior)
        if not wraps:
            inside = torch.stack([_came_from(layout.grid, whole, move) for move in chosen])
        plans.append(Moves(source, inside, interior))
    return tuple(plans)


def _came_from(grid: Sequence[int], border: Border, move: Sequence[int]) -> Float[Tensor, " cells"]:
    """Return 1 for cells that lie within a border before and after a move, else 0."""
    within = torch.zeros(*grid, dtype=torch.float64)
    slices = []
    for (before, after), side, step in zip(border, grid, move, strict=True):
        first, last = max(before, before + step), min(side - after, side - after + step)
        slices.append(slice(first, max(first, last)))
    within[tuple(slices)] = 1.0
    return within.flatten()


class LayerErrors:
    """Errors of one tensor over all shifts, for `LayerFinding`.

    Errors are None or NaN if no cell can be compared.

    Args:
        slot: The tensor.
        sums: Sums of squares at each shift.
        on_grid: Whether each shift is a whole number of cells.
        threshold: Largest error of an equivariant layer.
    """

    def __init__(
        self,
        slot: TracedTensor,
        sums: WeightedSums,
        on_grid: Bool[Tensor, " shifts"],
        threshold: float,
    ) -> None:
        any_interior = bool((sums[:, 1] > 0).any())
        every, inside, edge = _errors(sums)
        # The interior decides at each shift, or all cells from inside if there is no interior.
        counted = inside if any_interior else every
        self.slot, self.counted = slot, counted
        self.threshold, self.limit = threshold, max(threshold, NOISE_FACTOR * slot.noise)
        self.has_interior = not inside.isnan().all()
        self.interior, self.every = _largest(inside[on_grid]), _largest(every[on_grid])
        # Without an interior there is no border either.
        self.border = _largest(edge[on_grid]) if any_interior else None
        self.aliasing = _largest(counted[~on_grid])
        self._every = torch.where(on_grid, every, torch.nan)

    def added_to(self, before: "LayerErrors") -> float | None:
        """Return the increase of the error over another tensor, at multiples of both strides."""
        both = ~(self._every.isnan() | before._every.isnan())
        return float(self._every[both].max() - before._every[both].max()) if both.any() else None

    def exact_step(self, axis: int, shifts: Sequence[Sequence[int | float]]) -> int | None:
        """Return the smallest step along an axis whose multiples all have small errors.

        Args:
            axis: The axis.
            shifts: The shifts, in the order of the errors.

        Returns:
            Step in pixels, or None if there is none.
        """
        within: dict[int | float, bool] = {}
        for shift, error in zip(shifts, self.counted.tolist(), strict=True):
            step = abs(shift[axis])
            if step == sum(map(abs, shift)) and not math.isnan(error):
                within[step] = within.get(step, True) and error <= self.threshold
        whole = sorted(int(step) for step in within if step == int(step))
        return next(
            (step for step in whole if all(within[other] for other in within if other % step == 0)),
            None,
        )


def _errors(sums: WeightedSums) -> tuple[Tensor, Tensor, Tensor]:
    """Return relative errors of all cells from inside, the interior and the border.

    An error is NaN if there are no cells.
    """
    interior, interior_cells, border, border_cells, size = sums.unbind(dim=-1)
    cells = interior_cells + border_cells
    norm = torch.where(size > 0, size / cells, torch.nan)
    parts = (interior + border, cells), (interior, interior_cells), (border, border_cells)
    every, inside, edge = ((part / count / norm).sqrt() for part, count in parts)
    return every, inside, edge


def _of_best_move(sums: Float[Tensor, "moves shifts images 5"]) -> Float[Tensor, "shifts images 5"]:
    """Return the sums of the candidate move with the smallest error, per image and shift."""
    every, inside, _ = _errors(sums)
    counted = inside if bool((sums[..., 1] > 0).any()) else every
    order = counted.nan_to_num(1e300).masked_fill(every.isnan(), math.inf)
    best = order.argmin(dim=0)[None, ..., None].expand(1, -1, -1, SUMS)
    return sums.gather(0, best)[0]


def _largest(errors: Float[Tensor, " shifts"]) -> float | None:
    known = errors[~errors.isnan()]
    return float(known.max()) if len(known) else None


class ShiftErrors:
    """Comparison of a model's tensors for shifted images with those for unshifted images.

    Both are in the same batch, and only sums are kept. docs/audit_layers.md has the formula.

    Args:
        survey: Trace of a forward pass.
        shifts: The shifts.
        wraps: Whether the shifts are circular.
    """

    def __init__(self, survey: ModelTrace, shifts: CheckedShifts, wraps: bool) -> None:
        self.shifts = shifts
        self._slots = survey.slots
        self._seen_size = survey.seen_size
        self._wraps = wraps
        self.failed: dict[int, str] = {}
        self._owner = {
            stop.visit: stop.slot for stop in survey.stops if stop.is_new and stop.slot is not None
        }
        self._sums = torch.zeros(len(survey.slots), len(shifts), SUMS, dtype=torch.float64)
        self._plans: dict[tuple, tuple[Moves, ...]] = {}
        self.chosen = range(0)  # indices of the shifts in a batch, after the unshifted images

    def see(self, visit: ModuleCall, module: nn.Module, tensor: Tensor | None) -> None:
        """Compare a tensor at its first occurrence. The arguments are those of `CallTracer`."""
        index = self._owner.get(visit)
        if index is None or index in self.failed:
            return
        slot, blocks = self._slots[index], len(self.chosen) + 1
        if tensor is None or tuple(tensor.shape[1:]) != slot.shape or tensor.shape[0] % blocks:
            self.failed[index] = "its shape is not always the same"
            return
        values = slot.layout.arrange(tensor.detach())
        values = values.to(torch.promote_types(values.dtype, torch.float32))
        values = values.flatten(2) if slot.layout.grid else values.unsqueeze(-1)
        # Put cells in rows (blocks, cells, images, channels), so that moving them copies rows.
        rows = values.unflatten(0, (blocks, -1)).permute(0, 3, 1, 2).contiguous()
        still, moved = rows[0], rows[1:]
        size = still.square().sum(dim=2).cpu().double()
        by_move = []
        for moves in self._plan(slot):
            expected = still[moves.source.to(still.device)]
            error = (moved - expected).square_().sum(dim=3).cpu().double()
            interior, border, inside = (
                part[..., None]
                for part in (moves.interior, moves.inside - moves.interior, moves.inside)
            )
            sums = (error * interior, interior, error * border, border, size[moves.source] * inside)
            by_move.append(
                torch.stack(torch.broadcast_tensors(*(each.sum(dim=1) for each in sums)), dim=-1)
            )
        self._sums[index, self.chosen.start : self.chosen.stop] += _of_best_move(
            torch.stack(by_move)
        ).sum(dim=1)
        if not self._sums[index].isfinite().all():
            self.failed[index] = "it holds NaN or infinity for moved images"

    def measured(self, threshold: float) -> dict[int, LayerErrors]:
        """Return the errors of each tensor that could be compared, by its index."""
        strides = {slot.layout.stride for slot in self._slots}
        on_grid = {
            stride: torch.tensor([is_multiple(shift, stride) for shift in self.shifts])
            for stride in strides
        }
        return {
            index: LayerErrors(slot, self._sums[index], on_grid[slot.layout.stride], threshold)
            for index, slot in enumerate(self._slots)
            if index not in self.failed
        }

    def _plan(self, slot: TracedTensor) -> tuple[Moves, ...]:
        layout = slot.layout
        key = (layout.grid, layout.stride, slot.border, self.chosen)
        if key not in self._plans:
            # Cells wrap around the torus only if they fill the image exactly.
            sides = zip(layout.stride, layout.grid, self._seen_size, strict=False)
            fills = all(stride * side == seen for stride, side, seen in sides)
            shifts = self.shifts[self.chosen.start : self.chosen.stop]
            self._plans[key] = plan_moves(layout, slot.border, shifts, self._wraps and fills)
        return self._plans[key]
