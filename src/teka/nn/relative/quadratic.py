"""The quadratic kernel with learned centres and precisions."""

import torch
from torch.nn import Parameter
from torch.nn.functional import softplus

from teka.checks import check_sizes
from teka.functional import relative
from teka.nn.relative.base import RelativeModule
from teka.nn.relative.initial import inverse_softplus


class Quadratic(RelativeModule):
    """`teka.functional.Quadratic` with learned Δ_h ~ N(0, 2²) and α = softplus(`raw_precision`) = 1 at first.

    The initial values are those of Cordonnier et al. 2020.

    Args:
        num_axes: Number of axes n of the grid.
        heads: Number of heads.

    Raises:
        ValueError: A size below 1.
    """

    def __init__(self, num_axes: int, heads: int) -> None:
        super().__init__()
        check_sizes({"num_axes": num_axes, "heads": heads})
        self.center = Parameter(2 * torch.randn(heads, num_axes))
        self.raw_precision = Parameter(inverse_softplus(torch.ones(heads)))

    def forward(self) -> relative.Quadratic:
        """The kernel with the present parameters."""
        return relative.Quadratic(self.center, softplus(self.raw_precision))
