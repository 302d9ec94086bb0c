"""The table kernel with learned entries."""

import torch
from torch.nn import Parameter

from teka.checks import check_sizes
from teka.functional import relative
from teka.nn.relative.base import RelativeModule

MAX_OFFSET = 7  # a window of 15 cells along every axis


class Table(RelativeModule):
    """`teka.functional.Table` with learned entries, 0 at first, so that attention begins without position.

    Args:
        num_axes: Number of axes n of the grid.
        heads: Number of heads.
        max_offset: The last offset in cells that has an entry of its own.

    Raises:
        ValueError: A size below 1.
    """

    def __init__(self, num_axes: int, heads: int, *, max_offset: int = MAX_OFFSET) -> None:
        super().__init__()
        check_sizes({"num_axes": num_axes, "heads": heads, "max_offset": max_offset})
        self.tables = Parameter(torch.zeros(heads, num_axes, 2 * max_offset + 1))

    def forward(self) -> relative.Table:
        """The kernel with the present parameters."""
        return relative.Table(self.tables)
