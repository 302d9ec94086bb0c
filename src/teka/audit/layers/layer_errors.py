"""Relative equivariance errors of one tensor inside a model."""

import math
from collections.abc import Sequence
from fractions import Fraction

import torch
from jaxtyping import Float
from torch import Tensor

from teka.audit.shifts import CheckedShift, CheckedShifts

# A layer breaks equivariance if its error is above this multiple of its noise.
NOISE_FACTOR = 10.0
# For one shift: squared error and number of cells of the interior, squared error and number of
# cells of the border, and squared norm of all these cells.
NUM_SUMS = 5
Sums = Float[Tensor, "*of 5"]


def error_limit(threshold: float, noise: float) -> float:
    """Return the error above which a layer breaks equivariance.

    Args:
        threshold: Smallest limit.
        noise: Relative difference of the layer's outputs for two copies of the same images.
    """
    return max(threshold, NOISE_FACTOR * noise)


def is_multiple_of_stride(shift: CheckedShift, stride: Sequence[Fraction]) -> bool:
    """Return True if a shift in pixels is a multiple of the stride along every axis."""
    return not any(Fraction(step) % side for step, side in zip(shift, stride, strict=True))


class LayerErrors:
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

    def increase_over(self, source: "LayerErrors") -> float | None:
        """Return how much larger this error is than the error of an earlier tensor.

        Only shifts by multiples of both strides count. If there are none, the result is None.
        """
        errors = torch.stack([self._on_grid, source._on_grid])
        errors = errors[:, ~errors.isnan().any(dim=0)]
        if errors.numel() == 0:
            return None
        largest, largest_of_source = errors.amax(dim=1).tolist()
        return largest - largest_of_source


def _relative_errors(sums: Sums) -> Float[Tensor, "regions *of"]:
    """Return the relative errors of all cells, of the interior and of the border.

    If one of these regions has no cells, its error is NaN.
    """
    interior, interior_cells, border, border_cells, size = sums.unbind(dim=-1)
    cells = interior_cells + border_cells
    norm = torch.where(size > 0, size / cells, torch.nan)
    means = (interior + border) / cells, interior / interior_cells, border / border_cells
    return (torch.stack(means) / norm).sqrt()


def select_sums_of_best_move(sums: Float[Tensor, "moves images 5"]) -> Float[Tensor, "images 5"]:
    """Select the sums of the move that gives the smallest error, separately for each image.

    Each move shifts the tensor of the unshifted images by a whole number of cells.
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
