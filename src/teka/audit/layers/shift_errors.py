"""Measurement of the equivariance errors of all tensors inside a model.

If an image shifts by some pixels, an equivariant tensor moves by the corresponding number of cells.
The error is the difference between the tensor for the shifted image and the moved tensor for the
unshifted image.
"""

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
CellShift = tuple[int, ...]  # shift (dy, dx) of a tensor in cells
# For one shift: squared error and number of the compared cells, squared error and number of the
# interior cells, and squared norm of the compared cells.
NUM_SUMS = 5
Sums = Float[Tensor, "*of 5"]


def is_multiple_of_stride(shift: CheckedShift, stride: Sequence[Fraction]) -> bool:
    """Return True if a shift in pixels is a multiple of the stride along every axis."""
    return not any(Fraction(step) % side for step, side in zip(shift, stride, strict=True))


class EquivarianceErrors:
    """Relative equivariance errors of one tensor, separately for its interior and its border.

    The border consists of the cells that the edge of the image can affect, and the interior of all
    other cells. Each error is the largest over several shifts, or None if none of them leaves a
    cell to compare.

    Args:
        sums: Squared errors, numbers of cells and squared norm for each shift, see `NUM_SUMS`.
        shifts: The shifts in pixels.
        stride: Number of pixels between neighboring cells of the tensor, along both axes.

    Attributes:
        interior: Error of the interior at shifts by multiples of the stride.
        border: Error of the border at these shifts, or None without an interior.
        all_cells: Error of interior and border together at these shifts.
        aliasing: Error at the other shifts, of the interior if there is one.
        per_shift: Error at each shift, of the interior if there is one. NaN without cells.
        has_interior: True if the tensor has an interior.
    """

    def __init__(self, sums: Sums, shifts: CheckedShifts, stride: Sequence[Fraction]) -> None:
        all_cells, interior, border = _relative_errors(sums)
        on_grid = torch.tensor([is_multiple_of_stride(shift, stride) for shift in shifts])
        self.has_interior = not interior.isnan().all()
        self.per_shift = interior if self.has_interior else all_cells
        self.interior = _largest(interior[on_grid])
        # If the edge affects all cells, they count as `all_cells` and not as a border.
        self.border = _largest(border[on_grid]) if self.has_interior else None
        self.all_cells = _largest(all_cells[on_grid])
        self.aliasing = _largest(self.per_shift[~on_grid])
        self._on_grid = torch.where(on_grid, all_cells, torch.nan)

    def increase_over(self, earlier: "EquivarianceErrors") -> float | None:
        """Return this error minus that of an earlier tensor, such as the input of the layer.

        Both errors are the largest over all shifts that are multiples of both strides. Without such
        shifts, the result is None.
        """
        errors = torch.stack([self._on_grid, earlier._on_grid])
        errors = errors[:, ~errors.isnan().any(dim=0)]
        if errors.numel() == 0:
            return None
        largest, largest_earlier = errors.amax(dim=1).tolist()
        return largest - largest_earlier


ErrorsByTensor = dict[TracedTensor | None, EquivarianceErrors]


def _relative_errors(sums: Sums) -> Float[Tensor, "regions *of"]:
    """Convert sums to the relative errors of all cells, of the interior and of the border.

    The error of a region without cells is NaN.
    """
    inside, num_inside, interior, num_interior, size = sums.unbind(dim=-1)
    norm = torch.where(size > 0, size / num_inside, torch.nan)
    border = (inside - interior).clamp(min=0) / (num_inside - num_interior)
    return (torch.stack([inside / num_inside, interior / num_interior, border]) / norm).sqrt()


