"""Comparison of the tensors of a model between shifted and unshifted images."""

import functools
import itertools
import math
from fractions import Fraction
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from teka.audit.layers.layer_errors import NUM_SUMS, LayerErrors, Sums, sums_of_best_move
from teka.audit.layers.trace import ModelTrace, TracedTensor, TraceEvent, trace_calls
from teka.audit.model_call import Model
from teka.audit.movement import Movement
from teka.audit.shifts import CheckedShifts

# Images per batch. More images share the cost of the unshifted ones.
IMAGES_AT_ONCE = 8
Move = tuple[int, ...]
# 1 for the rows and columns that are compared, and 0 for the others.
Mask = tuple[Float[Tensor, "moves rows"], Float[Tensor, "moves columns"]]


def cells_within(
    side: int, moves: Int[Tensor, " moves"], border: tuple[int, int] = (0, 0)
) -> Float[Tensor, "moves side"]:
    """Return 1 for the cells of an axis that are within a border before and after a move, else 0.

    Args:
        side: Number of cells along the axis.
        moves: Number of cells by which the content moves.
        border: Number of cells outside, before and after.
    """
    after = torch.arange(side)
    before = after - moves[:, None]
    first, last = border[0], side - 1 - border[1]
    is_within = [(cells >= first) & (cells <= last) for cells in (before, after)]
    return (is_within[0] & is_within[1]).double()


class Moves(NamedTuple):
    """Candidate moves of a tensor's cells for several shifts, and the cells to compare.

    A shift by a multiple of the stride has one candidate. Otherwise the candidates are the moves by
    the neighboring whole numbers of cells.

    Args:
        moves: Index of the shift, and number of cells (dy, dx).
        by_shift: For each shift, the indices in `moves` of its candidates, some of them repeated.
        inside: Cells whose content was inside the image.
        interior: Cells that the edge of the image cannot affect.
    """

    moves: list[tuple[int, Move]]
    by_shift: Int[Tensor, "shifts candidates"]
    inside: Mask
    interior: Mask


def plan_moves(
    tensor: TracedTensor, shifts: CheckedShifts, seen_size: tuple[int, int], wraps: bool
) -> Moves:
    """Return the candidate moves of a tensor's cells for each shift.

    Args:
        tensor: The tensor.
        shifts: The shifts in pixels.
        seen_size: Spatial size of the model's input.
        wraps: Whether the shifts are circular.
    """
    layout = tensor.layout
    moves: dict[tuple[int, Move], int] = {}
    by_shift = []
    for index, shift in enumerate(shifts):
        cells = [Fraction(step) / side for step, side in zip(shift, layout.stride, strict=True)]
        cells = cells if layout.grid else (0, 0)  # a vector is one cell that does not move
        for move in itertools.product(*((math.floor(x), math.ceil(x)) for x in cells)):
            by_shift.append(moves.setdefault((index, move), len(moves)))
    rows, columns = torch.tensor([move for _, move in moves]).T
    (height, width), borders = layout.grid or (1, 1), tensor.border or ((1, 0), (1, 0))
    interior = cells_within(height, rows, borders[0]), cells_within(width, columns, borders[1])
    # Cells wrap around the torus only if they fill the image exactly.
    if wraps and (layout.stride[0] * height, layout.stride[1] * width) == seen_size:
        rows, columns = 0 * rows, 0 * columns
    inside = cells_within(height, rows), cells_within(width, columns)
    indices = torch.tensor(by_shift).view(len(shifts), -1)
    return Moves(list(moves), indices, inside, interior)


def compare_shifts(
    model: Model,
    trace: ModelTrace,
    images: Tensor,
    shifts: CheckedShifts,
    movement: Movement,
    batch_size: int,
) -> None:
    """Measure the errors of all tensors in a trace, or why they cannot be compared.

    Shifted and unshifted images share a batch, so that only sums are kept. docs/audit_layers.md has
    the formula.

    Args:
        model: Function that runs the model.
        trace: Trace of a forward pass of the model.
        images: Images before the shift.
        shifts: The shifts.
        movement: How images are shifted.
        batch_size: Maximum number of images per forward pass.
    """
    traced = {event.key: event.tensor for event in trace.events if event.is_new}
    sums = {tensor: torch.zeros(len(shifts), NUM_SUMS).double() for tensor in trace.tensors}
    plan = functools.cache(
        functools.partial(plan_moves, seen_size=trace.seen_size, wraps=movement.wraps)
    )
    chosen = slice(0)

    def see(event: TraceEvent, value: Tensor | None) -> None:
        """Add the sums of a tensor at its first occurrence."""
        tensor = traced.get(event.key)
        if tensor is None or tensor.failure:
            return
        num_blocks = len(shifts[chosen]) + 1
        if value is None or event.shape[1:] != tensor.shape or len(value) % num_blocks:
            tensor.failure = "its shape is not always the same"
            return
        maps = tensor.layout.arrange(value.detach())
        maps = maps.to(torch.promote_types(maps.dtype, torch.float32))
        maps = maps if tensor.layout.grid else maps[:, :, None, None]
        blocks = maps.unflatten(0, (num_blocks, -1))
        sums[tensor][chosen] += _sum_squares(blocks, plan(tensor, shifts[chosen]))
        if not sums[tensor].isfinite().all():
            tensor.failure = "it holds NaN or infinity for moved images"

    for part in images.split(max(1, min(IMAGES_AT_ONCE, batch_size // 2))):
        num_shifts = max(1, batch_size // len(part) - 1)
        for first in range(0, len(shifts), num_shifts):
            chosen = slice(first, first + num_shifts)
            batch = torch.cat([movement.move(part, shift) for shift in ((0, 0), *shifts[chosen])])
            description = f"shifts {', '.join(map(str, shifts[chosen]))}"
            trace_calls(model, trace.modules, see, batch, description)
    for tensor in trace.tensors:
        if not tensor.failure:
            tensor.errors = LayerErrors(sums[tensor], shifts, tensor.layout.stride)


def _sum_squares(blocks: Float[Tensor, "blocks images channels height width"], plan: Moves) -> Sums:
    """Return sums over images of the best moves of the first block to each of the others."""
    grid = blocks.shape[3:]
    cells = torch.arange(grid.numel(), device=blocks.device).view(grid)
    # Moving cells copies rows of channels, which is fast if they are contiguous.
    unshifted, *shifted = blocks.flatten(3).transpose(2, 3).contiguous()
    square_norm = unshifted.square().sum(dim=-1)
    errors, norms = [], []
    for index, move in plan.moves:
        origin = cells.roll(move, (0, 1)).flatten()
        difference = shifted[index] - unshifted.index_select(1, origin)
        errors.append(difference.square_().sum(dim=-1))
        norms.append(square_norm.index_select(1, origin))
    values = torch.stack([torch.stack(errors), torch.stack(norms)]).cpu().double()
    values = values.unflatten(-1, grid)
    every, size = torch.einsum("qmirc,mr,mc->qmi", values, *plan.inside)
    interior, _ = torch.einsum("qmirc,mr,mc->qmi", values, *plan.interior)
    border = (every - interior).clamp(min=0)
    num_every, num_interior = (
        torch.einsum("mr,mc->m", *mask)[:, None].expand_as(size)
        for mask in (plan.inside, plan.interior)
    )
    columns = interior, num_interior, border, num_every - num_interior, size
    return sums_of_best_move(torch.stack(columns, dim=-1)[plan.by_shift]).sum(dim=1)
