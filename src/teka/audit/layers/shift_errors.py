"""Functions that measure how the tensors inside a model change if images are shifted."""

import functools
import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka.audit.layers.layouts import Layout
from teka.audit.layers.trace import ModelTrace, TracedTensor, TraceEvent, trace_calls
from teka.audit.model_call import Model
from teka.audit.movement import Movement
from teka.audit.shifts import CheckedShift, CheckedShifts

MAX_VALUES_AT_ONCE = 2**28  # number of values in the outputs of all layers, 1 GiB in float32
CellShift = tuple[int, ...]  # number of cells (dy, dx) by which the content of a tensor moves
# For one shift: squared error and number of all cells that are compared, squared error and number
# of those that the edge of the image cannot affect, and squared norm of all these cells.
NUM_SUMS = 5
Sums = Float[Tensor, "*of 5"]


def is_multiple_of_stride(shift: CheckedShift, stride: Sequence[Fraction]) -> bool:
    """Return True if a shift in pixels is a multiple of the stride along every axis."""
    return not any(Fraction(step) % side for step, side in zip(shift, stride, strict=True))


class EquivarianceErrors:
    """Relative equivariance errors of one tensor inside a model.

    Each error is the largest over several shifts. If no value of the tensor can be compared, it is
    None.

    Args:
        sums: Squared errors, numbers of cells and squared norm at each shift.
        shifts: The shifts in pixels.
        stride: Number of pixels between neighboring cells of the tensor, along both axes.

    Attributes:
        interior: Error of the cells that the edge of the image cannot affect, at shifts by
            multiples of the stride.
        border: Error of the other cells at these shifts, or None without an interior.
        all_cells: Error of both at these shifts.
        aliasing: Error at the other shifts.
        per_shift: Error at each shift, or NaN.
        has_interior: True if some cells cannot be affected by the edge.
    """

    def __init__(self, sums: Sums, shifts: CheckedShifts, stride: Sequence[Fraction]) -> None:
        all_cells, interior, border = _relative_errors(sums)
        on_grid = torch.tensor([is_multiple_of_stride(shift, stride) for shift in shifts])
        self.has_interior = not interior.isnan().all()
        # The interior decides, or all cells if there is no interior.
        self.per_shift = interior if self.has_interior else all_cells
        self.interior = _largest(interior[on_grid])
        # Without an interior there is no border either.
        self.border = _largest(border[on_grid]) if self.has_interior else None
        self.all_cells = _largest(all_cells[on_grid])
        self.aliasing = _largest(self.per_shift[~on_grid])
        self._on_grid = torch.where(on_grid, all_cells, torch.nan)

    def increase_over(self, earlier: "EquivarianceErrors") -> float | None:
        """Return how much larger this error is than the error of an earlier tensor.

        Only shifts by multiples of both strides count. If there are none, the result is None.
        """
        errors = torch.stack([self._on_grid, earlier._on_grid])
        errors = errors[:, ~errors.isnan().any(dim=0)]
        if errors.numel() == 0:
            return None
        largest, largest_earlier = errors.amax(dim=1).tolist()
        return largest - largest_earlier


ErrorsByTensor = dict[TracedTensor | None, EquivarianceErrors]


def _relative_errors(sums: Sums) -> Float[Tensor, "regions *of"]:
    """Return the relative errors of all cells, of the interior and of the border.

    The edge of the image can affect only the cells of the border. If a region has no cells, its
    error is NaN.
    """
    inside, num_inside, interior, num_interior, size = sums.unbind(dim=-1)
    norm = torch.where(size > 0, size / num_inside, torch.nan)
    border = (inside - interior).clamp(min=0) / (num_inside - num_interior)
    return (torch.stack([inside / num_inside, interior / num_interior, border]) / norm).sqrt()


