"""By how many of its own cells a layer's output should have moved, and which of them can be compared."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from jaxtyping import Float, Int
from torch import Tensor

from teka.audit.layers.layout import Layout


@dataclass(frozen=True, eq=False)
class Moves:
    """One move of a layer's cells for each of some shifts.

    Args:
        source: For each cell, the one whose content should have moved there; (S, cells).
        inside: 1 for cells that came from inside the image.
        interior: 1 for those that, like the cells they came from, the edge cannot reach.
    """

    source: Int[Tensor, "shifts cells"]
    inside: Float[Tensor, "shifts cells"]
    interior: Float[Tensor, "shifts cells"]


def is_multiple(shift: Sequence[int | float], stride: Sequence[Fraction]) -> bool:
    """Whether a shift in pixels is a whole number of cells along every axis."""
    return all((Fraction(step) / one).denominator == 1 for step, one in zip(shift, stride, strict=True))


def plan_moves(
    layout: Layout, border: Sequence[tuple[int, int]], shifts: Sequence[Sequence[int | float]], wraps: bool
) -> tuple[Moves, ...]:
    """The moves that a layer's cells may have made: one for shifts by whole cells, else each neighbour of the shift.

    Where a shift has fewer neighbours than another, its last one is there again. A vector is one cell that stays.

    Args:
        layout: How the output lies.
        border: Cells that the edge can reach, before and after along every axis.
        shifts: Shifts in pixels.
        wraps: Whether cells that leave at one side enter at the other.
    """
    if not layout.grid:
        one = torch.ones(len(shifts), 1, dtype=torch.float64)
        return (Moves(torch.zeros(len(shifts), 1, dtype=torch.long), one, torch.zeros_like(one)),)
    by_shift = [_neighbours(shift, layout.stride) for shift in shifts]
    count = max(map(len, by_shift))
    cells = torch.arange(math.prod(layout.grid)).reshape(layout.grid)
    axes, whole = tuple(range(cells.ndim)), [(0, 0)] * cells.ndim
    plans = []
    for number in range(count):
        chosen = [neighbours[min(number, len(neighbours) - 1)] for neighbours in by_shift]
        source = torch.stack([cells.roll(move, axes).flatten() for move in chosen])
        interior = torch.stack([_came_from(layout.grid, border, move) for move in chosen])
        inside = torch.stack([_came_from(layout.grid, whole, move) for move in chosen])
        plans.append(Moves(source, torch.ones_like(inside) if wraps else inside, interior))
    return tuple(plans)


def _neighbours(shift: Sequence[int | float], stride: Sequence[Fraction]) -> list[tuple[int, ...]]:
    exact = [Fraction(step) / one for step, one in zip(shift, stride, strict=True)]
    return list(itertools.product(*(sorted({math.floor(cells), math.ceil(cells)}) for cells in exact)))


def _came_from(grid: Sequence[int], border: Sequence[tuple[int, int]], move: Sequence[int]) -> Float[Tensor, " cells"]:
    """1 for the cells that, like the cells they came from, lie within a border."""
    within = torch.zeros(*grid, dtype=torch.float64)
    slices = []
    for (before, after), side, step in zip(border, grid, move, strict=True):
        first, last = max(before, before + step), min(side - after, side - after + step)
        slices.append(slice(first, max(first, last)))
    within[tuple(slices)] = 1.0
    return within.flatten()
