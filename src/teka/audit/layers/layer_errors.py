"""Relative equivariance errors of one tensor of a model, computed from sums of squares."""

import math
from collections.abc import Sequence
from fractions import Fraction

import torch
from jaxtyping import Float
from torch import Tensor

from teka.audit.shifts import CheckedShift, CheckedShifts

# A layer breaks equivariance if its error is above this multiple of its noise.
NOISE_FACTOR = 10.0
# Sums of squares for each shift: error and number of cells in the interior, error and number of
# cells in the border, and squared norm.
NUM_SUMS = 5
Sums = Float[Tensor, "*of 5"]


def error_limit(threshold: float, noise: float) -> float:
    """Return the largest error of an equivariant layer: the threshold or 10 times the noise."""
    return max(threshold, NOISE_FACTOR * noise)


def is_multiple(shift: CheckedShift, stride: Sequence[Fraction]) -> bool:
    """Return True if a shift in pixels is a whole number of cells along every axis."""
    cells = (Fraction(step) / side for step, side in zip(shift, stride, strict=True))
    return all(count.denominator == 1 for count in cells)


class LayerErrors:
    """Errors of one tensor, as in `LayerFinding`.

    The attributes `interior`, `border` and `all_cells` are the errors of these cells at the worst
    shift by a multiple of the stride, and `aliasing` is the error at the worst other shift.
    `per_shift` has the error at each shift. Errors are None or NaN if no cell can be compared.

    Args:
        sums: Sums of squares at each shift.
        shifts: The shifts.
        stride: Pixels per cell along both axes.
    """

    def __init__(self, sums: Sums, shifts: CheckedShifts, stride: Sequence[Fraction]) -> None:
        all_cells, interior, border = relative_errors(sums)
        on_grid = torch.tensor([is_multiple(shift, stride) for shift in shifts])
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
        """Return the increase over the error of another tensor, at multiples of both strides."""
        errors = torch.stack([self._on_grid, source._on_grid])
        errors = errors[:, ~errors.isnan().any(dim=0)]
        if errors.numel() == 0:
            return None
        largest, largest_of_source = errors.amax(dim=1).tolist()
        return largest - largest_of_source


def relative_errors(sums: Sums) -> tuple[Tensor, Tensor, Tensor]:
    """Return the relative errors of all compared cells, of the interior and of the border.

    An error is NaN if there are no such cells.
    """
    interior, interior_cells, border, border_cells, size = sums.unbind(dim=-1)
    cells = interior_cells + border_cells
    norm = torch.where(size > 0, size / cells, torch.nan)
    means = (interior + border) / cells, interior / interior_cells, border / border_cells
    all_cells, interior, border = ((mean / norm).sqrt() for mean in means)
    return all_cells, interior, border


def sums_of_best_move(sums: Float[Tensor, "moves images 5"]) -> Float[Tensor, "images 5"]:
    """Return for each image the sums of the move with the smallest error."""
    if len(sums) == 1:
        return sums[0]
    all_cells, interior, _ = relative_errors(sums)
    order = (all_cells if interior.isnan().all() else interior).nan_to_num(1e300)
    best = order.masked_fill(all_cells.isnan(), math.inf).argmin(dim=0, keepdim=True)
    return sums.take_along_dim(best[..., None], dim=0)[0]


def _largest(errors: Float[Tensor, " shifts"]) -> float | None:
    known = errors[~errors.isnan()]
    return float(known.max()) if len(known) else None