def select_best_cell_shift(sums: Float[Tensor, "moves images 5"]) -> Float[Tensor, "images 5"]:
    """Choose for each image the move of the layer's output with the smallest relative error.

    If the image shifts by a fraction of a cell, the output could move by the next smaller or the
    next larger number of whole cells. `sums` holds the sums of squared errors of every move, and
    the result those of the best one.
    """
    if len(sums) == 1:
        return sums[0]
    all_cells, interior, _ = _relative_errors(sums)
    order = (all_cells if interior.isnan().all() else interior).nan_to_num(1e300)
    best = order.masked_fill(all_cells.isnan(), math.inf).argmin(dim=0, keepdim=True)
    return sums.take_along_dim(best[..., None], dim=0)[0]


def _largest(errors: Float[Tensor, " shifts"]) -> float | None:
    known = errors[~errors.isnan()]
    return float(known.max()) if len(known) else None


def round_shift_to_cells(shift: CheckedShift, layout: Layout) -> list[CellShift]:
    """Convert a shift of the image to shifts (dy, dx) of a tensor by whole numbers of cells.

    If the shift is not a multiple of the tensor's stride, it is rounded both down and up along each
    axis, and all combinations are returned. A vector does not move.
    """
    if not layout.grid:
        return [(0, 0)]
    cells = [Fraction(step) / side for step, side in zip(shift, layout.stride, strict=True)]
    return sorted(itertools.product(*({math.floor(x), math.ceil(x)} for x in cells)))


@functools.cache
def mask_cells_inside(
    side: int, move: int, border: tuple[int, int] = (0, 0)
) -> Bool[Tensor, " side"]:
    """Return a mask of the cells along an axis that are inside a map before and after a move.

    The content of the map moves along the axis by a whole number of cells. Cells that are closer to
    an end of the axis than the width of the border do not count as inside.

    Args:
        side: Number of cells along the axis.
        move: Number of cells by which the content moves.
        border: Width of the border at the start and at the end of the axis, in cells.
    """
    after = torch.arange(side)
    before = after - move
    lowest, highest = torch.minimum(before, after), torch.maximum(before, after)
    return (lowest >= border[0]) & (highest < side - border[1])


def mask_compared_cells(
    tensor: TracedTensor, move: CellShift, wraps: bool
) -> tuple[Bool[Tensor, " side"], ...]:
    """Return masks of the rows and columns of a feature map that are compared after a move.

    Args:
        tensor: The tensor.
        move: Number of cells by which its content moves.
        wraps: Whether content that leaves the tensor at one side enters at the other side.

    Returns:
        The rows and columns whose content was inside the image before the move, then the rows and
        columns that the edge of the image cannot affect.
    """
    sides, borders = tensor.layout.grid or (1, 1), tensor.border or ((1, 0), (1, 0))
    inside = map(mask_cells_inside, sides, (0, 0) if wraps else move)
    return (*inside, *map(mask_cells_inside, sides, move, borders))


