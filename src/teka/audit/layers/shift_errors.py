"""The second pass over a model: how far every tensor it makes is from moving with the images."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from teka.audit.layers.moves import Moves, is_multiple, plan_moves
from teka.audit.layers.survey import Slot, Stop
from teka.audit.layers.trace import Visit

# Sums of squares that are kept for a move: error and cells of the interior, error and cells of the rest, and the size.
SUMS = 5


@dataclass(frozen=True)
class ShiftError:
    """The error of one tensor at one shift, relative to its size; None where no cell can be compared.

    Args:
        is_multiple: Whether the shift is a multiple of the stride, so that cells move onto cells.
        every: Of all cells that came from inside.
        interior: Of those that the edge cannot reach.
        border: Of the others, if the tensor has an interior.
        counted: What speaks of the layer: the error of the interior, or of all cells if the tensor has no interior.
    """

    is_multiple: bool
    every: float | None
    interior: float | None
    border: float | None
    counted: float | None


class ShiftErrors:
    """Compares, within each batch, what a model makes of moved images with what it makes of the images themselves.

    With y the tensor for an image and y_s that for the image moved by s, a multiple of the stride r,

        e(A) = ( Σ_{u ∈ A} |y_s(u) − y(u − s/r)|² / |A| )^½ / ( Σ_{u ∈ C} |y(u − s/r)|² / |C| )^½,

    summed over channels and images; C holds the cells that came from inside the image, and A is C or a part of it. At
    other shifts, s/r is rounded up or down along every axis, in the way that gives the smallest error. Vectors stay
    where they are. Nothing but the sums is kept.

    Args:
        slots: The tensors, from the survey.
        stops: The visits of the survey, of which the first for each tensor measures it.
        shifts: Shifts in pixels.
        seen_size: Spatial size of what the model gets.
        wraps: Whether what leaves the image at one side enters at the other.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        stops: Sequence[Stop],
        shifts: Sequence[tuple[int | float, ...]],
        seen_size: tuple[int, ...],
        wraps: bool,
    ) -> None:
        self.shifts = tuple(shifts)
        self.failed: dict[int, str] = {}
        self._slots = slots
        self._seen_size, self._wraps = seen_size, wraps
        self._owner = {_place(stop.visit): stop.slot for stop in stops if stop.is_new and stop.slot is not None}
        neighbours = 2 ** len(seen_size)
        self._sums = torch.zeros(len(slots), len(shifts), neighbours, SUMS, dtype=torch.float64)
        self._plans: dict[tuple, tuple[Moves, ...]] = {}
        self._chosen: range = range(0)

    def start(self, chosen: range) -> None:
        """Begin a batch: the images themselves, then each of the chosen shifts of them.

        Args:
            chosen: Indices of the shifts.
        """
        self._chosen = chosen

    def see(self, visit: Visit, module: nn.Module, tensor: Tensor | None) -> None:
        """Compare one tensor, if this is the visit that measures it; the arguments are those of `Trace`."""
        index = self._owner.get(_place(visit))
        if index is None or index in self.failed:
            return
        slot, blocks = self._slots[index], len(self._chosen) + 1
        if tensor is None or tuple(tensor.shape[1:]) != slot.shape or tensor.shape[0] % blocks:
            self.failed[index] = "its shape is not always the same"
            return
        values = slot.layout.arrange(tensor.detach())
        values = values.to(torch.promote_types(values.dtype, torch.float32))
        values = values.flatten(2) if slot.layout.grid else values.unsqueeze(-1)
        # Rows for cells, so that moving them is copying rows: (blocks, cells, images · channels).
        rows = values.unflatten(0, (blocks, -1)).permute(0, 3, 1, 2).flatten(2)
        still, moved = rows[0], rows[1:]
        size = still.square().sum(dim=1).cpu().double()
        for number, moves in enumerate(self._plan(slot)):
            expected = still[moves.source.to(still.device)]
            error = (moved - expected).square_().sum(dim=2).cpu().double()
            border = moves.inside - moves.interior
            sums = (error * moves.interior, moves.interior, error * border, border, size[moves.source] * moves.inside)
            self._sums[index, self._chosen.start : self._chosen.stop, number] += torch.stack(sums).sum(dim=2).T
        if not self._sums[index].isfinite().all():
            self.failed[index] = "it holds NaN or infinity for moved images"

    def errors(self, slot: int) -> tuple[ShiftError, ...]:
        """The error of a tensor at every shift.

        Args:
            slot: Index of the tensor.
        """
        rows = self._sums[slot].tolist()
        has_interior = any(sums[1] for moves in rows for sums in moves)
        stride = self._slots[slot].layout.stride
        return tuple(
            _best(moves, is_multiple(shift, stride), has_interior)
            for shift, moves in zip(self.shifts, rows, strict=True)
        )

    def _plan(self, slot: Slot) -> tuple[Moves, ...]:
        layout = slot.layout
        key = (layout.grid, layout.stride, slot.border, self._chosen)
        if key not in self._plans:
            # Only cells that fill the image exactly meet again round the torus.
            fills = all(
                stride * side == seen
                for stride, side, seen in zip(layout.stride, layout.grid, self._seen_size, strict=False)
            )
            shifts = self.shifts[self._chosen.start : self._chosen.stop]
            self._plans[key] = plan_moves(layout, slot.border, shifts, self._wraps and fills)
        return self._plans[key]


def _best(moves: Sequence[Sequence[float]], on_grid: bool, has_interior: bool) -> ShiftError:
    """The error at one shift: the smallest over the moves that it may be."""
    found = []
    for interior, interior_cells, border, border_cells, size in moves:
        cells = interior_cells + border_cells
        if not cells or not size:
            continue
        parts = ((interior + border, cells), (interior, interior_cells), (border, border_cells))
        every, inside, edge = (math.sqrt(part / count / (size / cells)) if count else None for part, count in parts)
        # Without an interior, the rest is not the border of anything.
        edge = edge if has_interior else None
        found.append(ShiftError(on_grid, every, inside, edge, inside if has_interior else every))
    nothing = ShiftError(on_grid, None, None, None, None)
    return min(found, key=lambda one: math.inf if one.counted is None else one.counted, default=nothing)


def _place(visit: Visit) -> tuple[str, int, str]:
    return visit.module, visit.call, visit.side
