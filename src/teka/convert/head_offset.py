"""Which offset each head attends to, and how much of its weight lies there."""

from dataclasses import dataclass

import torch

from teka.errors import wrong_value
from teka.functional.kernel import Constant
from teka.functional.placement import Placement, Sites
from teka.functional.relative import StationaryRelative
from teka.grid import Grid
from teka.nn import Attention


@dataclass(frozen=True)
class HeadOffset:
    """Where a head looks.

    Args:
        offset: The offset with the largest weight, key less query, in cells along each axis.
        share: Its share of the weights of all offsets of up to the grid's sides: a query that sees that place on the
            grid gives it at least this share, whatever else it sees.
    """

    offset: tuple[int, ...]
    share: float


def head_offsets(attention: Attention, grid: Grid) -> tuple[HeadOffset, ...]:
    """The offset at which each head has the largest weight, and its share.

    Args:
        attention: Layer that attends by position alone, with a relative kernel that does not look at the query.
        grid: The grid it is used on.

    Raises:
        ValueError: A layer that looks at content or has not a relative kernel in every head, a periodic grid, or one of
            another number of axes.
    """
    if attention.query is not None or attention.key is not None:
        came = f"{attention.content_heads} heads that look at content, or a relative kernel that does"
        raise wrong_value("attention", came, "attention by position alone, kernel='constant'")
    if attention.position_heads:
        raise wrong_value("attention.position_heads", attention.position_heads, "0: a relative kernel in every head")
    relative = None if attention.relative is None else attention.relative()
    if not isinstance(relative, StationaryRelative):
        name = None if relative is None else relative.name
        raise wrong_value("attention.relative", name, "a relative kernel of the offset alone, such as 'quadratic'")
    if any(grid.periodic):
        raise wrong_value("grid", grid, "a grid with edges")
    heads = attention.heads
    relative.check(heads=heads, dim=attention.dim_head, num_axes=grid.num_axes, kernel=Constant())
    sites = Sites(grid)
    relative = relative.on(Placement(sites, sites))
    assert isinstance(relative, StationaryRelative)
    device = attention.output.weight.device
    # Offsets δ = x_j − x_i between cells are themselves a grid.
    sides = tuple(2 * side + 1 for side in grid.shape)
    first = tuple(-side * step for side, step in zip(grid.shape, grid.spacing, strict=True))
    away = Grid(sides, grid.spacing, origin=first).positions(dtype=torch.float64, device=device)
    with torch.no_grad():
        shares, places = torch.softmax(relative.log_at(-away), dim=-1).max(dim=-1)
    found = []
    for share, place in zip(shares.tolist(), places.tolist(), strict=True):
        cells = torch.unravel_index(torch.tensor(place), sides)
        offset = tuple(int(cell) - side for cell, side in zip(cells, grid.shape, strict=True))
        found.append(HeadOffset(offset, share))
    return tuple(found)
