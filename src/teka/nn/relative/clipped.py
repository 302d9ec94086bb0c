"""The clipped kernel (strategy 2) with learned distance embeddings."""

from typing import ClassVar

import torch
from torch.nn import Parameter

from teka.checks import POSITIVE, check_sizes, is_positive
from teka.errors import wrong_value
from teka.functional import relative
from teka.functional.relative import MAX_DISTANCE
from teka.nn.relative.base import RelativeModule


class Clipped(RelativeModule):
    """`teka.functional.Clipped` with learned embeddings, in half of the heads, by position alone.

    The embeddings are shared by the heads of a layer and begin at 0 (Horn et al. 2021).

    Args:
        dim_head: Size d of a query.
        max_distance: The last ring k.
        ring_width: Distance between neighbouring rings in physical units.

    Raises:
        ValueError: A distance below 1, or a width that is not positive.
    """

    has_own_heads: ClassVar[bool] = True
    uses_query: ClassVar[bool] = True

    def __init__(self, dim_head: int, *, max_distance: int = MAX_DISTANCE, ring_width: float = 1.0) -> None:
        super().__init__()
        check_sizes({"dim_head": dim_head, "max_distance": max_distance})
        if not is_positive(ring_width):
            raise wrong_value("ring_width", ring_width, POSITIVE)
        self.distance_embedding = Parameter(torch.zeros(max_distance + 1, dim_head))
        self.ring_width = ring_width

    def forward(self) -> relative.Clipped:
        """The kernel with the present parameters."""
        return relative.Clipped(self.distance_embedding, self.ring_width)