def select_sums_of_best_shift(
    sums: Float[Tensor, "cell_shifts images 5"],
) -> Float[Tensor, "images 5"]:
    """Select, for each image, the sums for the cell shift with the smallest relative error.

    A shift by a fraction of a cell is rounded down and up, which gives several candidates.

    Args:
        sums: Sums of squared errors for each candidate and image, as in `NUM_SUMS`.
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
    """Convert a shift of the image in pixels to shifts (dy, dx) of a tensor in whole cells.

    If the shift is not a multiple of the stride, return all combinations of rounding it down and up
    along each axis. A vector has no positions, so its only shift is (0, 0).
    """
    if not layout.grid:
        return [(0, 0)]
    cells = [Fraction(step) / side for step, side in zip(shift, layout.stride, strict=True)]
    return sorted(itertools.product(*({math.floor(x), math.ceil(x)} for x in cells)))


@functools.cache
def mask_cells_inside(
    side: int, step: int, border: tuple[int, int] = (0, 0)
) -> Bool[Tensor, " side"]:
    """Return a mask of the cells along one axis that can be compared after a shift.

    Cell i after the shift has the content of cell i − step before the shift. The mask is True if
    both cells exist and neither belongs to the border.

    Args:
        side: Number of cells along the axis.
        step: Number of cells by which the content shifts along the axis.
        border: Width of the border at the start and at the end of the axis, in cells.
    """
    after = torch.arange(side)
    before = after - step
    lowest, highest = torch.minimum(before, after), torch.maximum(before, after)
    return (lowest >= border[0]) & (highest < side - border[1])


def mask_compared_cells(
    tensor: TracedTensor, cell_shift: CellShift, wraps: bool
) -> tuple[Bool[Tensor, " side"], ...]:
    """Return masks of the rows and columns of a tensor that can be compared after a shift.

    Args:
        tensor: The tensor.
        cell_shift: Shift of the tensor in cells.
        wraps: Whether content that leaves the tensor at one side enters at the other side.

    Returns:
        Masks of the rows and the columns whose content was inside the image before the shift, then
        masks of the rows and the columns of the interior.
    """
    sides, borders = tensor.layout.grid or (1, 1), tensor.border or ((1, 0), (1, 0))
    inside = map(mask_cells_inside, sides, (0, 0) if wraps else cell_shift)
    return (*inside, *map(mask_cells_inside, sides, cell_shift, borders))


def measure_equivariance_errors(
    model: Model,
    trace: ModelTrace,
    images: Tensor,
    shifts: CheckedShifts,
    movement: Movement,
    batch_size: int,
) -> ErrorsByTensor:
    """Measure the equivariance errors of all tensors in a trace.

    The page docs/audit_layers.md defines the errors. Each batch contains both unshifted and shifted
    images, so that the outputs of the layers need not be stored between batches.

    Args:
        model: Function that runs the model.
        trace: Record of a forward pass of the model.
        images: Unshifted images.
        shifts: Shifts in pixels.
        movement: How images are shifted.
        batch_size: Maximum number of images per forward pass.

    Returns:
        Errors of each tensor that can be compared for shifted images. For every other tensor, its
        attribute `failure` is set to the reason.
    """
    traced = {event.identifier: event.tensor for event in trace.events if event.is_new}
    sums = {tensor: torch.zeros(len(shifts), NUM_SUMS).double() for tensor in trace.tensors}
    chosen = slice(0)

    def add_errors(event: TraceEvent, value: Tensor | None) -> None:
        """Add the squared errors of a tensor to its sums the first time that the tensor occurs."""
        tensor = traced.get(event.identifier)
        if tensor is None or tensor.failure:
            return
        num_copies = len(shifts[chosen]) + 1
        if value is None or event.shape[1:] != tensor.shape or len(value) % num_copies:
            tensor.failure = "its shape is not always the same"
            return
        values = tensor.layout.to_channels_first(value).unflatten(0, (num_copies, -1))
        # Circularly shifted content reenters in whole cells only if they fill the image exactly.
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
            trace_calls(model, trace.modules, add_errors, batch, description)
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
    """Sum the squared equivariance errors of a tensor over images, separately for each shift.

    The tensor for a shifted image is compared with the tensor for the unshifted image, which is
    shifted by the same distance in cells. If this is not a whole number of cells, the rounding with
    the smallest error is used for each image.

    Args:
        values: Values of the tensor for the unshifted images, then for the images after each shift.
        tensor: Description of the tensor.
        shifts: Shifts in pixels.
        wraps: Whether content that leaves the tensor at one side enters at the other side.

    Returns:
        Sums over the images for each shift, from which `EquivarianceErrors` computes its errors.
    """
    grid = values.shape[3:]
    cells = torch.arange(grid.numel(), device=values.device).view(grid)
    # Shifting the cells copies the channels of each cell, which is fast if they are contiguous.
    unshifted, *shifted = values.flatten(3).transpose(2, 3).contiguous()
    square_norm = unshifted.square().sum(dim=-1)
    candidates = [round_shift_to_cells(shift, tensor.layout) for shift in shifts]
    errors, norms, compared = [], [], []
    for shifted_values, cell_shifts in zip(shifted, candidates, strict=True):
        for cell_shift in cell_shifts:
            origin = cells.roll(cell_shift, (0, 1)).flatten()
            difference = shifted_values - unshifted.index_select(1, origin)
            errors.append(difference.square_().sum(dim=-1))
            norms.append(square_norm.index_select(1, origin))
            compared.append(mask_compared_cells(tensor, cell_shift, wraps))
    squares = torch.stack([torch.stack(errors), torch.stack(norms)]).cpu().double()
    squares = squares.unflatten(-1, grid)
    masks = [torch.stack(axis).double() for axis in zip(*compared, strict=True)]
    inside, interior = masks[:2], masks[2:]
    inside_error, size = torch.einsum("qmirc,mr,mc->qmi", squares, *inside)
    interior_error, _ = torch.einsum("qmirc,mr,mc->qmi", squares, *interior)
    num_inside, num_interior = (
        torch.einsum("mr,mc->m", *mask)[:, None].expand_as(size) for mask in (inside, interior)
    )
    columns = inside_error, num_inside, interior_error, num_interior, size
    sums_by_shift = torch.stack(columns, dim=-1).split(list(map(len, candidates)))
    return torch.stack([select_sums_of_best_shift(sums).sum(dim=0) for sums in sums_by_shift])