def measure_equivariance_errors(
    model: Model,
    trace: ModelTrace,
    images: Tensor,
    shifts: CheckedShifts,
    movement: Movement,
    batch_size: int,
) -> ErrorsByTensor:
    """Measure the equivariance errors of all tensors in a trace.

    Every batch contains the unshifted images as well as shifted ones, so that no outputs need to be
    kept between batches. docs/audit_layers.md has the formula.

    Args:
        model: Function that runs the model.
        trace: Trace of a forward pass of the model.
        images: Images before the shift.
        shifts: The shifts.
        movement: How images are shifted.
        batch_size: Maximum number of images per forward pass.

    Returns:
        Errors of each tensor that can be compared. For other tensors, the reason is stored in the
        attribute `failure`.
    """
    traced = {event.identifier: event.tensor for event in trace.events if event.is_new}
    sums = {tensor: torch.zeros(len(shifts), NUM_SUMS).double() for tensor in trace.tensors}
    chosen = slice(0)

    def on_event(event: TraceEvent, value: Tensor | None) -> None:
        """Add the sums of a tensor at its first occurrence."""
        tensor = traced.get(event.identifier)
        if tensor is None or tensor.failure:
            return
        num_copies = len(shifts[chosen]) + 1
        if value is None or event.shape[1:] != tensor.shape or len(value) % num_copies:
            tensor.failure = "its shape is not always the same"
            return
        maps = tensor.layout.to_channels_first(value.detach())
        maps = maps.to(torch.promote_types(maps.dtype, torch.float32))
        maps = maps if tensor.layout.grid else maps[:, :, None, None]
        values = maps.unflatten(0, (num_copies, -1))
        # Cells wrap around the torus only if they fill the image exactly.
        wraps = movement.wraps and tensor.layout.covers_image(trace.seen_size)
        sums[tensor][chosen] += _sum_squared_errors(values, tensor, shifts[chosen], wraps)
        if not sums[tensor].isfinite().all():
            tensor.failure = "it holds NaN or infinity for shifted images"

    # Some models, such as ONNX models, keep the outputs of all layers until the end of a call.
    batch_size = min(batch_size, MAX_VALUES_AT_ONCE // max(trace.num_values_per_image, 1))
    for part in images.split(max(1, batch_size // (len(shifts) + 1))):
        num_shifts = max(1, batch_size // len(part) - 1)
        for first in range(0, len(shifts), num_shifts):
            chosen = slice(first, first + num_shifts)
            batch = torch.cat([movement.move(part, shift) for shift in ((0, 0), *shifts[chosen])])
            description = f"shifts {', '.join(map(str, shifts[chosen]))}"
            trace_calls(model, trace.modules, on_event, batch, description)
    return {
        tensor: EquivarianceErrors(sums[tensor], shifts, tensor.layout.stride)
        for tensor in trace.tensors
        if not tensor.failure
    }


def _sum_squared_errors(
    values: Float[Tensor, "copies images channels height width"],
    tensor: TracedTensor,
    shifts: CheckedShifts,
    wraps: bool,
) -> Sums:
    """Compare a tensor for shifted images with the moved tensor for unshifted images.

    If the shift is not a whole number of cells, it is rounded both down and up, and the better
    result is used for each image.

    Args:
        values: Values for the unshifted images, and then for the images after each shift.
        tensor: Description of the tensor.
        shifts: The shifts in pixels.
        wraps: Whether content that leaves the tensor at one side enters at the other side.

    Returns:
        Sums over the images for each shift, from which `EquivarianceErrors` computes relative errors.
    """
    grid = values.shape[3:]
    cells = torch.arange(grid.numel(), device=values.device).view(grid)
    # Moving cells copies rows of channels, which is fast if they are contiguous.
    unshifted, *shifted = values.flatten(3).transpose(2, 3).contiguous()
    square_norm = unshifted.square().sum(dim=-1)
    moves = [round_shift_to_cells(shift, tensor.layout) for shift in shifts]
    errors, norms, cells_by_move = [], [], []
    for shifted_values, nearest in zip(shifted, moves, strict=True):
        for move in nearest:
            origin = cells.roll(move, (0, 1)).flatten()
            difference = shifted_values - unshifted.index_select(1, origin)
            errors.append(difference.square_().sum(dim=-1))
            norms.append(square_norm.index_select(1, origin))
            cells_by_move.append(mask_compared_cells(tensor, move, wraps))
    squares = torch.stack([torch.stack(errors), torch.stack(norms)]).cpu().double()
    squares = squares.unflatten(-1, grid)
    masks = [torch.stack(axis).double() for axis in zip(*cells_by_move, strict=True)]
    inside, interior = masks[:2], masks[2:]
    inside_error, size = torch.einsum("qmirc,mr,mc->qmi", squares, *inside)
    interior_error, _ = torch.einsum("qmirc,mr,mc->qmi", squares, *interior)
    num_inside, num_interior = (
        torch.einsum("mr,mc->m", *mask)[:, None].expand_as(size) for mask in (inside, interior)
    )
    columns = inside_error, num_inside, interior_error, num_interior, size
    sums_by_shift = torch.stack(columns, dim=-1).split(list(map(len, moves)))
    return torch.stack([select_best_cell_shift(sums).sum(dim=0) for sums in sums_by_shift])
