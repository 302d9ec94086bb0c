"""The second pass over a model: how far every tensor it makes is from moving with the images."""

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

# Sums of squares that are kept for a shift: error and cells of the interior, error and cells of the rest, and the size.
SUMS = 5
# A layer breaks where its error is above this many times the difference of two runs that should not differ.
NOISE_FACTOR = 10.0
WeightedSums = Float[Tensor, "*of 5"]
Border = Sequence[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class Moves:
    """One move of a layer's cells for each of some shifts."""

    source: Int[
        Tensor, "shifts cells"
    ]  # for each cell, the one whose content should have moved there
    inside: Float[Tensor, "shifts cells"]  # 1 for cells that came from inside the image
    interior: Float[
        Tensor, "shifts cells"
    ]  # 1 for those that, like the cells they came from, the edge cannot reach


def is_multiple(shift: Sequence[int | float], stride: Sequence[Fraction]) -> bool:
    """Whether a shift in pixels is a whole number of cells along every axis."""
    return all(
        (Fraction(step) / one).denominator == 1 for step, one in zip(shift, stride, strict=True)
    )


def plan_moves(
    layout: Layout, border: Border, shifts: Sequence[CheckedShift], wraps: bool
) -> tuple[Moves, ...]:
    """The moves that a layer's cells may have made: one for shifts by whole cells, else each neighbour of the shift."""
    # Where a shift has fewer neighbours than another, its last one is there again. A vector is one cell that stays.
    if not layout.grid:
        one = torch.ones(len(shifts), 1, dtype=torch.float64)
        return (Moves(torch.zeros(len(shifts), 1, dtype=torch.long), one, torch.zeros_like(one)),)
    by_shift = []
    for shift in shifts:
        exact = [Fraction(step) / one for step, one in zip(shift, layout.stride, strict=True)]
        by_shift.append(
            list(
                itertools.product(
                    *(sorted({math.floor(cells), math.ceil(cells)}) for cells in exact)
                )
            )
        )
    cells = torch.arange(math.prod(layout.grid)).reshape(layout.grid)
    axes, whole = tuple(range(cells.ndim)), [(0, 0)] * cells.ndim
    plans = []
    for number in range(max(map(len, by_shift))):
        chosen = [neighbours[min(number, len(neighbours) - 1)] for neighbours in by_shift]
        source = torch.stack([cells.roll(move, axes).flatten() for move in chosen])
        interior = torch.stack([_came_from(layout.grid, border, move) for move in chosen])
        inside = torch.ones_like(interior)
        if not wraps:
            inside = torch.stack([_came_from(layout.grid, whole, move) for move in chosen])
        plans.append(Moves(source, inside, interior))
    return tuple(plans)


def _came_from(grid: Sequence[int], border: Border, move: Sequence[int]) -> Float[Tensor, " cells"]:
    """1 for the cells that, like the cells they came from, lie within a border."""
    within = torch.zeros(*grid, dtype=torch.float64)
    slices = []
    for (before, after), side, step in zip(border, grid, move, strict=True):
        first, last = max(before, before + step), min(side - after, side - after + step)
        slices.append(slice(first, max(first, last)))
    within[tuple(slices)] = 1.0
    return within.flatten()


class LayerErrors:
    """The numbers of one tensor over all shifts, as of `LayerFinding`; None or NaN where no cell can be compared."""

    def __init__(
        self,
        slot: TracedTensor,
        sums: WeightedSums,
        on_grid: Bool[Tensor, " shifts"],
        threshold: float,
    ) -> None:
        any_interior = bool((sums[:, 1] > 0).any())
        every, inside, edge = _errors(sums)
        # What counts at each shift is the interior, or all cells that came from inside if there is none.
        counted = inside if any_interior else every
        self.slot, self.counted = slot, counted
        self.threshold, self.limit = threshold, max(threshold, NOISE_FACTOR * slot.noise)
        self.has_interior = not inside.isnan().all()
        self.interior, self.every = _largest(inside[on_grid]), _largest(every[on_grid])
        # Without an interior, the rest is not the border of anything.
        self.border = _largest(edge[on_grid]) if any_interior else None
        self.aliasing = _largest(counted[~on_grid])
        self._every = torch.where(on_grid, every, torch.nan)

    def added_to(self, before: "LayerErrors") -> float | None:
        """What is added to the error of another tensor, at shifts that are multiples of both strides."""
        both = ~(self._every.isnan() | before._every.isnan())
        return float(self._every[both].max() - before._every[both].max()) if both.any() else None

    def exact_step(self, axis: int, shifts: Sequence[Sequence[int | float]]) -> int | None:
        """The fewest pixels along an axis such that every shift by a multiple of them alone is within the threshold."""
        within: dict[int | float, bool] = {}
        for shift, error in zip(shifts, self.counted.tolist(), strict=True):
            step = abs(shift[axis])
            if step == sum(map(abs, shift)) and not math.isnan(error):
                within[step] = within.get(step, True) and error <= self.threshold
        whole = sorted(int(step) for step in within if step == int(step))
        return next(
            (one for one in whole if all(within[step] for step in within if step % one == 0)), None
        )


def _errors(sums: WeightedSums) -> tuple[Tensor, Tensor, Tensor]:
    """The relative errors of all cells that came from inside, of the interior, and of the rest; NaN where none are."""
    interior, interior_cells, border, border_cells, size = sums.unbind(dim=-1)
    cells = interior_cells + border_cells
    norm = torch.where(size > 0, size / cells, torch.nan)
    parts = (interior + border, cells), (interior, interior_cells), (border, border_cells)
    every, inside, edge = ((part / count / norm).sqrt() for part, count in parts)
    return every, inside, edge


def _of_best_move(sums: Float[Tensor, "moves shifts images 5"]) -> Float[Tensor, "shifts images 5"]:
    """Of every image at every shift the sums of the move with the smallest error; any is better than none."""
    every, inside, _ = _errors(sums)
    counted = inside if bool((sums[..., 1] > 0).any()) else every
    order = counted.nan_to_num(1e300).masked_fill(every.isnan(), math.inf)
    best = order.argmin(dim=0)[None, ..., None].expand(1, -1, -1, SUMS)
    return sums.gather(0, best)[0]


def _largest(errors: Float[Tensor, " shifts"]) -> float | None:
    known = errors[~errors.isnan()]
    return float(known.max()) if len(known) else None


class ShiftErrors:
    """Compares, within each batch, what a model makes of moved images with what it makes of the images themselves.

    docs/audit_layers.md has the formula. Nothing but sums is kept; the first visit for each tensor measures it.
    """

    def __init__(self, survey: ModelTrace, shifts: CheckedShifts, wraps: bool) -> None:
        self.shifts, self._slots, self._seen_size, self._wraps = (
            shifts,
            survey.slots,
            survey.seen_size,
            wraps,
        )
        self.failed: dict[int, str] = {}
        self._owner = {
            stop.visit: stop.slot for stop in survey.stops if stop.is_new and stop.slot is not None
        }
        self._sums = torch.zeros(len(survey.slots), len(shifts), SUMS, dtype=torch.float64)
        self._plans: dict[tuple, tuple[Moves, ...]] = {}
        self.chosen = range(0)  # the shifts of the images in a batch, after the images themselves

    def see(self, visit: ModuleCall, module: nn.Module, tensor: Tensor | None) -> None:
        """Compare one tensor, if this is the visit that measures it; the arguments are those of `CallTracer`."""
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
        # Rows for cells, so that moving them is copying rows: (blocks, cells, images, channels).
        rows = values.unflatten(0, (blocks, -1)).permute(0, 3, 1, 2).contiguous()
        still, moved = rows[0], rows[1:]
        size, by_move = still.square().sum(dim=2).cpu().double(), []
        for moves in self._plan(slot):
            expected = still[moves.source.to(still.device)]
            error = (moved - expected).square_().sum(dim=3).cpu().double()
            interior, border, inside = (
                one[..., None]
                for one in (moves.interior, moves.inside - moves.interior, moves.inside)
            )
            sums = (error * interior, interior, error * border, border, size[moves.source] * inside)
            by_move.append(
                torch.stack(torch.broadcast_tensors(*(one.sum(dim=1) for one in sums)), dim=-1)
            )
        self._sums[index, self.chosen.start : self.chosen.stop] += _of_best_move(
            torch.stack(by_move)
        ).sum(dim=1)
        if not self._sums[index].isfinite().all():
            self.failed[index] = "it holds NaN or infinity for moved images"

    def measured(self, threshold: float) -> dict[int, LayerErrors]:
        """The numbers of each tensor that could be compared, by its index."""
        strides = {slot.layout.stride for slot in self._slots}
        on_grid = {
            one: torch.tensor([is_multiple(shift, one) for shift in self.shifts]) for one in strides
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
            # Only cells that fill the image exactly meet again round the torus.
            sides = zip(layout.stride, layout.grid, self._seen_size, strict=False)
            fills = all(stride * side == seen for stride, side, seen in sides)
            shifts = self.shifts[self.chosen.start : self.chosen.stop]
            self._plans[key] = plan_moves(layout, slot.border, shifts, self._wraps and fills)
        return self._plans[key]
