"""One axis of a sum over L1 rings, ring after ring, with one addition where a ring of radius r has 2r + 1 terms."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from teka.grid import Grid


class AxisSweep:
    """Rings in n dimensions from rings in n − 1, one radius after another.

    A ring about i is, for every step t along the axis, a ring of radius r − |t| in the other dimensions:

        R_r(i) = Σ_{|t| ≤ r} P_{r−|t|}(i + t) = F_r(i) + G_r(i)
        F_r(i) = Σ_{t=0}^{r} P_{r−t}(i + t) = P_r(i) + F_{r−1}(i + 1)
        G_r(i) = Σ_{t=1}^{r} P_{r−t}(i − t) = P_{r−1}(i − 1) + G_{r−1}(i − 1)

    Kept at i + r, F is a buffer to which P_r is added in place, and so is G, kept at i − r: three additions a radius.
    Nothing is subtracted. Run with falling radii the same steps give the adjoint map, Σ_r of what the radii got.

    Args:
        like: A tensor of the shape, dtype and device of P_r.
        dim: Its dimension that is the axis; the cells are neighbours along it.
        reach: The largest radius.
        periodic: Whether the axis wraps; then no more than one of the steps −reach … reach may lead to a cell.
    """

    def __init__(self, like: Tensor, dim: int, reach: int, *, periodic: bool) -> None:
        self.dim, self.periodic = dim, periodic
        side = like.shape[dim]
        shape = list(like.shape)
        shape[dim] += 0 if periodic else reach
        self.ahead, self.behind = like.new_zeros(shape), like.new_zeros(shape)
        # For every radius the views of the buffer that together hold cells 0, 1, …: one, or two where they wrap.
        places = [(radius, -radius) if periodic else (radius, reach - radius) for radius in range(reach + 1)]
        self.ahead_views = [_views(self.ahead, dim, ahead % shape[dim], side) for ahead, _ in places]
        self.behind_views = [_views(self.behind, dim, behind % shape[dim], side) for _, behind in places]

    def clear(self) -> None:
        """Begin again."""
        self.ahead.zero_()
        self.behind.zero_()

    def add_ahead(self, distance: int, inner: Tensor, weight: Tensor | None = None) -> None:
        """Add P_r, or weight · P_r, to F."""
        self._add(self.ahead_views[distance], inner, weight)

    def add_behind(self, distance: int, inner: Tensor, weight: Tensor | None = None) -> None:
        """Add P_r, or weight · P_r, to G."""
        self._add(self.behind_views[distance], inner, weight)

    def read(self, distance: int, out: Tensor) -> Tensor:
        """Write F_r + G_r into `out`, and return that."""
        ahead, behind = self.ahead_views[distance], self.behind_views[distance]
        if len(ahead) == len(behind) == 1:
            return torch.add(ahead[0], behind[0], out=out)
        for view, part in zip(ahead, _split(out, self.dim, ahead), strict=True):
            part.copy_(view)
        for view, part in zip(behind, _split(out, self.dim, behind), strict=True):
            part.add_(view)
        return out

    def step(self, distance: int, inner: Tensor, out: Tensor, weight: Tensor | None = None) -> Tensor:
        """R_r from P_r, or from weight · P_r, written into `out`; with falling radii the adjoint of that."""
        self.add_ahead(distance, inner, weight)
        self.read(distance, out)
        self.add_behind(distance, inner, weight)
        return out

    def _add(self, views: Sequence[Tensor], inner: Tensor, weight: Tensor | None) -> None:
        # Without a seam there is nothing to cut, and this is called often.
        if len(views) == 1:
            _add_to(views[0], inner, weight)
            return
        parts = _split(inner, self.dim, views)
        shares = [None] * len(views) if weight is None else _split(weight, self.dim, views)
        for view, part, share in zip(views, parts, shares, strict=True):
            _add_to(view, part, share)


def _add_to(view: Tensor, part: Tensor, weight: Tensor | None) -> None:
    if weight is None:
        view.add_(part)
    else:
        view.addcmul_(part, weight)


def _views(buffer: Tensor, dim: int, place: int, side: int) -> list[Tensor]:
    """The cells from a place on, round the end where the buffer is too short."""
    length = buffer.shape[dim]
    if place + side <= length:
        return [buffer.narrow(dim, place, side)]
    return [buffer.narrow(dim, place, length - place), buffer.narrow(dim, 0, side - length + place)]


def _split(tensor: Tensor, dim: int, views: Sequence[Tensor]) -> Sequence[Tensor]:
    """A tensor cut along a dimension as the views are."""
    return [tensor] if len(views) == 1 else tensor.split([view.shape[dim] for view in views], dim)


def sweeps_over(like: Float[Tensor, "batch heads *cells channels"], reach: int, grid: Grid) -> list[AxisSweep]:
    """A sweep for every axis of a grid, the last axis first."""
    axes = range(grid.num_axes - 1, -1, -1)
    return [AxisSweep(like, 2 + axis, reach, periodic=grid.axis_periodic(axis)) for axis in axes]
