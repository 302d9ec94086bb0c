"""Equivariance errors of one tensor of a model, from sums of squares."""

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
    """Errors of one tensor over all shifts, for `LayerFinding`.

    Errors are None or NaN if no cell can be compared.

    Args:
        sums: Sums of squares at each shift.
        shifts: The shifts.
        stride: Pixels per cell along both axes.
    """

    def __init__(self, sums: Sums, shifts: CheckedShifts, stride: Sequence[Fraction]) -> None:
        every, interior, border = relative_errors(sums)
        on_grid = torch.tensor([is_multiple(shift, stride) for shift in shifts])
        self.has_interior = not interior.isnan().all()
        # The interior decides, or all cells from inside if there is no interior.
        self.counted = interior if (sums[:, 1] > 0).any() else every
        self.interior, self.every = _largest(interior[on_grid]), _largest(every[on_grid])
        # Without an interior there is no border either.
        self.border = _largest(border[on_grid]) if (sums[:, 1] > 0).any() else None
        self.aliasing = _largest(self.counted[~on_grid])
        self._every = torch.where(on_grid, every, torch.nan)

    def added_to(self, before: "LayerErrors") -> float | None:
        """Return the increase of the error over another tensor, at multiples of both strides."""
        both = ~(self._every.isnan() | before._every.isnan())
        return float(self._every[both].max() - before._every[both].max()) if both.any() else None


def relative_errors(sums: Sums) -> tuple[Tensor, Tensor, Tensor]:
    """Return relative errors of all cells from inside, the interior and the border.

    An error is NaN if there are no cells.
    """
    interior, interior_cells, border, border_cells, size = sums.unbind(dim=-1)
    cells = interior_cells + border_cells
    norm = torch.where(size > 0, size / cells, torch.nan)
    every = ((interior + border) / cells / norm).sqrt()
    return every, (interior / interior_cells / norm).sqrt(), (border / border_cells / norm).sqrt()


def sums_of_best_move(sums: Float[Tensor, "moves images 5"]) -> Float[Tensor, "images 5"]:
    """Return the sums of the move with the smallest error for each image."""
    every, interior, _ = relative_errors(sums)
    order = (interior if (sums[..., 1] > 0).any() else every).nan_to_num(1e300)
    best = order.masked_fill(every.isnan(), math.inf).argmin(dim=0, keepdim=True)
    return sums.take_along_dim(best[..., None], dim=0)[0]


def _largest(errors: Float[Tensor, " shifts"]) -> float | None:
    known = errors[~errors.isnan()]
    return float(known.max()) if len(known) else None
